"""The store of corrections: a database (SQLite in the folder, or PostgreSQL), and pictures beside it by their hash.

A correction that was accepted is on the disk: its pictures first, then its row. A process that is killed between the
two leaves a picture without a row, which `purge` deletes. Times are UTC as ISO 8601 text, which both databases sort.
"""

import hashlib
import shutil
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import msgspec
from sqlalchemy import (
    URL,
    Boolean,
    Column,
    Connection,
    Engine,
    Float,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    delete,
    event,
    func,
    insert,
    inspect,
    make_url,
    select,
    text,
    update,
)
from sqlalchemy.exc import SQLAlchemyError

from models.atomic_file import write_bytes
from models.errors import InputError, one_line
from serving.corrections.record import Correction
from serving.errors import BadParameter, StoreFull, StoreUnavailable

DATABASE_FILE: Final = "corrections.sqlite"
_PICTURES: Final = "pictures"
_VERSION: Final = "0001"  # of the tables
_LOCK_S: Final = 5  # a writer waits so long for another one
_AT_ONCE: Final = 500  # ids in a statement
_FIRST: Final = "2020"  # an earlier date is that of a clock that was not set yet
_DOUBT: Final = "clock-in-doubt"  # a file: of what is older, all was too old at an earlier look
_DOUBT_DAYS: Final = 0.5  # a clock that is wrong for longer is noticed
_ORPHAN_S: Final = 3_600.0  # a picture without a row is younger only while its row is being written

# Columns that hold something else than a text of at most 200 characters, of which SQLite takes any.
_KINDS: Final[Mapping[str, Any]] = {
    "correction_id": String(32), "created": String(32), "label_hash": String(64), "verdict_rank": String(20),
    "score": Float, "predictions": Text, "certain": Boolean, "accepted": Boolean,
}  # fmt: skip

