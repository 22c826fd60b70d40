"""Reference pictures of a bundle: a few small pictures of each taxon, to compare a photograph with.

They lie in one ZIP file, a part of the bundle that its hash verifies: `index.json` lists them, each with its author and
license, in the order in which they are shown.
"""

import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from models.errors import BundleError

EXAMPLES_PART: Final = "examples"
EXAMPLES_FILE: Final = "examples.zip"
_INDEX: Final = "index.json"
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
    """Name of the data set."""


class Examples:
    """The reference pictures of a bundle.

    Raises:
        BundleError: The file is not a ZIP file with a list of pictures that it holds.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with zipfile.ZipFile(path) as archive:
                found = msgspec.json.decode(archive.read(_INDEX), type=list[Example])
                missing = {example.file for example in found} - set(archive.namelist())
        except (zipfile.BadZipFile, KeyError, msgspec.DecodeError) as error:
            raise BundleError.unreadable(path, error) from error
        if missing:
            raise BundleError.unreadable(path, f"it lacks {min(missing)}")
        self._by_taxon: dict[str, list[Example]] = {}
        for example in found:
            self._by_taxon.setdefault(example.taxon_id, []).append(example)

    def of(self, taxon_id: str) -> list[Example]:
        """Returns the pictures of a taxon, the most typical first; none if there are none."""
        return self._by_taxon.get(taxon_id, [])

    def picture(self, example: Example) -> bytes:
        """Returns the bytes of a picture, WebP."""
        with zipfile.ZipFile(self._path) as archive:
            return archive.read(example.file)


def write_examples(path: Path, pictures: Iterable[tuple[Example, bytes]]) -> int:
    """Writes the file, in which the pictures of a taxon keep their order; returns the number of pictures."""
    listed = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:  # WebP does not become smaller
        for example, picture in pictures:
            listed.append(example)
            archive.writestr(zipfile.ZipInfo(example.file, _UNDATED), picture)
        archive.writestr(zipfile.ZipInfo(_INDEX, _UNDATED), msgspec.json.format(msgspec.json.encode(listed)))
    return len(listed)
