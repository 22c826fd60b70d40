"""The photographs to identify, in a folder or a bucket."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path, PurePosixPath
from stat import S_ISREG
from typing import Any, Final

import fsspec
import msgspec
from fsspec.implementations.local import LocalFileSystem

from models.errors import DataError, UnsupportedFormat
from models.file_structure import sniff_format
from models.skipped import not_skipped, walk

# A file with such a name gets a row without a look: if its bytes are no photograph's, the row says so.
_SUFFIXES: Final = frozenset({
    ".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".webp", ".heic", ".heif", ".hif", ".avif",
})  # fmt: skip
# Thumbnails of cameras and of Capture One, backups of ExifTool and editors, downloads that are not complete.
_COPIES: Final = (".thm", ".cot", ".cop", "_original", ".bak", "~", ".part", ".crdownload")
_SIDECAR: Final = ".xmp"
_FIRST_BYTES: Final = 256  # that `sniff_format` reads
_LOOK_UPS: Final = 32
_LOOK_UPS_PLANNED: Final = 1000  # a list may have millions

_IRREGULAR: Final = "this is no regular file"
_IRREGULAR_TYPES: Final = ("directory", "other")  # fsspec's names
_NOT_UTF8: Final = "the name of the file is not UTF-8"


# Garbage collection would look at each of millions; they refer to nothing that refers back.
class Photograph(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A file to identify."""

    path: str
    """Path in the folder or bucket, with "/" between its parts; of a list, as the list has it, unless only another
    spelling is there. Text without UTF-8 form is escaped."""
    num_bytes: int
    """Size of the file; -1 if it cannot be read."""
    version: str
    """Changes with its content: its time of change, or the store's own tag; "" if unknown. Of a
    file that cannot be read it says why; "" if it does not exist."""
    cells: Mapping[str, str] | None = None
    """What the list says in its other columns; None if nothing: a million empty dictionaries would take 64 MB."""
    sidecar: str = ""
    """Path of an XMP file beside it, whose version is then a part of `version`."""

    @property
    def columns(self) -> Mapping[str, str]:
        """Other column of the list -> its cell."""
        return self.cells or {}


def is_bucket(address: str) -> bool:
    """Returns whether an address has a scheme, such as s3://, and is no folder."""
    return "://" in address


def open_bucket(url: str) -> tuple[Any, str]:
    """Returns the file system of an address such as s3://bucket/photographs, and the path in it.

    Raises:
        DataError: The package for this kind of address is not installed.
    """
    try:
        # Other machines write too, so that a listing is old at once; and one of millions fills the memory.
        files, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        raise DataError(
            "this kind of address cannot be opened", value=url, limit=str(error), remedy="install the package"
        ) from error
    return files, root


