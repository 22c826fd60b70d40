"""Copies of the photographs, or links to them, in a folder for each name."""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from serving.folder.photographs import LocalFolder, Photograph, Store
from serving.folder.plants import Plant
from serving.folder.rows import Row

SortRank = Literal["species", "genus", "family"]
_UNSAFE: Final = re.compile(r"[^\w .×-]")


def sort_photographs(
    rows: Iterable[Row], plants: Mapping[str, Plant], store: Store, target: Path, rank: SortRank, *, links: bool
) -> None:
    """Puts each photograph into the folder of its name, or of why it has none; what is there stays.

    Args:
        rows: The rows of the table.
        plants: Name of each plant -> its photographs.
        store: Where the photographs are.
        target: Folder for the folders.
        rank: Whose names the folders have.
        links: Make symbolic links to the files of a local folder in place of copies.
    """
    for row in rows:
        folder = target / folder_name(row, rank)
        for photograph in plants[row["group"]].photographs:
            with suppress(FileNotFoundError):  # a row says that it is missing
                _put(photograph, store, folder, links=links)


def folder_name(row: Row, rank: SortRank) -> str:
    """Returns the name at a rank, or "_uncertain", "_not_a_plant" or "_failed"."""
    name = row["verdict_name"] if rank == row["verdict_rank"] == "species" else row.get(rank)
    if name is None:
        rejected = row["verdict_rank"] == "not_a_plant"
        return "_failed" if row["status"] == "failed" else "_not_a_plant" if rejected else "_uncertain"
    return _UNSAFE.sub("_", name).strip(" .") or "_"


def _put(photograph: Photograph, store: Store, folder: Path, *, links: bool) -> None:
    path = folder / photograph.path.strip("/").replace("/", "__")
    if photograph.num_bytes < 0 or path.is_symlink() or path.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    if links and isinstance(store, LocalFolder):
        path.symlink_to((store.root / photograph.path).resolve())
        return
    unfinished = path.with_name(f".{path.name}.part")
    unfinished.write_bytes(store.read(photograph.path, photograph.num_bytes))
    unfinished.replace(path)
