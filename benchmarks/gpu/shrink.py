"""Program: copies a folder of photographs with JPEG files reduced, to be taken along to a machine without a network.

python benchmarks/gpu/shrink.py FOLDER --out COPY

Files that are no JPEG, such as labels.csv, are copied as they are.
"""

import shutil
import sys
from pathlib import Path
from typing import Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import msgspec
import tyro

from models.errors import DataError
from training.loading.shards.encode import reduce
from training.program import run_program

_JPEG: Final = (".jpg", ".jpeg")


class Shrink(msgspec.Struct, frozen=True, kw_only=True):
    """Copies a folder of photographs with JPEG files reduced."""

    folder: tyro.conf.Positional[Path]
    """The folder, with all folders below it."""
    out: Path
    """The copy; its folder must not exist yet."""
    short_side_px: int = 256
    """Larger pictures are reduced to this short side, px."""
    quality: int = 75
    """JPEG quality of the copies."""


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: shrink(tyro.cli(Shrink, description=__doc__)))


def shrink(command: Shrink) -> None:
    """Writes the copy.

    Raises:
        DataError: The folder is missing, or there is a copy already.
        PictureError: A JPEG file does not decode.
    """
    if not command.folder.is_dir():
        raise DataError("there is no such folder", value=command.folder, remedy="correct its name")
    if command.out.exists():
        raise DataError("there is a copy already", value=command.out, remedy="remove it, or choose another folder")
    files = [path for path in sorted(command.folder.rglob("*")) if path.is_file()]
    for path in files:
        copy = command.out / path.relative_to(command.folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() in _JPEG:
            reduce(path.read_bytes(), command.short_side_px).save(copy, "JPEG", quality=command.quality, comment="")
        else:
            shutil.copyfile(path, copy)
    size = sum(path.stat().st_size for path in command.out.rglob("*") if path.is_file())
    print(f"Written: {command.out} ({len(files):,} files, {size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
