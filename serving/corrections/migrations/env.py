"""Alembic runs this to bring a database to the newest schema, on the connection that the store gives."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
