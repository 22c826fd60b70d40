"""Writes files atomically: after a crash a file holds its old or its new content, never a part. Locks folders."""

import errno
import fcntl
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from models.errors import DataError

ABANDONED_S: Final = 3600
"""Older temporary files belong to no running process."""
_WITHOUT_LOCKS: Final = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # of some file systems, such as Lustre


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """Opens a temporary file that replaces `path` at the end of the block, once all of it is on the disk.

    The folder is made if it does not exist.

    Raises:
        OSError: The content could not be written; the old file is unchanged, and the error names it.
    """
    # Not the process id, which may be the same on another machine that shares the disk.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        if error.filename is None:  # for example if the disk is full
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path, problem: str, *, remedy: str) -> Iterator[None]:
    """Lets one process at a time run the block for a folder, which is made if it does not exist.

    The system frees the lock of a process that was killed.

    Raises:
        DataError: Another process has the lock; the message begins with `problem`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("wb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataError(problem, value=folder, remedy=remedy) from error
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise
        yield


def as_json(value: object) -> bytes:
    """A value that msgspec encodes as indented JSON that ends with a line break."""
    return msgspec.json.format(msgspec.json.encode(value)) + b"\n"


def write_json(path: Path, value: object) -> None:
    """Replaces a file by a value as JSON, see `replaced`."""
    write_bytes(path, as_json(value))


def write_bytes(path: Path, content: bytes) -> None:
    """Replaces the content of a file, see `replaced`; if there is one, what killed processes left beside it is removed.

    That lists the folder, so many files of one folder are better written by `replaced`.
    """
    if path.exists():
        remove_leftovers(path, older_than_s=ABANDONED_S)
    with replaced(path) as stream:
        stream.write(content)


def replace_together(folder: Path, files: Mapping[str, bytes | memoryview]) -> None:
    """Writes files that belong together: no old file is replaced before all new ones are on the disk.

    Files are replaced from the last to the first, so if the first file is new, all are.

    Raises:
        OSError: A file could not be written, and all old files are unchanged; or a file could not be replaced, and the
            first file is still the old one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in files:
        remove_leftovers(folder / name, older_than_s=ABANDONED_S)
    with ExitStack() as stack:
        streams = {name: stack.enter_context(replaced(folder / name)) for name in files}
        for name, content in files.items():
            streams[name].write(content)
            streams[name].flush()
            os.fsync(streams[name].fileno())  # a full disk fails here at the latest, before any file is replaced


def remove_leftovers(path: Path, older_than_s: float = 0) -> None:
    """Removes the temporary files that killed processes left beside a file; a younger one may be in use."""
    for leftover in path.parent.glob(f".{path.name}.*.part"):
        with suppress(FileNotFoundError):
            if time.time() - leftover.stat().st_mtime >= older_than_s:
                leftover.unlink()


def sync(path: Path) -> None:
    """Writes a file to the disk, or the names in a folder, without which a power failure may undo a rename."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
