"""The results of `examine`, kept on disk so that no file is decoded twice.

An SQLite table with one row for each file. A row is valid while length and modification time of the file are unchanged.
Rows are committed every second, so an interrupted run loses at most the last seconds.
"""

import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple

from models.errors import DataError
from training.dataset.labeled_picture import ImageInfo

# Raise this number when the same bytes may give another result, such as another perceptual hash.
_VERSION: Final = 3
_COMMIT_EVERY_S: Final = 1.0
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS pictures (
    path TEXT PRIMARY KEY, num_bytes INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,  -- of the file
    code TEXT NOT NULL, reason TEXT NOT NULL,                                      -- empty if the picture decodes
    sha256 TEXT NOT NULL, width INTEGER NOT NULL, height INTEGER NOT NULL, perceptual_hash TEXT NOT NULL,
    taken_at TEXT, latitude REAL, longitude REAL                                   -- by EXIF
) WITHOUT ROWID"""


class FileStamp(NamedTuple):
    """Length and modification time of a file."""

    num_bytes: int
    mtime_ns: int


class Failure(NamedTuple):
    """Why a picture cannot be used."""

    code: str
    reason: str


class ResultsCache:
    """The results of this run and of earlier ones; a context manager that commits at its end.

    Args:
        path: The SQLite file; created if missing.

    Raises:
        DataError: The file is damaged, of another version, or cannot be written.
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

    def unchanged(self, stamps: Mapping[str, FileStamp]) -> Iterator[tuple[str, ImageInfo | Failure]]:
        """Yields the stored results of files that are unchanged.

        Args:
            stamps: File -> its current length and time.
        """
        with self._explained():
            for path, num_bytes, mtime_ns, code, reason, *info in self._database.execute("SELECT * FROM pictures"):
                if stamps.get(path) == (num_bytes, mtime_ns):
                    yield path, Failure(code, reason) if code else _image_info(num_bytes, *info)

    def add(self, found: Sequence[tuple[str, FileStamp, ImageInfo | Failure]]) -> None:
        """Stores results, each with length and time of the file before it was read."""
        rows = [(path, *stamp, *_columns(outcome)) for path, stamp, outcome in found]
        with self._explained():
            self._database.executemany("REPLACE INTO pictures VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
            if time.monotonic() - self._committed_at > _COMMIT_EVERY_S:
                self._database.commit()
                self._committed_at = time.monotonic()

    def _open(self) -> None:
        with self._explained():
            (version,) = self._database.execute("PRAGMA user_version").fetchone()
            if version not in {0, _VERSION}:
                raise sqlite3.DatabaseError(f"version {version}, not {_VERSION}")
            self._database.execute(_TABLE)
            self._database.execute(f"PRAGMA user_version = {_VERSION}")
            self._database.commit()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns the errors of SQLite into a `DataError`."""
        try:
            yield
        except sqlite3.OperationalError as error:  # full disk, read-only folder, lock
            raise DataError(
                f"the results cache {self.path} cannot be used",
                value=error,
                remedy="free disk space, or end the other program that uses it, and run again: it continues from there",
            ) from error
        except (sqlite3.DatabaseError, ValueError) as error:
            raise DataError(
                f"the results cache {self.path} is damaged or was written by another version",
                value=error,
                remedy="delete it: the pictures are then decoded again",
            ) from error


def _columns(outcome: ImageInfo | Failure) -> tuple[str | int | float | None, ...]:
    if isinstance(outcome, Failure):
        return outcome.code, outcome.reason, "", 0, 0, "", None, None, None
    taken_at = outcome.taken_at and outcome.taken_at.isoformat()
    picture = outcome.sha256, outcome.width, outcome.height, f"{outcome.perceptual_hash:016x}"
    return "", "", *picture, taken_at, *(outcome.coordinates or (None, None))


def _image_info(num_bytes: int, sha256: str, width: int, height: int, perceptual_hash: str, *exif: Any) -> ImageInfo:
    taken_at, latitude, longitude = exif
    return ImageInfo(
        sha256=sha256,
        num_bytes=num_bytes,
        width=width,
        height=height,
        perceptual_hash=int(perceptual_hash, 16),  # SQLite's integers are signed
        taken_at=datetime.fromisoformat(taken_at) if taken_at else None,
        coordinates=None if latitude is None else (latitude, longitude),
    )
