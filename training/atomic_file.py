"""Files that are there whole or not at all, whatever happens while they are written."""

import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

_SURELY_DEAD_S: Final = 3600


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """Gives a stream whose content takes the place of a file when all of it is on the disk, even if power fails.

    Raises:
        OSError: The content could not be written; the old file still stands, and the error names the file.
    """
    # Not the process's number: machines that share a disk count their processes alike.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with temporary.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        if error.filename is None:  # as when the disk is full
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def replace_together(folder: Path, files: Mapping[str, bytes | memoryview]) -> None:
    """Writes files that belong together: no old one goes before all new ones are on the disk.

    Names change from the last file to the first, so that the first, if it is new, says that all are.

    Raises:
        OSError: One could not be written, and all the old ones still stand; or a name could not be changed, and the
            first file is still the old one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in files:
        remove_leftovers(folder / name, older_than_s=_SURELY_DEAD_S)
    with ExitStack() as stack:
        streams = {name: stack.enter_context(replaced(folder / name)) for name in files}
        for name, content in files.items():
            streams[name].write(content)
            streams[name].flush()
            os.fsync(streams[name].fileno())  # a full disk shows here at the latest, before any name changes


def remove_leftovers(path: Path, older_than_s: float = 0) -> None:
    """Removes what killed processes left of attempts to write a file.

    Args:
        path: The file.
        older_than_s: Younger attempts may be those of a process that is still at it.
    """
    for leftover in path.parent.glob(f".{path.name}.*.part"):
        with suppress(FileNotFoundError):
            if time.time() - leftover.stat().st_mtime >= older_than_s:
                leftover.unlink()


def _sync_folder(folder: Path) -> None:
    """A renamed file survives a power failure only when its folder is on the disk too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
