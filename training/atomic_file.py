"""Files that are there whole or not at all, whatever happens while they are written."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """Gives a stream whose content takes the place of a file when all of it is on the disk, even if power fails.

    Raises:
        OSError: The content could not be written; the old file still stands, and the error names the file.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
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
    for leftover in (left for name in files for left in leftovers_of(folder / name)):
        leftover.unlink(missing_ok=True)
    with ExitStack() as stack:
        streams = {name: stack.enter_context(replaced(folder / name)) for name in files}
        for name, content in files.items():
            streams[name].write(content)
            streams[name].flush()
            os.fsync(streams[name].fileno())  # a full disk shows here at the latest, before any name changes


def leftovers_of(path: Path) -> list[Path]:
    """What killed processes left of attempts to write a file."""
    return sorted(path.parent.glob(f".{path.name}.*.part"))


def _sync_folder(folder: Path) -> None:
    """A renamed file survives a power failure only when its folder is on the disk too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
