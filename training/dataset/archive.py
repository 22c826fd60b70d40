"""Archives (.tar, .tar.gz, .zip) that are read where they lie: nothing is unpacked.

An archive from the network is not trusted. A member with a name outside of the folder, a link, a device, or a file that
is far larger than a photograph ends the pass, by name.
"""

import gzip
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final, NamedTuple

from models.errors import DataError
from models.skipped import is_skipped

SUFFIXES: Final = (".tar", ".tar.gz", ".tgz", ".zip")
_MOST_BYTES: Final = 100_000_000  # of a picture
_MOST_BYTES_OF_LIST: Final = 8_000_000_000  # of a file that lists pictures; iNaturalist's longest has a seventh of it
_MOST_BYTES_OF_HEADER: Final = 1_000_000  # of a tar; a path has 4,096, and a Mac adds some kilobytes
_READ_AHEAD: Final = 1 << 20
_FILES: Final = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_PAX: Final = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
# Headers that say something of other members. What one says of all, and where a link leads, counts for nothing here.
_ABOUT_OTHERS: Final = (*_PAX, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_DAMAGED: Final = (tarfile.TarError, zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError)


class Member(NamedTuple):
    """A file in an archive. It can be read until the next member comes."""

    name: str
    read: Callable[[], bytes]


def stem(path: Path) -> str:
    """Returns the name of an archive without its suffix; nothing for another file."""
    suffix = next((each for each in SUFFIXES if path.name.lower().endswith(each)), "")
    return path.name[: -len(suffix)] if suffix else ""


def archives_of(root: Path) -> list[Path]:
    """Returns the archives with the pictures of a data set: `root` itself, or those in it that are not unpacked there.

    An archive of a list of pictures, such as train.json.tar.gz, is none of them.
    """
    if root.is_file():
        return [root] if stem(root) else []
    names = {path: stem(path) for path in sorted(root.iterdir())} if root.is_dir() else {}
    pictures = {path: name for path, name in names.items() if not is_skipped(path.name) and not name.endswith(".json")}
    return [path for path, name in pictures.items() if name and not (root / name).exists()]


def has_list(path: Path) -> bool:
    """Returns whether `read_list` finds a file."""
    return path.is_file() or _holder(path) is not None


def read_list(path: Path) -> bytes:
    """Reads a file that lists pictures: itself, or from an archive beside it, of its name or a .zip with the pictures.

    Raises:
        DataError: There is no such file, or the archive is damaged.
    """
    if path.is_file():
        return path.read_bytes()
    holder = _holder(path)
    if holder is not None:
        for member in members(holder, most_bytes=_MOST_BYTES_OF_LIST):
            if PurePosixPath(member.name).name == path.name:
                return member.read()
    raise DataError("a file of the data set is missing", value=path, remedy="download it, or correct the folder")


def members(archive: Path, *, most_bytes: int = _MOST_BYTES) -> Iterator[Member]:
    """Yields the files of an archive, in its order.

    Raises:
        DataError: The archive is damaged, or a member cannot be trusted.
    """
    reader = _members_of_zip if archive.name.lower().endswith(".zip") else _members_of_tar
    with _clear_error(archive):
        yield from reader(archive, most_bytes)


@contextmanager
def _clear_error(archive: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGED as error:
        problem = f"{archive} is damaged, cut off or no archive"
        raise DataError(problem, value=error, remedy="download it again") from error


def _members_of_tar(archive: Path, most_bytes: int) -> Iterator[Member]:
    """Yields the files of a tar, whose headers have limits: tarfile would read one of any length.

    Before Python 3.11.10 it also parses some in quadratic time.
    """
    # gzip checks the sum at the end; tarfile's own reader of streams does not.
    open_file: Callable[[Path, str], Any] = Path.open if archive.name.lower().endswith(".tar") else gzip.open
    with open_file(archive, "rb") as stream:
        records: dict[str, str] = {}
        while (info := _header(stream)) is not None:
            if info.isdir():
                records = {}
                continue
            begin = stream.tell()
            size = int(records.get("size", info.size))
            end = begin + -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
            if size < 0:
                raise tarfile.ReadError("a negative length")
            if info.type in _ABOUT_OTHERS:
                _require_trusted(archive, f"the header {info.name}", size, _MOST_BYTES_OF_HEADER)
                records |= _records(info.type, _read(stream, size))
            else:
                name = records.get("path", info.name)
                is_file = info.type in _FILES and "sparse" not in records
                _require_trusted(
                    archive, name, size, most_bytes, "" if is_file else "a link, a device or a sparse file"
                )
                records = {}

                def read(begin: int = begin, size: int = size) -> bytes:
                    with _clear_error(archive):
                        stream.seek(begin)
                        return _read(stream, size)

                yield Member(name, read)
            stream.seek(end)
        while stream.read(_READ_AHEAD):
            pass  # to the end, where gzip's sum stands


def _header(stream: BinaryIO) -> tarfile.TarInfo | None:
    """Returns the next header, None for the zeros at the end; one that is damaged, cut off or missing is an error."""
    try:
        return tarfile.TarInfo.frombuf(stream.read(tarfile.BLOCKSIZE), "utf-8", "surrogateescape")
    except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
        return None


def _read(stream: BinaryIO, num_bytes: int) -> bytes:
    data = stream.read(num_bytes)
    if len(data) != num_bytes:
        raise EOFError("it ends within a member")
    return data


def _records(kind: bytes, body: bytes) -> dict[str, str]:
    """Returns what a header says of the next member: path, size, and whether it is sparse."""
    if kind == tarfile.GNUTYPE_LONGNAME:
        return {"path": body.partition(b"\0")[0].decode("utf-8", "surrogateescape")}
    found = {}
    at = 0
    while kind in _PAX and at < len(body) and body[at]:  # "LENGTH KEY=VALUE\n"
        space = body.index(b" ", at, at + 20)
        end = at + int(body[at:space])
        if not space < end <= len(body):
            raise tarfile.ReadError("a record that is longer than its header")
        key, _, value = body[space + 1 : end - 1].partition(b"=")
        if key in {b"path", b"size"}:
            found[key.decode()] = value.decode("utf-8", "surrogateescape")
        elif key.startswith(b"GNU.sparse."):
            found["sparse"] = ""
        at = end
    return found


def _members_of_zip(archive: Path, most_bytes: int) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            if info.is_dir():
                continue
            why = "a link" if stat.S_ISLNK(info.external_attr >> 16) else "encrypted" if info.flag_bits & 1 else ""
            _require_trusted(archive, info.filename, info.file_size, most_bytes, why)

            def read(info: zipfile.ZipInfo = info) -> bytes:
                with _clear_error(archive), opened.open(info) as file:
                    return file.read()  # at most `file_size`, whatever was packed

            yield Member(info.filename, read)


def _require_trusted(archive: Path, name: str, num_bytes: int, most_bytes: int, why: str = "") -> None:
    if name.startswith(("/", "\\")) or ".." in PurePosixPath(name.replace("\\", "/")).parts or "\0" in name:
        why = "a name outside of the folder"
    elif num_bytes > most_bytes:
        why = f"{num_bytes / 1e6:,.0f} MB, more than {most_bytes / 1e6:,.0f}"
    if why:
        remedy = "take the archive from its publisher; botanify reads it no further"
        raise DataError(f"{archive} holds a member that is refused", value=f"{name}: {why}", remedy=remedy)


def _holder(path: Path) -> Path | None:
    """Returns the archive that holds a file which would lie beside it."""
    root = path.parent
    named = (root / f"{path.name}{suffix}" for suffix in SUFFIXES)
    if found := next((each for each in named if each.is_file()), None):
        return found
    zips = [each for each in archives_of(root) if each.suffix.lower() == ".zip"]
    return next((each for each in zips if path.name in _names_in_zip(each)), None)


@lru_cache(maxsize=8)
def _names_in_zip(archive: Path) -> frozenset[str]:
    with _clear_error(archive), zipfile.ZipFile(archive) as opened:
        return frozenset(PurePosixPath(name).name for name in opened.namelist())
