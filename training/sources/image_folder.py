"""A folder with one folder of pictures a class, named `Common (Scientific)`, scientific alone, or common alone."""

import re
from collections.abc import Iterator
from pathlib import Path

from models.errors import DataError
from training.sources.record import PictureRecord

# Files that are clearly no attempt at a picture; anything else is read and judged by its bytes.
_IGNORED_SUFFIXES = frozenset({".txt", ".csv", ".json", ".md", ".toml", ".parquet", ".db", ".ini"})
_COMMON_AND_SCIENTIFIC = re.compile(r"^(?P<common>.+?)\s*\((?P<scientific>[^()]+)\)$")


def read_image_folder(root: Path, licence: str = "") -> Iterator[PictureRecord]:
    """Yields the pictures of a folder, sorted by path.

    Args:
        root: Folder whose folders are the classes.
        licence: Licence of all its pictures; empty means unknown.

    Raises:
        DataError: The folder is missing or holds no class folder with a file.
    """
    if not root.is_dir():
        raise DataError("no such folder of pictures", value=root, remedy="give a folder with one folder a class")
    found = False
    for folder in sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")):
        scientific, common = split_class_name(folder.name)
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix.lower() not in _IGNORED_SUFFIXES and not path.name.startswith("."):
                found = True
                yield PictureRecord(
                    path=path, original_name=scientific, original_id=folder.name, common_name=common, licence=licence
                )
    if not found:
        raise DataError(
            "the folder holds no pictures",
            value=root,
            limit="one folder a class, with pictures inside",
            remedy="point to the folder above the class folders",
        )


def split_class_name(name: str) -> tuple[str, str]:
    """Takes a class folder's name apart.

    Returns:
        Scientific and common name. "Sunflower (Helianthus annuus)" gives both; a name without brackets is its own
        scientific name, with no common name.
    """
    match = _COMMON_AND_SCIENTIFIC.match(name)
    if match is None:
        return name.replace("_", " ").strip(), ""
    return match["scientific"].strip(), match["common"].strip()
