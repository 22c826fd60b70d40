"""Reads a folder with one folder of pictures for each class, named `Common (Scientific)`, or by one of the names.

Folders of iNaturalist 2021, which name the kingdom first, are read as with its JSON files: plants alone.

The class folders may stand in folders for the splits: `train`, `val` (or `valid`, `validation`) and `test`.
"""

import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from models.errors import DataError
from models.names import split_class_name, without_number
from models.skipped import NO_PICTURES, has_no_media, is_skipped
from training.dataset.archive import members, stem
from training.dataset.sources.record import SPLIT_NAMES, LeftOut, PictureRecord, SourceClass, SourceContents, Split

# Class folders of iNaturalist 2021, the `image_dir_name` of its JSON files.
_INATURALIST: Final = re.compile(
    r"(?:\d+[ _])?(?P<kingdom>Animalia|Chromista|Fungi|Plantae|Protozoa)[ _][^ _]+[ _][^ _]+[ _]"
    r"(?P<order>[^ _]+)[ _](?P<family>[^ _]+)[ _](?P<genus>[^ _]+)[ _](?P<epithet>.+)"
)


def read_image_folder(name: str, root: Path, default_license: str = "") -> SourceContents:
    """Reads a folder, or an archive of one, sorted by path.

    The folders of an archive that hold nothing but the next one are walked through. If all folders are then named as
    splits, the class folders are those inside, and the splits stay; without `test`, the pictures of `train` have no
    split, so that a test split can be cut from them. What `models/skipped.py` skips, and files beside the class
    folders, such as a list of labels, are ignored.

    Raises:
        DataError: The folder is missing, has no class folder with a picture, a class folder holds pictures only in
            further folders, or a name in it is not UTF-8.
    """
    if root.is_file() and stem(root):
        return _of_archive(name, root, default_license)
    if not root.is_dir():
        raise DataError("no such folder of pictures", value=root, remedy="give a folder with one folder for each class")
    if (root / "meta.xml").is_file():
        raise DataError(
            "a Darwin Core archive has no class folders", value=root, remedy="read it with `prepare.py gbif`"
        )
    above = root
    root = _walked(root)
    note = f"{name}: the classes are the folders in {root.relative_to(above)}, since {above.name} holds nothing else."
    contents = SourceContents(root, [], [], (note,) if root != above else ())
    parts = list(_parts(name, root, contents))
    plants = _plants(folder.name for _, _, folders in parts for folder in folders)
    for prefix, split, folders in parts:
        for folder in folders:
            path = f"{prefix}{folder.name}"
            ranks = _INATURALIST.fullmatch(folder.name)
            if ranks and ranks["kingdom"] != "Plantae":
                reason = f"it belongs to kingdom {ranks['kingdom']}; only Plantae is read"
                count = sum(not _why_no_picture(entry) for _, entry in _below(folder, path))
                contents.left_out.append(
                    LeftOut(picture=f"{name}:{path}", code="not_a_plant", reason=reason, num_pictures=count)
                )
                continue
            template = PictureRecord(path="", plant=plants[folder.name], split=split, license=default_license)
            _read_class(name, folder, path, template, contents)
    if not contents.records:
        loose = _num_loose(root)
        raise DataError(
            f"the folder holds {loose:,} pictures but no class folders" if loose else "the folder holds no pictures",
            value=root,
            limit="one folder for each class, with pictures inside",
            remedy="move the pictures into a folder for each class, or list them for `prepare.py table`"
            if loose
            else "point to the folder above the class folders",
        )
    return contents


