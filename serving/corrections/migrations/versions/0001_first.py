"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes both tables."""
    op.create_table(
        "corrections",
        sa.Column("correction_id", sa.String(32), primary_key=True),
        sa.Column("created", sa.String(32), nullable=False, index=True),
        sa.Column("person", sa.String(200), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("label_hash", sa.String(64), nullable=False),
        sa.Column("verdict_rank", sa.String(20), nullable=False),
        sa.Column("predicted", sa.String(200), nullable=False),
        sa.Column("score", sa.Float, nullable=False),
        sa.Column("predictions", sa.Text, nullable=False),
        sa.Column("taxon_id", sa.String(200)),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("certain", sa.Boolean, nullable=False),
        sa.Column("reviewer", sa.String(200), nullable=False),
        sa.Column("accepted", sa.Boolean),
    )
    op.create_table(
        "pictures",
        sa.Column(
            "correction_id",
            sa.String(32),
            sa.ForeignKey("corrections.correction_id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("sha256", sa.String(64), nullable=False, index=True),
        sa.Column("num_bytes", sa.Integer, nullable=False),
    )


def downgrade() -> None:
    """Drops both tables."""
    op.drop_table("pictures")
    op.drop_table("corrections")
