"""Reads a folder with one folder of pictures for each class, named `Common (Scientific)`, or by one of the names."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from models.errors import DataError
from training.dataset.sources.record import LeftOut, PictureRecord, SourceClass, SourceContents

# Files that are not decoded; any other file is decoded, whatever its name.
_NO_PICTURES: Final = frozenset({".txt", ".csv", ".json", ".md", ".toml", ".parquet", ".db", ".ini"})
_COMMON_AND_SCIENTIFIC: Final = re.compile(r"^(?P<common>.+?)\s*\((?P<scientific>[^()]+)\)$")


def read_image_folder(name: str, root: Path, default_license: str = "") -> SourceContents:
    """Reads a folder, sorted by path.

    Hidden files, and files beside the class folders, such as a list of labels, are ignored.

    Args:
        name: Name of the source in output keys.
        root: Folder whose folders are the classes.
        default_license: License of all its pictures; empty if unknown.

    Raises:
        DataError: The folder is missing, has no class folder with a picture, or a name in it is not UTF-8.
    """
    if not root.is_dir():
        raise DataError("no such folder of pictures", value=root, remedy="give a folder with one folder for each class")
    contents = SourceContents(root, [], [])
    for folder in _visible(root):
        if folder.is_dir():
            _read_class(name, folder, default_license, contents)
    if not contents.records:
        raise DataError(
            "the folder holds no pictures",
            value=root,
            limit="one folder for each class, with pictures inside",
            remedy="point to the folder above the class folders",
        )
    return contents


def split_class_name(name: str) -> tuple[str, str]:
    """Splits the name of a class folder.

    Returns:
        Scientific and common name. "Sunflower (Helianthus annuus)" gives both; a name without brackets is returned as
        the scientific name.
    """
    match = _COMMON_AND_SCIENTIFIC.match(name)
    if match is None:
        return name.replace("_", " ").strip(), ""
    return match["scientific"].strip(), match["common"].strip()


def _read_class(name: str, folder: os.DirEntry[str], default_license: str, contents: SourceContents) -> None:
    scientific, common = split_class_name(folder.name)
    plant = SourceClass(class_id=folder.name, name=scientific, common_name=common)
    num_before = len(contents.records)
    for path, entry in _below(folder, folder.name):
        why_not = _why_no_picture(entry)
        if why_not:
            contents.left_out.append(LeftOut(picture=f"{name}:{path}", code="not_a_picture", reason=why_not))
        else:
            contents.records.append(PictureRecord(path=path, plant=plant, license=default_license))
    if len(contents.records) == num_before:
        reason = "the class folder holds no pictures"
        contents.left_out.append(
            LeftOut(picture=f"{name}:{folder.name}", code="no_pictures", reason=reason, num_pictures=0)
        )


def _why_no_picture(entry: os.DirEntry[str]) -> str:
    suffix = Path(entry.name).suffix.lower()
    if suffix in _NO_PICTURES:
        return f"a {suffix} file is not a picture"
    return "" if entry.is_file() else "neither a file nor a folder, or a broken link"


def _below(folder: os.DirEntry[str], path: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yields all files below a folder with their paths; links to folders are not followed, as they may form a cycle."""
    for entry in _visible(folder):
        below = f"{path}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _below(entry, below)
        else:
            yield below, entry


def _visible(folder: os.PathLike[str]) -> list[os.DirEntry[str]]:
    """Returns the entries that are not hidden, sorted by name."""
    with os.scandir(folder) as listing:
        entries = sorted((entry for entry in listing if not entry.name.startswith(".")), key=lambda entry: entry.name)
    for entry in entries:
        try:
            entry.name.encode()
        except UnicodeEncodeError as error:
            shown = os.fsencode(entry.path).decode("utf-8", "backslashreplace")
            raise DataError("a name is not UTF-8", value=shown, remedy="rename it") from error
    return entries
