"""What was found out about each picture, kept on the disk so that no picture is ever decoded twice.

An SQLite table with one row a file. A row counts as long as the file's length and time of change are the same. Only
whole batches are written, so whatever kills the program costs at most the last seconds.
"""

import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

from models.errors import DataError
from training.dataset.labeled_picture import ImageInfo

# Raised whenever the same bytes may give other facts, such as another perceptual hash.
_EDITION: Final = 2
_COMMIT_EVERY_S: Final = 1.0
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS pictures (
    path TEXT PRIMARY KEY, num_bytes INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,  -- bytes and time of the file
    code TEXT NOT NULL, reason TEXT NOT NULL,                                      -- empty if the picture decodes
    sha256 TEXT NOT NULL, width INTEGER NOT NULL, height INTEGER NOT NULL, perceptual_hash TEXT NOT NULL
) WITHOUT ROWID"""


class Stamp(NamedTuple):
    """What a file looks like from outside; a file that was written again has another."""

    num_bytes: int
    mtime_ns: int


class Fault(NamedTuple):
    """Why a picture cannot be used."""

    code: str
    reason: str


class ResultsCache:
    """The findings of this run and of earlier ones. Used as a context manager, which writes what is left at the end.

    Args:
        path: The SQLite file; made if missing.

    Raises:
        DataError: The file is damaged, is no journal of this edition, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._committed_at = time.monotonic()
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._explained():
            self._database = sqlite3.connect(path)
        try:
            self._open()
        except BaseException:
            self._database.close()
            raise

    def __enter__(self) -> "ResultsCache":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            with self._explained():
                self._database.commit()
        finally:
            self._database.close()

    def unchanged(self, stamps: Mapping[str, Stamp]) -> Iterator[tuple[str, ImageInfo | Fault]]:
        """What is known of those files that are still the same.

        Args:
            stamps: File -> what it looks like now.
        """
        with self._explained():
            for path, num_bytes, mtime_ns, code, reason, *facts in self._database.execute("SELECT * FROM pictures"):
                if stamps.get(path) == (num_bytes, mtime_ns):
                    yield path, Fault(code, reason) if code else _facts(num_bytes, *facts)

    def add(self, found: Sequence[tuple[str, Stamp, ImageInfo | Fault]]) -> None:
        """Keeps what was found out about files, each as it looked before it was read."""
        rows = [(path, *stamp, *_columns(outcome)) for path, stamp, outcome in found]
        with self._explained():
            self._database.executemany("REPLACE INTO pictures VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
            if time.monotonic() - self._committed_at > _COMMIT_EVERY_S:
                self._database.commit()
                self._committed_at = time.monotonic()

    def _open(self) -> None:
        with self._explained():
            (edition,) = self._database.execute("PRAGMA user_version").fetchone()
            if edition not in {0, _EDITION}:
                raise sqlite3.DatabaseError(f"edition {edition}, not {_EDITION}")
            self._database.execute(_TABLE)
            self._database.execute(f"PRAGMA user_version = {_EDITION}")
            self._database.commit()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns what SQLite raises into one clear error."""
        try:
            yield
        except sqlite3.OperationalError as error:  # a full disk, a folder that may not be written, a lock
            raise DataError(
                f"the journal {self.path} cannot be used",
                value=error,
                remedy="free the disk, or end the other program that uses it, and run again: it goes on from there",
            ) from error
        except (sqlite3.DatabaseError, ValueError) as error:
            raise DataError(
                f"the journal {self.path} is damaged or was written by another version",
                value=error,
                remedy="delete it, and the pictures are decoded again",
            ) from error


def _columns(outcome: ImageInfo | Fault) -> tuple[str, str, str, int, int, str]:
    if isinstance(outcome, Fault):
        return outcome.code, outcome.reason, "", 0, 0, ""
    return "", "", outcome.sha256, outcome.width, outcome.height, f"{outcome.perceptual_hash:016x}"


def _facts(num_bytes: int, sha256: str, width: int, height: int, perceptual_hash: str) -> ImageInfo:
    return ImageInfo(
        sha256=sha256,
        num_bytes=num_bytes,
        width=width,
        height=height,
        perceptual_hash=int(perceptual_hash, 16),  # SQLite's integers have a sign
    )
