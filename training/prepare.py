"""Program: reads pictures from a source, checks that every one decodes, and writes a manifest.

python training/prepare.py folder DIR --out DATA        one folder a class
python training/prepare.py table LIST.csv --out DATA    a CSV list
"""

import hashlib
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import msgspec
import tyro
from rich.progress import track

from models.errors import DataError, PictureError
from models.preprocess import read_picture
from training.classes import build_taxonomy, output_key
from training.manifest import MANIFEST_FILE, ManifestRow, write_manifest
from training.processes import clean_context, end_with_parent
from training.program import run_program
from training.sources.image_folder import read_image_folder
from training.sources.record import PictureRecord
from training.sources.table import read_table
from training.splits import Candidate, assign_splits

REPORT_FILE = "prepare.json"
_STRENGTH = {"test": 0, "validation": 1, None: 2, "train": 3}


class Preparation(msgspec.Struct, frozen=True, kw_only=True):
    """What both commands share."""

    out: Path
    """Folder to write manifest.parquet, taxa.json and prepare.json to."""
    source: str = ""
    """Name of the data set in output keys; default: the name of the folder or list."""
    licence: str = ""
    """Licence of pictures that name none."""
    validation_share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.1
    """Share of each class's training pictures that becomes validation, unless the source publishes one."""
    test_share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.1
    """Share of each class's pictures that becomes test, unless the source publishes one."""
    seed: int = 0
    """Changes which pictures those are."""
    workers: int = os.cpu_count() or 1
    """Processes that decode pictures."""

    def __post_init__(self) -> None:
        for name in ("validation_share", "test_share"):
            if not 0 <= getattr(self, name) < 1:
                raise DataError(
                    f"--{name.replace('_', '-')} is no share",
                    value=getattr(self, name),
                    limit="a number from 0 to below 1",
                    remedy="give 0.1 for a tenth",
                )


class Folder(Preparation, frozen=True, kw_only=True):
    """A folder with one folder of pictures a class, named Common (Scientific), scientific alone, or common alone."""

    pictures: tyro.conf.Positional[Path]
    """The folder above the class folders."""


class Table(Preparation, frozen=True, kw_only=True):
    """A CSV list with columns path and scientific_name, and optionally split, group, licence and more."""

    table: tyro.conf.Positional[Path]
    """The list; paths in it are relative to its folder."""


class Checked(msgspec.Struct, frozen=True):
    """What one decode found out."""

    sha256: str
    num_bytes: int
    width: int
    height: int


class Rejected(msgspec.Struct, frozen=True):
    """A picture that is left out, and why."""

    path: str
    code: str
    reason: str


class Report(msgspec.Struct, frozen=True):
    """The content of `prepare.json`."""

    source: str
    num_pictures: int
    num_outputs: int
    pictures_by_split: dict[str, int]
    licences: dict[str, int]
    rejected: list[Rejected]


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: prepare(tyro.cli(Folder | Table, description=__doc__)))


