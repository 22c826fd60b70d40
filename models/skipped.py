"""What no search for pictures looks at: hidden folders and files, bins, and thumbnails that programs have made."""

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

# Folders of Synology, QNAP, Buffalo, Windows, Android, macOS and Linux, in small letters.
_FOLDERS: Final = frozenset({
    "@eadir", "@__thumb", "@tmp", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "~snapshot",
    "trashbox", "$recycle.bin", "recycler", "recycled", "system volume information", "lost.dir", "__macosx",
    "network trash folder", "temporary items", "lost+found",
})  # fmt: skip
_PREVIEWS: Final = ".lrdata"  # Lightroom's
_LIBRARIES: Final = (".photoslibrary", ".photolibrary", ".migratedphotolibrary", ".aplibrary")  # Apple's
_ORIGINALS: Final = frozenset({"originals", "masters"})
_NO_MEDIA: Final = ".nomedia"  # Android's sign that the pictures of a folder are not meant
NO_PICTURES: Final = frozenset({
    ".txt", ".csv", ".json", ".md", ".toml", ".html", ".parquet", ".db", ".ini", ".xmp",
})  # fmt: skip
"""Ends of names that training does not open; any other file may be a picture, whatever its name."""


def is_skipped(name: str, above: str = "") -> bool:
    """Returns whether a file or folder is skipped, by its name and that of the folder above it."""
    small = name.lower()
    of_library = above.lower().endswith(_LIBRARIES) and small not in _ORIGINALS
    return small.startswith(".") or small in _FOLDERS or small.endswith(_PREVIEWS) or of_library


def has_no_media(folder: str | os.PathLike[str]) -> bool:
    """Returns whether a folder says that its pictures are not meant."""
    return os.path.lexists(Path(folder, _NO_MEDIA))


def walk(root: Path, onerror: Callable[[OSError], object] | None = None) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walks through a folder as `os.walk` does, sorted, without what is skipped; the root itself never is."""
    for folder, subfolders, files in os.walk(root, onerror=onerror):
        above = Path(folder).name
        subfolders[:] = sorted(
            name for name in subfolders if not is_skipped(name, above) and not has_no_media(f"{folder}/{name}")
        )
        yield folder, subfolders, sorted(name for name in files if not is_skipped(name, above))


def not_skipped(paths: Sequence[str]) -> Iterator[str]:
    """Yields the paths in a bucket of which no part is skipped."""
    silent = {path.removesuffix(_NO_MEDIA) for path in paths if path.endswith(f"/{_NO_MEDIA}")}
    for path in paths:
        parts = path.split("/")
        above = accumulate(f"{folder}/" for folder in parts[:-1])
        if not any(map(is_skipped, parts, ["", *parts])) and silent.isdisjoint(above):
            yield path
