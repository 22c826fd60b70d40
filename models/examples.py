"""Reference pictures of a bundle: a few small pictures of each taxon, to compare a photograph with.

They lie in one ZIP file, a part of the bundle that its hash verifies: `index.json` lists them, each with its author and
license, in the order in which they are shown. Members are stored, since a deflated one could take any memory.
"""

import hashlib
import threading
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from models.errors import BundleError

EXAMPLES_PART: Final = "examples"
EXAMPLES_FILE: Final = "examples.zip"
_INDEX: Final = "index.json"
_MAX_BYTES: Final = 1_000_000  # of a picture; those that an export makes have 10 to 20 kB
_UNDATED: Final = (1980, 1, 1, 0, 0, 0)  # so that equal pictures make equal files


class Example(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One picture."""

    taxon_id: str
    file: str
    """Name in the ZIP file."""
    author: str
    """Empty if unknown."""
    license: str
    """Short identifier, such as CC-BY-4.0."""
    source: str
    """Name of the data set, or where the picture was published."""


class Examples:
    """The reference pictures of a bundle; the file stays open, so that a later one at its path is never shown.

    Args:
        path: The file.
        sha256: Its hash in the bundle's record.

    Raises:
        BundleError: The file has another hash, or is not a ZIP file with a list of pictures that it holds.
    """

    def __init__(self, path: Path, sha256: str) -> None:
        self._path = path
        self._lock = threading.Lock()  # a ZipFile counts its readers without one
        try:
            self._archive = zipfile.ZipFile(path)
            stream: Any = self._archive.fp
            stream.seek(0)
            if hashlib.file_digest(stream, "sha256").hexdigest() != sha256:
                raise ValueError("its SHA-256 is not the recorded one")
            found = msgspec.json.decode(self._read(_INDEX), type=list[Example])
            for name in dict.fromkeys(example.file for example in found):
                if (size := self._archive.getinfo(name).file_size) > _MAX_BYTES:
                    raise ValueError(f"{name} has {size:,} bytes, where {_MAX_BYTES:,} are allowed")
                picture = self._read(name)
                if (picture[:4], picture[8:12]) != (b"RIFF", b"WEBP"):
                    raise ValueError(f"{name} is not a WebP picture")
        except Exception as error:  # zipfile raises a dozen types for a damaged file
            raise BundleError.unreadable(path, error) from error
        self._by_taxon: dict[str, list[Example]] = {}
        for example in found:
            self._by_taxon.setdefault(example.taxon_id, []).append(example)

    def of(self, taxon_id: str) -> list[Example]:
        """Returns the pictures of a taxon, the most typical first; none if there are none."""
        return self._by_taxon.get(taxon_id, [])

    def picture(self, example: Example) -> bytes:
        """Returns the bytes of a picture, WebP; a BundleError if the file was written over meanwhile."""
        try:
            return self._read(example.file)
        except Exception as error:
            raise BundleError.unreadable(self._path, error) from error

    def _read(self, name: str) -> bytes:
        """Returns a member, whose CRC is checked."""
        member = self._archive.getinfo(name)
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{name} is compressed")
        with self._lock:
            return self._archive.read(member)


def write_examples(path: Path, pictures: Iterable[tuple[Example, bytes]]) -> int:
    """Writes the file, in which the pictures of a taxon keep their order; returns the number of pictures."""
    listed = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:  # WebP does not become smaller
        for example, picture in pictures:
            listed.append(example)
            archive.writestr(zipfile.ZipInfo(example.file, _UNDATED), picture)
        archive.writestr(zipfile.ZipInfo(_INDEX, _UNDATED), msgspec.json.format(msgspec.json.encode(listed)))
    return len(listed)