@contextmanager
def errors_of_stores() -> Iterator[None]:
    """Turns what the packages of stores raise, such as botocore's NoCredentialsError, into OSError."""
    try:
        yield
    except (OSError, DataError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


class LocalFolder:
    """A folder of this machine.

    Args:
        root: The folder.
        left_out: A folder that is not searched: the results may be among the photographs.
    """

    def __init__(self, root: Path, left_out: Path | None = None) -> None:
        self.root = root
        self._left_out: Path | None = None
        if left_out is not None and left_out.resolve().is_relative_to(root.resolve()):
            self._left_out = left_out.resolve().relative_to(root.resolve())

    def find(self) -> Iterator[Photograph]:
        """Yields the files of each folder, sorted by name, but those that `models/skipped.py` skips.

        Links to files are followed, links to folders are not: they may lead in a circle.

        Raises:
            DataError: The folder or bucket does not exist.
        """
        if not self.root.is_dir():
            raise DataError("the folder of photographs does not exist", value=self.root, remedy="correct the path")
        for folder, subfolders, files in walk(self.root, onerror=_refuse):
            place = Path(folder).relative_to(self.root)
            subfolders[:] = [name for name in subfolders if place / name != self._left_out]
            for name in files:
                file = self._look_up((place / name).as_posix())
                if file.version != _IRREGULAR:
                    yield file

    def look_up_all(self, paths: Sequence[str]) -> Iterator[Photograph]:
        """Yields photographs in the order of their paths; the size of one that cannot be read is -1."""
        for path in paths:
            sidecars = (self._look_up(name) for name in _sidecar_names(path))
            yield _with_sidecar(self._look_up(path), sidecars)

    def _look_up(self, path: str) -> Photograph:
        try:
            facts = (self.root / path).stat()
        except OSError:  # a link to nowhere, or removed meanwhile: its row will say so
            return _named(path, -1, "")
        if not S_ISREG(facts.st_mode):  # reading a pipe could wait for ever
            return _named(path, -1, _IRREGULAR)
        return _named(path, facts.st_size, str(facts.st_mtime_ns))

    def read(self, path: str, num_bytes: int | None = None) -> bytes:
        """Returns a photograph, or its first `num_bytes` bytes.

        Raises:
            OSError: It cannot be read.
        """
        # It may have become a pipe or a device since it was found: those may let an opener wait.
        with open(self.root / path, "rb", opener=lambda file, flags: os.open(file, flags | os.O_NONBLOCK)) as stream:
            if not S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise DataError(_IRREGULAR, value=path, remedy="correct the file or the list")
            return stream.read(num_bytes)


class Bucket:
    """An object store, or anything else that fsspec opens: "s3://bucket/photographs".

    Args:
        files: The file system.
        root: Path of the photographs in it.
    """

    def __init__(self, files: Any, root: str) -> None:
        self._files, self._root = files, root

    def find(self) -> Iterator[Photograph]:
        """See `LocalFolder.find`."""
        with errors_of_stores():
            found: Mapping[str, Mapping[str, Any]] = self._files.find(self._root, detail=True)
            if not found and not self._files.exists(self._root):
                address = self._files.unstrip_protocol(self._root)
                raise DataError("nothing has this address", value=address, remedy="correct the address")
        files = {
            name.removeprefix(self._root).lstrip("/"): facts
            for name, facts in found.items()
            if facts.get("type") not in _IRREGULAR_TYPES
        }
        for path in sorted(not_skipped([*files]), key=os.path.split):
            yield _remote(path, files[path])

    def look_up_all(self, paths: Sequence[str]) -> Iterator[Photograph]:
        """See `LocalFolder.look_up_all`; many at the same time, because each is a request."""
        with ThreadPoolExecutor(_LOOK_UPS) as pool:
            for first in range(0, len(paths), _LOOK_UPS_PLANNED):
                yield from pool.map(self._look_up, paths[first : first + _LOOK_UPS_PLANNED])

    @errors_of_stores()
    def _look_up(self, path: str) -> Photograph:
        try:
            return _remote(path, self._files.info(f"{self._root}/{path}"))
        except FileNotFoundError:
            return Photograph(path, -1, "")

    @errors_of_stores()
    def read(self, path: str, num_bytes: int | None = None) -> bytes:
        """See `LocalFolder.read`."""
        start = None if num_bytes is None else 0  # S3 refuses a range of an empty object
        data: bytes = self._files.cat_file(f"{self._root}/{path}", start=start, end=num_bytes)
        return data


Store = LocalFolder | Bucket


def open_store(address: str, results: str | None = None) -> Store:
    """Opens a folder, or a bucket if the address has a scheme such as s3://.

    Args:
        address: The folder or bucket.
        results: Folder or bucket of the results, where no photographs are searched.

    Raises:
        DataError: The package for this kind of address is not installed.
    """
    if is_bucket(address):
        files, root = open_bucket(address)
        if not isinstance(files, LocalFileSystem):
            return Bucket(files, root)
        address = root
    return LocalFolder(Path(address), None if results is None or is_bucket(results) else Path(results))


def find_photographs(store: Store, left_out: Counter[str]) -> Iterator[Photograph]:
    """Yields the photographs of a folder or bucket, each with the XMP file beside it.

    A file whose name tells nothing is one if its first bytes say so. Many are looked at at once, because on a network
    each takes a while.

    Args:
        store: The folder or bucket.
        left_out: Counts the other files by the ends of their names.
    """
    with ThreadPoolExecutor(_LOOK_UPS) as pool:
        for _, group in groupby(store.find(), lambda file: file.path.rpartition("/")[0]):
            files = [*group]
            sidecars = {file.path: file for file in files if file.path.lower().endswith(_SIDECAR)}
            files = [file for file in files if file.path not in sidecars]
            for first in range(0, len(files), _LOOK_UPS_PLANNED):
                some = files[first : first + _LOOK_UPS_PLANNED]
                for file, is_one in zip(some, pool.map(partial(_is_photograph, store), some), strict=True):
                    if is_one:
                        beside = (sidecars[name] for name in _sidecar_names(file.path) if name in sidecars)
                        yield _with_sidecar(file, beside)
                    else:
                        left_out[PurePosixPath(file.path).suffix or "no ending"] += 1


def has_photograph_name(name: str) -> bool:
    """Returns whether a file name ends as those of photographs do."""
    return PurePosixPath(name).suffix.lower() in _SUFFIXES


def _is_photograph(store: Store, file: Photograph) -> bool:
    if has_photograph_name(file.path):
        return True
    if file.num_bytes <= 0 or file.path.lower().endswith(_COPIES):
        return False
    try:
        sniff_format(store.read(file.path, _FIRST_BYTES))
    except (UnsupportedFormat, DataError, OSError):
        return False
    return True


def _sidecar_names(path: str) -> Iterator[str]:
    for name in (path, path.removesuffix(PurePosixPath(path).suffix)):
        yield from (name + _SIDECAR, name + _SIDECAR.upper())


def _with_sidecar(file: Photograph, sidecars: Iterable[Photograph]) -> Photograph:
    for sidecar in sidecars:
        if file.num_bytes >= 0 and sidecar.num_bytes >= 0:
            version = f"{file.version} {sidecar.version}"
            return msgspec.structs.replace(file, version=version, sidecar=sidecar.path)
    return file


def _refuse(error: OSError) -> None:
    raise DataError("a folder cannot be read", value=error, remedy="make it readable, or move it away") from error


def _remote(path: str, facts: Mapping[str, Any]) -> Photograph:
    if facts.get("type") in _IRREGULAR_TYPES:
        return _named(path, -1, _IRREGULAR)
    version = facts.get("ETag") or facts.get("etag") or facts.get("LastModified") or facts.get("mtime") or ""
    return _named(path, int(facts.get("size") or 0), str(version))


def _named(path: str, num_bytes: int, version: str) -> Photograph:
    """Returns a photograph; one whose name no table can hold as it is gets another one, and is not read."""
    text = printable(path)
    return Photograph(path, num_bytes, version) if text == path else Photograph(text, -1, _NOT_UTF8)


def printable(path: str) -> str:
    r"""Returns a path as text: one that is not UTF-8 with \xNN for such bytes, after "./", which no other one has."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return "./" + os.fsencode(path).replace(b"\\", rb"\\").decode("utf-8", "backslashreplace")
    return path