def _of_archive(name: str, archive: Path, default_license: str) -> SourceContents:
    """Reads the names of an archive; a folder of empty files stands for it, so that there are no other rules."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, stem(archive))
        for member in members(archive):
            path = root / member.name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.open("ab").close()
            except OSError as error:  # a name of 256 bytes, or one that is a file's and a folder's
                problem = f"{archive} holds a member whose name no file can have"
                remedy = "take the archive from its publisher, or pack it again with other names"
                raise DataError(problem, value=f"{member.name[:100]}: {error.strerror}", remedy=remedy) from error
        try:
            contents = read_image_folder(name, root, default_license)
        except DataError as error:

            def told(text: object) -> str:
                return str(text).replace(folder, str(archive.parent))

            problem = f"{archive}, once it is unpacked: {error.problem}"
            raise DataError(problem, value=told(error.value), limit=error.limit, remedy=told(error.remedy)) from error
    return msgspec.structs.replace(contents, root=archive, archives=(archive,))


def _walked(root: Path) -> Path:
    """Returns the first folder with several folders or that of a split; `root` if pictures come before it."""
    folder = root
    while True:
        folders = [entry for entry in _visible(folder) if entry.is_dir(follow_symlinks=False)]
        if _num_loose(folder) or not folders:
            return root
        if len(folders) > 1 or folders[0].name.lower() in SPLIT_NAMES:
            return folder
        folder = Path(folders[0].path)


def _parts(
    name: str, root: Path, contents: SourceContents
) -> Iterator[tuple[str, Split | None, list[os.DirEntry[str]]]]:
    """Yields path prefix, split and class folders: once for each split, or once for all without splits."""
    folders = [entry for entry in _visible(root) if entry.is_dir()]
    plain = (folder.name.lower().removeprefix("2021_").removesuffix("_mini") for folder in folders)  # iNaturalist 2021
    splits = [*map(SPLIT_NAMES.get, plain)]
    if not splits or None in splits:
        yield "", None, folders
        return
    for folder, split in zip(folders, splits, strict=True):
        if loose := _num_loose(folder):
            reason = f"{loose:,} pictures lie beside the class folders of this split"
            contents.left_out.append(
                LeftOut(picture=f"{name}:{folder.name}", code="no_class", reason=reason, num_pictures=loose)
            )
        class_folders = [entry for entry in _visible(folder) if entry.is_dir()]
        yield f"{folder.name}/", split if split != "train" or "test" in splits else None, class_folders


def _plants(folders: Iterable[str]) -> dict[str, SourceClass]:
    """Returns the class of each folder name; its number is dropped, unless it alone tells two names apart."""
    plain = {folder: without_number(folder) for folder in folders}
    num_alike = Counter(plain.values())
    plants = {}
    for folder, name in plain.items():
        if ranks := _INATURALIST.fullmatch(folder):
            plants[folder] = SourceClass(
                class_id=folder,
                name=f"{ranks['genus']} {ranks['epithet'].replace('_', ' ')}",
                is_scientific=True,
                genus=ranks["genus"],
                family=ranks["family"],
                order=ranks["order"],
            )
        else:
            scientific, common = split_class_name(name if num_alike[name] == 1 else folder)
            plants[folder] = SourceClass(class_id=folder, name=scientific, common_name=common)
    return plants


def _read_class(
    name: str, folder: os.DirEntry[str], path: str, template: PictureRecord, contents: SourceContents
) -> None:
    """Adds the pictures of one class; `template` is their record without a path."""
    found = []
    for below, entry in _below(folder, path):
        why_not = _why_no_picture(entry)
        if why_not:
            contents.left_out.append(LeftOut(picture=f"{name}:{below}", code="not_a_picture", reason=why_not))
        else:
            found.append(msgspec.structs.replace(template, path=below))
    if not found:
        reason = "the class folder holds no pictures"
        contents.left_out.append(LeftOut(picture=f"{name}:{path}", code="no_pictures", reason=reason, num_pictures=0))
    elif all("/" in record.path.removeprefix(f"{path}/") for record in found):
        raise DataError(
            "a class folder holds its pictures only in further folders, so it may be several classes",
            value=folder.path,
            limit="pictures directly in each class folder",
            remedy=f"if its folders are the classes, prepare {folder.path}; otherwise move the pictures up into it",
        )
    contents.records.extend(found)


def _num_loose(folder: os.PathLike[str]) -> int:
    """Returns the number of pictures that lie directly in a folder."""
    return sum(not entry.is_dir() and not _why_no_picture(entry) for entry in _visible(folder))


def _why_no_picture(entry: os.DirEntry[str]) -> str:
    suffix = Path(entry.name).suffix.lower()
    if suffix in NO_PICTURES:
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
    """Returns the entries that are not skipped, sorted by name."""
    above = Path(folder).name
    with os.scandir(folder) as listing:
        entries = sorted((each for each in listing if not is_skipped(each.name, above)), key=lambda entry: entry.name)
    entries = [entry for entry in entries if not (entry.is_dir() and has_no_media(entry))]
    for entry in entries:
        try:
            entry.name.encode()
        except UnicodeEncodeError as error:
            shown = os.fsencode(entry.path).decode("utf-8", "backslashreplace")
            raise DataError("a name is not UTF-8", value=shown, remedy="rename it") from error
    return entries
