"""The folder or bucket of the results. A file is there completely or not at all."""

import io
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from models.atomic_file import replaced
from models.errors import DataError
from serving.folder.photographs import errors_of_stores, is_bucket, open_bucket

_UNFINISHED: Final = ".part"
_UNFINISHED_NAME: Final = re.compile(r"\..+\.[0-9a-f]{32}\.part")


class OutputFolder:
    """A folder of this machine, or of a disk that several machines share.

    Args:
        root: The folder; it is created.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()  # other processes may start in another folder
        root.mkdir(parents=True, exist_ok=True)

    def names(self, folder: str) -> list[str]:
        """Returns the names of the files in a folder, sorted; none if there is no such folder."""
        with suppress(FileNotFoundError):
            names = (path.name for path in (self.root / folder).iterdir())
            return sorted(name for name in names if not name.endswith(_UNFINISHED))
        return []

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file, or None if it does not exist."""
        with suppress(FileNotFoundError):
            return (self.root / name).read_bytes()
        return None

    def write(self, name: str, content: bytes) -> None:
        """Writes a file, which may exist."""
        self.replace(name, io.BytesIO(content))

    def replace(self, name: str, content: BinaryIO) -> None:
        """See `write`; for what may not fit into the memory."""
        path = self.root / name
        try:
            with replaced(path) as stream:
                shutil.copyfileobj(content, stream)
        except FileNotFoundError:  # another run ended, and took it for what a killed one had begun
            content.seek(0)
            self.replace(name, content)

    def remove_unfinished(self) -> None:
        """Removes what killed processes had begun to write."""
        for folder in (self.root, self.root / "parts"):
            for path in folder.glob(f".*{_UNFINISHED}"):
                if _UNFINISHED_NAME.fullmatch(path.name):
                    path.unlink(missing_ok=True)


class OutputBucket:
    """An object store: objects are complete or absent.

    Args:
        files: The store.
        root: Path of the results in it.
    """

    def __init__(self, files: Any, root: str) -> None:
        self._files, self._root = files, root

    @errors_of_stores()
    def names(self, folder: str) -> list[str]:
        """See `OutputFolder.names`."""
        with suppress(FileNotFoundError):
            found: list[str] = self._files.ls(f"{self._root}/{folder}", detail=False, refresh=True)
            return sorted(path.rpartition("/")[2] for path in found if not path.endswith("/"))
        return []

    @errors_of_stores()
    def read(self, name: str) -> bytes | None:
        """See `OutputFolder.read`."""
        with suppress(FileNotFoundError):
            data: Any = self._files.cat_file(f"{self._root}/{name}")
            return bytes(data)
        return None

    @errors_of_stores()
    def write(self, name: str, content: bytes) -> None:
        """See `OutputFolder.write`."""
        self._files.pipe_file(f"{self._root}/{name}", content)

    @errors_of_stores()
    def replace(self, name: str, content: BinaryIO) -> None:
        """See `OutputFolder.replace`."""
        with self._files.open(f"{self._root}/{name}", "wb") as stream:
            shutil.copyfileobj(content, stream)

    def remove_unfinished(self) -> None:
        """See `OutputFolder.remove_unfinished`: an object store shows no such files."""


Output = OutputFolder | OutputBucket


def open_output(address: str) -> Output:
    """Opens a folder for results, or a bucket if the address has a scheme such as s3://.

    Raises:
        DataError: The package for this kind of address is not installed, or a killed write to it leaves a cut file.
    """
    if not is_bucket(address):
        return OutputFolder(Path(address))
    files, root = open_bucket(address)
    if isinstance(files, LocalFileSystem):
        return OutputFolder(Path(root))
    if getattr(files.pipe_file, "__func__", None) is AbstractFileSystem.pipe_file:  # which writes in place
        raise DataError(
            "results cannot be written to this kind of address, where a killed write leaves a cut file",
            value=address,
            limit="a folder or an object store such as s3://",
            remedy="choose another --out",
        )
    return OutputBucket(files, root)