def prepare(command: Folder | Table) -> Report:
    """Prepares one source.

    Raises:
        DataError: The source holds nothing to learn from.
    """
    root, records = _records(command)
    source = command.source or root.name
    kept, rejected = check_pictures(records, command.workers)
    kept, copies = drop_copies(kept)
    if not kept:
        raise DataError("no picture of the source decodes", value=root, remedy=f"see what was read: {rejected[:1]}")
    rows = _rows(source, root, kept, command)
    taxonomy = build_taxonomy(source, (record for record, _ in kept))
    write_manifest(command.out, rows, taxonomy, root)
    report = Report(
        source=source,
        num_pictures=len(rows),
        num_outputs=len(taxonomy.outputs),
        pictures_by_split=dict(Counter(row.split for row in rows)),
        licences=dict(Counter(row.licence or "unknown" for row in rows)),
        rejected=[*rejected, *copies],
    )
    (command.out / REPORT_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    _print_report(report, command.out)
    return report


def check_pictures(
    records: Sequence[PictureRecord], workers: int
) -> tuple[list[tuple[PictureRecord, Checked]], list[Rejected]]:
    """Decodes every picture once, in several processes.

    Returns:
        The records that decode, each with what was found out, and the pictures that do not, each with the reason.
    """
    kept: list[tuple[PictureRecord, Checked]] = []
    rejected: list[Rejected] = []
    context = clean_context("training.manifest", "models.preprocess")
    with ProcessPoolExecutor(max(workers, 1), mp_context=context, initializer=end_with_parent) as pool:
        results = pool.map(_check_file, (record.path for record in records), chunksize=16)
        for record, result in zip(records, track(results, "Decoding", len(records)), strict=True):
            if isinstance(result, Checked):
                kept.append((record, result))
            else:
                rejected.append(result)
    return kept, rejected


def drop_copies(
    kept: Iterable[tuple[PictureRecord, Checked]],
) -> tuple[list[tuple[PictureRecord, Checked]], list[Rejected]]:
    """Leaves out byte-for-byte copies; of equal pictures the one in the stronger published split stays."""
    ordered = sorted(kept, key=lambda pair: (_STRENGTH[pair[0].split], str(pair[0].path)))
    first: dict[str, PictureRecord] = {}
    unique: list[tuple[PictureRecord, Checked]] = []
    copies: list[Rejected] = []
    for record, checked in ordered:
        original = first.setdefault(checked.sha256, record)
        if original is record:
            unique.append((record, checked))
        else:
            copies.append(Rejected(str(record.path), "copy", f"the same bytes as {original.path}"))
    return sorted(unique, key=lambda pair: str(pair[0].path)), copies


def _check_file(path: Path) -> Checked | Rejected:
    try:
        data = path.read_bytes()
        picture = read_picture(data)
    except (PictureError, OSError) as error:
        return Rejected(str(path), getattr(error, "code", "unreadable_file"), str(error))
    return Checked(hashlib.sha256(data).hexdigest(), len(data), picture.width, picture.height)


def _records(command: Folder | Table) -> tuple[Path, list[PictureRecord]]:
    if isinstance(command, Folder):
        root = command.pictures.resolve()
        return root, list(read_image_folder(root, command.licence))
    table = command.table.resolve()
    return table.parent, list(read_table(table, command.licence))


def _rows(
    source: str, root: Path, kept: Sequence[tuple[PictureRecord, Checked]], command: Preparation
) -> list[ManifestRow]:
    names = [Path(os.path.relpath(record.path, root)).as_posix() for record, _ in kept]
    candidates = [
        Candidate(name, output_key(source, record), record.group or name, record.split)
        for name, (record, _) in zip(names, kept, strict=True)
    ]
    splits = assign_splits(
        candidates, seed=command.seed, validation_share=command.validation_share, test_share=command.test_share
    )
    return [
        ManifestRow(
            picture_id=f"{source}:{name}",
            source=source,
            path=name,
            label=candidate.label,
            split=split,
            group=candidate.group,
            licence=record.licence,
            author=record.author,
            sha256=checked.sha256,
            num_bytes=checked.num_bytes,
            width=checked.width,
            height=checked.height,
        )
        for name, candidate, split, (record, checked) in zip(names, candidates, splits, kept, strict=True)
    ]


def _print_report(report: Report, out: Path) -> None:
    splits = ", ".join(f"{count} {split}" for split, count in sorted(report.pictures_by_split.items()))
    print(f"{report.num_pictures} pictures of {report.num_outputs} classes: {splits}")
    for rejected in report.rejected[:20]:
        print(f"  left out ({rejected.code}): {rejected.path}: {rejected.reason}")
    if len(report.rejected) > 20:
        print(f"  ... and {len(report.rejected) - 20} more, all in {out / REPORT_FILE}")
    print(f"Written: {out / MANIFEST_FILE}. Next: python training/train.py RECIPE --data {out}")


if __name__ == "__main__":
    main()
