"""Copies of the photographs, in a folder for each name."""

import hashlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from models.errors import BotanifyError, InputError, without_password
from serving.folder.photographs import Photograph, Store, is_bucket
from serving.folder.plants import Plant
from serving.folder.rows import Row

_UNSAFE: Final = re.compile(r"[^\w .×-]")
_MOST_BYTES: Final = 200  # of a name; file systems allow 255


def require_outside(target: Path, photographs: str) -> None:
    """Checks that the copies will not be found as photographs by the next run.

    Raises:
        InputError: The folder for the copies is in the folder of photographs.
    """
    if not is_bucket(photographs) and target.resolve().is_relative_to(Path(photographs).resolve()):
        raise InputError(
            "--copy-to is inside the folder of photographs, where the next run would find the copies",
            value=target,
            limit=f"a folder outside {photographs}",
            remedy="choose another folder",
        )


def copy_photographs(plants: Iterable[Plant], rows: Iterable[Row], store: Store, target: Path) -> None:
    """Puts the photographs of each plant into the folder of its verdict's name, or of why it has none.

    What is there stays. The rows are those of the plants, in the same order.

    Says on standard error how many could not be put there, and why the first one could not.
    """
    problems: list[str] = []
    for plant, row in zip(plants, rows, strict=True):
        for photograph in plant.photographs:
            try:
                _copy(photograph, store, target / folder_name(row))
            except (BotanifyError, OSError) as error:
                problems.append(without_password(f"{photograph.path}: {error}"))
    if problems:
        sys.stderr.write(f"warning: {len(problems):,} photographs are not in {target}, such as {problems[0]}\n")


def folder_name(row: Row) -> str:
    """Returns the name of the verdict, or "_uncertain", "_not_a_plant" or "_failed"."""
    if row["status"] == "failed":
        return "_failed"
    if row["verdict_name"] is None:
        return "_not_a_plant" if row["verdict_rank"] == "not_a_plant" else "_uncertain"
    return _UNSAFE.sub("_", row["verdict_name"]).strip(" .") or "_"


def file_name(path: str) -> str:
    """Returns the name of the copy of a photograph; no two paths have the same one."""
    flat = path.replace("/", "__")
    if flat.replace("__", "/") == path and not path.startswith("/") and len(flat.encode()) <= _MOST_BYTES:
        return flat
    end = flat.encode()[-_MOST_BYTES:].decode(errors="ignore").lstrip("_")
    return f"{hashlib.sha256(path.encode()).hexdigest()[:8]}__{end}"


def _copy(photograph: Photograph, store: Store, folder: Path) -> None:
    path = folder / file_name(photograph.path)
    if photograph.num_bytes < 0 or path.is_symlink() or path.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.part")
    try:
        unfinished.write_bytes(store.read(photograph.path))
        unfinished.replace(path)
    finally:  # the disk may be full
        unfinished.unlink(missing_ok=True)