metadata = MetaData()
corrections = Table(
    "corrections",
    metadata,
    *(
        Column(
            field.name,
            _KINDS.get(field.name, String(200)),
            primary_key=field.name == "correction_id",
            index=field.name == "created" or None,
            nullable=field.default is None,
        )
        for field in msgspec.structs.fields(Correction)
        if field.name != "pictures"  # a table of their own
    ),
)
pictures = Table(
    "pictures",
    metadata,
    Column("correction_id", ForeignKey("corrections.correction_id", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("sha256", String(64), nullable=False, index=True),
    Column("num_bytes", Integer, nullable=False),
)
# Alembic made it until version 0.3, so stores of both sides open on either.
versions = Table("alembic_version", metadata, Column("version_num", String(32), primary_key=True))


@contextmanager
def _told() -> Iterator[None]:
    """Turns errors of disk and database into one that the client may try again."""
    try:
        yield
    except (OSError, SQLAlchemyError) as error:
        raise StoreUnavailable.with_retry("the store of corrections cannot be used now", _LOCK_S) from error


class Kept(NamedTuple):
    """What a store holds."""

    num_corrections: int
    num_bytes: int
    """Of all pictures; those of several corrections count once."""
    oldest: str | None
    """When the oldest correction was made, UTC, ISO 8601; None if there is none."""


class Store:
    """The corrections in a folder.

    Args:
        folder: Holds the pictures, and the SQLite file; made if it is missing.
        database: Address of a PostgreSQL database, such as postgresql+psycopg://user@host/name; empty for SQLite.
        max_bytes: Most bytes of all pictures.

    Raises:
        InputError: The folder or the database cannot be used.
    """

    def __init__(self, folder: Path, database: str = "", max_bytes: int = 10_000_000_000) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        try:
            (folder / _PICTURES).mkdir(parents=True, exist_ok=True)
            sqlite = URL.create("sqlite", database=str(folder.resolve() / DATABASE_FILE))
            address = make_url(database) if database else sqlite
            if database and address.drivername != "postgresql+psycopg":
                raise ValueError(f"the database is {address.drivername}")
            self._engine = _open(address)
            with self._engine.begin() as connection:
                _require_tables(connection)
        except (OSError, SQLAlchemyError, ValueError, ImportError) as error:
            raise InputError(
                "the store of corrections cannot be opened",
                value=one_line(error),
                limit="a folder that can be written to, and SQLite or postgresql+psycopg://USER@HOST/NAME",
                remedy="correct --corrections or --corrections-database",
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._engine.dispose()

    @_told()
    def put(self, correction: Correction, contents: Sequence[bytes]) -> None:
        """Stores a correction, in place of an earlier one with the same id.

        Args:
            correction: Its `pictures` are ignored.
            contents: The pictures that the person gave.

        Raises:
            BadParameter: A text is too long.
            StoreFull: There is no room for the pictures.
            StoreUnavailable: The disk is full, or the database is locked, full or away.
        """
        row = {column.name: getattr(correction, column.name) for column in corrections.columns}
        _require_short(row)
        named = [(hashlib.sha256(content).hexdigest(), content) for content in contents]
        self._require_room({name: len(content) for name, content in named})
        for name, content in named:
            self._write(name, content)
        rows = [
            {"correction_id": correction.correction_id, "position": position, "sha256": name, "num_bytes": len(content)}
            for position, (name, content) in enumerate(named)
        ]
        with self._engine.begin() as connection:
            before = _delete(connection, [correction.correction_id])
            connection.execute(insert(corrections), row)
            if rows:
                connection.execute(insert(pictures), rows)
        for name, content in named:
            self._write(name, content)  # again if another process has just deleted its last row
        self._unlink_unused({*before} - {name for name, _ in named})

    @_told()
    def delete(self, ids: Collection[str]) -> int:
        """Deletes corrections and the pictures that no other one has; returns how many there were.

        Raises:
            StoreUnavailable: As `put`.
        """
        number = 0
        for some in _batched(ids):
            with self._engine.begin() as connection:
                found = select(corrections.c.correction_id).where(corrections.c.correction_id.in_(some))
                number += len(connection.execute(found).all())
                names = _delete(connection, some)
            self._unlink_unused(names)
        return number

    @_told()
    def purge(self, days: int) -> int:
        """Deletes what is older than `days`, and pictures that belong to nothing; returns the number of corrections.

        A correction from before the clock was set counts as made now. If the newest is too old, too, nothing new came
        or the clock is wrong: then only what was too old half a day ago goes, unless a look between found a new one.
        What was made since the clock went wrong says nothing, so the youngest tenth of `days` does not count.

        Raises:
            InputError: The clock may be wrong, and no correction is deleted.
            StoreUnavailable: As `put`.
        """
        now = datetime.now(UTC)
        ages = 0, days, days + _DOUBT_DAYS, days / 10
        today, before, earlier, proof = ((now - timedelta(days=age)).isoformat(timespec="seconds") for age in ages)
        created = corrections.c.created
        with self._engine.begin() as connection:
            connection.execute(update(corrections).where(created < _FIRST).values(created=today))
            old = connection.execute(select(corrections.c.correction_id, created).where(created < before)).all()
            newest = connection.execute(select(func.max(created)).where(created < proof)).scalar()
        self._purge_files()
        doubt = self._folder / _DOUBT
        sure = before
        if newest is None or newest >= before:
            doubt.unlink(missing_ok=True)
        else:
            found = doubt.read_text(errors="replace") if doubt.exists() else ""
            sure = found if found <= earlier else ""
            if not earlier < found <= before:
                write_bytes(doubt, before.encode())
        ids = [each for each, made in old if made < sure]
        if old and not ids:
            raise InputError(
                "no correction is deleted yet, because the newest would go, too",
                value=newest,
                limit=f"one after {before}",
                remedy=f"correct the clock within {24 * _DOUBT_DAYS:g} hours if it is wrong",
            )
        return self.delete(ids)

    def _purge_files(self) -> None:
        """Deletes pictures that belong to nothing."""
        old_files = set()
        for path in (self._folder / _PICTURES).glob("*/*"):
            with suppress(FileNotFoundError):  # another service renamed or deleted it
                if time.time() - path.stat().st_mtime > _ORPHAN_S:
                    old_files.add(path.name)
        self._unlink_unused(old_files)

    @_told()
    def review(self, ids: Collection[str], reviewer: str, *, accepted: bool) -> int:
        """Notes what a reviewer says; returns how many of the corrections there are.

        Raises:
            BadParameter: The name of the reviewer is too long.
            StoreUnavailable: As `put`.
        """
        _require_short({"reviewer": reviewer})
        number = 0
        with self._engine.begin() as connection:
            for some in _batched(ids):
                changed = update(corrections).where(corrections.c.correction_id.in_(some))
                number += connection.execute(changed.values(reviewer=reviewer, accepted=accepted)).rowcount
        return number

    def all(self) -> Iterator[Correction]:
        """Yields all corrections, the oldest first; errors as `put`."""
        with _told(), self._engine.connect() as connection:
            named: dict[str, list[str]] = {}
            for row in connection.execute(select(pictures).order_by(pictures.c.position)):
                named.setdefault(row.correction_id, []).append(row.sha256)
            ordered = select(corrections).order_by(corrections.c.created, corrections.c.correction_id)
            for row in connection.execute(ordered):
                yield Correction(**row._asdict(), pictures=tuple(named.get(row.correction_id, ())))

    @_told()
    def kept(self) -> Kept:
        """Returns how much there is; errors as `put`."""
        each = select(pictures.c.sha256, func.max(pictures.c.num_bytes).label("size")).group_by(pictures.c.sha256)
        with self._engine.connect() as connection:
            number, oldest = connection.execute(select(func.count(), func.min(corrections.c.created))).one()
            num_bytes = connection.execute(select(func.sum(each.subquery().c.size))).scalar() or 0
        return Kept(number, num_bytes, oldest)

    def backup(self, folder: Path) -> int:
        """Copies what one moment had committed into an empty folder; returns how many pictures there are.

        The service may go on meanwhile. Pictures are on the disk before their rows, so all of the copied rows have
        theirs, but for those that are deleted during the copy; these are left out.

        Raises:
            InputError: The database is not SQLite, or the copy cannot be made.
        """
        if self._engine.dialect.name != "sqlite":
            raise InputError("PostgreSQL is backed up by its own tools", remedy="run pg_dump, then copy the pictures")
        try:
            with self._engine.connect() as connection, closing(sqlite3.connect(folder / DATABASE_FILE)) as copy:
                connection.connection.driver_connection.backup(copy)  # type: ignore[union-attr]
                names = {str(name) for (name,) in copy.execute("SELECT DISTINCT sha256 FROM pictures")}
                gone = {name for name in names if not self._copy(name, folder)}
                with copy:
                    copy.executemany("DELETE FROM pictures WHERE sha256 = ?", [(name,) for name in gone])
        except (OSError, SQLAlchemyError, sqlite3.Error) as error:
            remedy = "make room, or choose a folder on another disk"
            raise InputError("the backup cannot be made", value=one_line(error), remedy=remedy) from error
        return len(names - gone)

    def _copy(self, sha256: str, folder: Path) -> bool:
        source = self.path(sha256)
        target = folder / source.relative_to(self._folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            shutil.copyfile(source, target)  # copy2 could fail after it: the file would stay, and its row go
            return True
        return False

    def path(self, sha256: str) -> Path:
        """Returns where a picture is."""
        return self._folder / _PICTURES / sha256[:2] / sha256

    def _require_room(self, sizes: dict[str, int]) -> None:
        new = sum(size for name, size in sizes.items() if not self.path(name).exists())
        if not new:
            return
        kept = self.kept().num_bytes
        if kept + new > self._max_bytes:
            raise StoreFull(
                "the store of corrections has no room for these pictures",
                value=f"{kept + new:,} bytes",
                limit=f"{self._max_bytes:,} bytes",
                remedy="send the correction without pictures, or ask the operator",
            )

    def _write(self, name: str, content: bytes) -> None:
        """Writes a picture atomically, unless it is there."""
        path = self.path(name)
        if not path.exists():
            write_bytes(path, content)

    def _unlink_unused(self, names: Collection[str]) -> None:
        for some in _batched(names):
            with self._engine.begin() as connection:
                unused = set(some) - _used(connection, some)
                if unused:
                    _lock(connection, "LOCK TABLE pictures IN SHARE MODE")  # else a row could come before the file goes
                    for name in unused - _used(connection, unused):
                        self.path(name.removeprefix(".")[:64]).with_name(name).unlink(missing_ok=True)


def _require_short(row: Mapping[str, Any]) -> None:
    """Checks the lengths of texts, of which SQLite takes any."""
    for column, value in row.items():
        limit = getattr(corrections.c[column].type, "length", None)
        if limit and len(value or "") > limit:
            instead = "; any plant can be named as `other`" if column in {"taxon_id", "name"} else ""
            raise BadParameter(
                f"the store of corrections cannot hold the text of `{column}`",
                value=f"{len(value)} characters",
                limit=f"at most {limit}",
                remedy=f"give a shorter one{instead}",
            )


def _delete(connection: Connection, ids: Collection[str]) -> list[str]:
    """Deletes the rows of corrections; returns the hashes of their pictures."""
    names = list(connection.execute(select(pictures.c.sha256).where(pictures.c.correction_id.in_(ids))).scalars())
    connection.execute(delete(corrections).where(corrections.c.correction_id.in_(ids)))  # with the rows of pictures
    return names


def _used(connection: Connection, names: Collection[str]) -> set[str]:
    return set(connection.execute(select(pictures.c.sha256).where(pictures.c.sha256.in_(names))).scalars())


def _lock(connection: Connection, of_postgresql: str) -> None:
    """Makes other writers wait until the transaction ends; SQLite has one lock for all."""
    connection.execute(text(of_postgresql if connection.dialect.name == "postgresql" else "BEGIN IMMEDIATE"))


def _batched(ids: Collection[str]) -> Iterator[list[str]]:
    """Yields the ids in lists that a statement can hold."""
    rest = iter(ids)
    while some := list(islice(rest, _AT_ONCE)):
        yield some


def _open(address: URL) -> Engine:
    is_sqlite = address.get_backend_name() == "sqlite"
    limits = {
        "connect_timeout": _LOCK_S,
        "options": f"-c statement_timeout={1000 * _LOCK_S}",
        "tcp_user_timeout": 1000 * _LOCK_S,  # a network that is lost ends a call, and so does
        "keepalives_idle": _LOCK_S,  # a machine that is gone while the call waits for its answer
        "keepalives_interval": 1,
    }
    engine = create_engine(
        address,
        pool_pre_ping=True,
        hide_parameters=True,  # errors are logged; parameters are what people wrote
        connect_args={"timeout": _LOCK_S} if is_sqlite else limits,
    )
    if is_sqlite:

        @event.listens_for(engine, "connect")
        def configure(connection: Any, _: object) -> None:
            for setting in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
                connection.execute(f"PRAGMA {setting}")

    return engine


def _require_tables(connection: Connection) -> None:
    """Makes the tables of a new store; another service that starts at the same time waits.

    Raises:
        InputError: The tables are those of another version.
    """
    found = _version(connection)
    if found is None:  # else no lock: who reads never waits
        _lock(connection, "SELECT pg_advisory_xact_lock(7110427)")
        found = _version(connection)
    if found is None:
        metadata.create_all(connection, checkfirst=False)
        connection.execute(insert(versions), {"version_num": _VERSION})
    elif found != _VERSION:
        raise InputError(
            "the store of corrections is of another version",
            value=repr(found),
            limit=_VERSION,
            remedy="open it with the botanify that made it, or give a new folder or database",
        )


def _version(connection: Connection) -> str | None:
    """Returns the version of the tables, None if there are none yet."""
    return connection.execute(select(versions)).scalar() if inspect(connection).has_table(versions.name) else None


@contextmanager
def opened(folder: Path, database: str) -> Iterator[Store]:
    """Opens a store that is there, for the programs."""
    if not (folder / (_PICTURES if database else DATABASE_FILE)).exists():
        raise InputError("no such folder of corrections", value=folder, remedy="give the folder of --corrections")
    with Store(folder, database) as store:
        try:
            yield store
        except StoreUnavailable as error:
            reason = one_line(error.__cause__)
            remedy = "try again, or restore the backup"
            raise InputError("the store of corrections cannot be used", value=reason, remedy=remedy) from error
