"""A folder with one folder of pictures a class, named `Common (Scientific)`, scientific alone, or common alone."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from models.errors import DataError
from training.dataset.sources.record import LeftOut, PictureRecord, SourceClass, SourceContents

# Files that are clearly no attempt at a picture; anything else is read and judged by its bytes.
_NO_PICTURES: Final = frozenset({".txt", ".csv", ".json", ".md", ".toml", ".parquet", ".db", ".ini"})
_COMMON_AND_SCIENTIFIC: Final = re.compile(r"^(?P<common>.+?)\s*\((?P<scientific>[^()]+)\)$")


def read_image_folder(name: str, root: Path, default_license: str = "") -> SourceContents:
    """Reads a folder, sorted by path.

    What is hidden is passed over, and so are files above the class folders, such as a list of labels.

    Args:
        name: What the source is called in output keys.
        root: Folder whose folders are the classes.
        default_license: License of all its pictures; empty means unknown.

    Raises:
        DataError: The folder is missing, holds no class folder with a picture, or has a name that is no UTF-8.
    """
    if not root.is_dir():
        raise DataError("no such folder of pictures", value=root, remedy="give a folder with one folder a class")
    reading = SourceContents([], [])
    for folder in _visible(root):
        if folder.is_dir():
            _read_class(name, folder, default_license, reading)
    if not reading.records:
        raise DataError(
            "the folder holds no pictures",
            value=root,
            limit="one folder a class, with pictures inside",
            remedy="point to the folder above the class folders",
        )
    return reading


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


def _read_class(name: str, folder: os.DirEntry[str], default_license: str, reading: SourceContents) -> None:
    scientific, common = split_class_name(folder.name)
    plant = SourceClass(class_id=folder.name, name=scientific, common_name=common)
    num_before = len(reading.records)
    for path, entry in _below(folder, folder.name):
        why_not = _why_no_picture(entry)
        if why_not:
            reading.left_out.append(LeftOut(picture=f"{name}:{path}", code="not_a_picture", reason=why_not))
        else:
            reading.records.append(PictureRecord(path=path, plant=plant, license=default_license))
    if len(reading.records) == num_before:
        reason = "the class folder holds no pictures"
        reading.left_out.append(
            LeftOut(picture=f"{name}:{folder.name}", code="no_pictures", reason=reason, num_pictures=0)
        )


def _why_no_picture(entry: os.DirEntry[str]) -> str:
    suffix = Path(entry.name).suffix.lower()
    if suffix in _NO_PICTURES:
        return f"a {suffix} file is no picture"
    return "" if entry.is_file() else "neither a file nor a folder, or a link that leads to no file"


def _below(folder: os.DirEntry[str], path: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """All files below a folder, each with its path; links to folders are not followed, as they may form a circle."""
    for entry in _visible(folder):
        below = f"{path}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _below(entry, below)
        else:
            yield below, entry


def _visible(folder: os.PathLike[str]) -> list[os.DirEntry[str]]:
    """What is not hidden, by name."""
    with os.scandir(folder) as listing:
        entries = sorted((entry for entry in listing if not entry.name.startswith(".")), key=lambda entry: entry.name)
    for entry in entries:
        try:
            entry.name.encode()
        except UnicodeEncodeError as error:
            shown = os.fsencode(entry.path).decode("utf-8", "backslashreplace")
            raise DataError("a name is no UTF-8", value=shown, remedy="rename it") from error
    return entries
