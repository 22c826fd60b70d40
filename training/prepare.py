"""Program: turns data sets into training data, and packs it.

Commands:
  python training/prepare.py folder DIR --out DATA          a folder with one folder of pictures for each class
  python training/prepare.py table LIST.csv --out DATA      a CSV list
  python training/prepare.py sources data_5337 --out DATA   several data sets, listed in a TOML file
  python training/prepare.py pack DATA --out PACKED         packs pictures into shards, for fast loading
  python training/prepare.py verify PACKED                  compares every stored picture with its hash
  python training/prepare.py negatives DIR --out LIST.csv   lists what is no plant in an iNaturalist 2021 folder
  python training/prepare.py herbarium DIR                  draws data sets of invented plants, for rehearsals
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from models.program import explain_missing_packages
from training.program import INSTALL, run_program

explain_missing_packages(INSTALL)

import msgspec
import tyro

from training.dataset.assemble import assemble
from training.dataset.collection import Collection, read_collection
from training.dataset.manifest import MANIFEST_FILE
from training.dataset.other_kingdoms import Negatives, write_negatives
from training.dataset.report import HTML_FILE, Report, advice
from training.herbarium import Herbarium, write_herbarium
from training.loading.shards import Pack, Verify, pack, verify
from training.toml_file import check_section

_MOST_LISTED: Final = 20


class Preparation(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the commands that prepare pictures."""

    out: Path
    """Folder for manifest, names and report."""
    workers: int = os.cpu_count() or 1
    """Processes that decode pictures."""
    shards: Path | None = None
    """Also pack the pictures into this folder, like the command `pack`."""


class OneSource(Preparation, frozen=True, kw_only=True):
    """Options of the commands for one data set."""

    source: str = ""
    """Name of the data set in output keys; default: name of the folder."""
    license: Annotated[str, tyro.conf.arg(aliases=["--licence"])] = ""
    """License of the pictures for which the data set gives none."""
    validation_share: float = 0.1
    """Share of each class's training pictures that becomes validation, unless the data set has a validation split."""
    calibration_share: float = 0.0
    """Share of each class's training pictures that the temperature is fitted on; 0 fits it on validation."""
    test_share: float = 0.1
    """Share of each class's pictures that becomes test, unless the data set has a test split."""
    seed: int = 0
    """Seed of the random choice of these pictures."""
    near_copy_bits: int = 4
    """Pictures whose 64-bit perceptual hashes differ in at most this many bits go to one split."""


class Folder(OneSource, frozen=True, kw_only=True):
    """A folder with one folder of pictures for each class, named Common (Scientific), or by one of the two names.

    The class folders may stand in train, val and test.
    """

    pictures: tyro.conf.Positional[Path]
    """The folder above the class folders."""


class Table(OneSource, frozen=True, kw_only=True):
    """A CSV list with columns path and scientific_name or common_name, and optionally split, group and more."""

    table: tyro.conf.Positional[Path]
    """The list; paths in it are relative to its folder."""
    path_column: str = ""
    """Its column of paths; default: path, or one of its usual spellings."""
    name_column: str = ""
    """Its column of names, scientific or common; default: scientific_name, or common_name where that is missing."""


class Sources(Preparation, frozen=True, kw_only=True):
    """Several data sets, listed with their rules in a TOML file."""

    collection: tyro.conf.Positional[Path]
    """A TOML file, or the name of one in training/recipes."""
    root: Path = Path()
    """Folder that the data sets' roots are relative to."""


Command = Folder | Table | Sources | Pack | Verify | Negatives | Herbarium


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: run(tyro.cli(Command, description=__doc__)))


def run(command: Command) -> None:
    """Runs one command.

    Raises:
        BotanifyError: An error that the user can correct.
    """
    match command:
        case Pack():
            pack(command)
        case Verify():
            verify(command)
        case Negatives():
            listed = ", ".join(f"{count:,} {split}" for split, count in write_negatives(command).items())
            print(f"Pictures without a plant: {listed}. Next: --negatives {command.out}")
        case Herbarium():
            write_herbarium(command)
        case _:
            prepare(command)


def prepare(command: Folder | Table | Sources) -> Report:
    """Prepares the data sets that the command names.

    Raises:
        DataError: A data set cannot be used, or has no usable picture.
    """
    if isinstance(command, Sources):
        collection, base = read_collection(command.collection), command.root
    else:
        collection, base = _collection_of_one(command), Path()
    report = assemble(collection, base, command.out, command.workers)
    _print_report(report, command.out)
    if command.shards is not None:
        pack(Pack(data=command.out, out=command.shards, workers=command.workers))
    return report


def _collection_of_one(command: Folder | Table) -> Collection:
    if isinstance(command, Folder):
        layout, root, folder, columns = "image_folder", command.pictures.resolve(), command.pictures.resolve(), {}
    else:
        layout, root, folder = "table", command.table.resolve(), command.table.resolve().parent
        given = {"path": command.path_column, "scientific_name": command.name_column}
        columns = {ours: theirs for ours, theirs in given.items() if theirs}
    name = command.source or folder.name.replace(":", "-")
    content = {
        "name": name,
        "sources": {name: {"layout": layout, "root": str(root), "licence": command.license, "columns": columns}},
        "validation_share": command.validation_share,
        "calibration_share": command.calibration_share,
        "test_share": command.test_share,
        "seed": command.seed,
        "near_copy_bits": command.near_copy_bits,
    }
    return check_section(content, Collection, origin="of the flags")


def _print_report(report: Report, out: Path) -> None:
    splits = ", ".join(f"{count:,} {split}" for split, count in report.by_split.items() if count)
    print(f"{report.num_pictures:,} pictures of {report.num_outputs:,} classes: {splits}")
    for entry in report.left_out[:_MOST_LISTED]:
        print(f"  left out ({entry.code}): {entry.picture}: {entry.reason}")
    if len(report.left_out) > _MOST_LISTED:
        print(f"  ... and {len(report.left_out) - _MOST_LISTED:,} more, all in {out / HTML_FILE}")
    for sentence in (*report.notes, *advice(report)):
        print(f"  {sentence}")
    for source, licenses in report.licenses.items():
        print(f"  {source}: {licenses.sentence}")
    print(f"Written: {out / MANIFEST_FILE} and {out / HTML_FILE}. Next: python training/train.py RECIPE --data {out}")


if __name__ == "__main__":
    main()
