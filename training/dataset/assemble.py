"""The data sets of a collection -> manifest and report.

read_sources       reads the data sets' lists and folders          opens no picture
name_classes       class names -> network outputs and taxa         fails before the hours of decoding
decode_pictures    decodes every picture once                      hours; a later run continues
write_dataset      copies, groups, splits -> report, manifest      minutes
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from models.errors import DataError
from models.taxonomy import Taxonomy
from training.dataset.audit.examine import examine
from training.dataset.audit.near_copies import near_copy_groups
from training.dataset.classes import Classes, build_classes, names_to_look_up
from training.dataset.collection import READERS, Collection
from training.dataset.manifest import SourceNote, write_manifest
from training.dataset.report import Report, build_report, contact_sheets, report_files
from training.dataset.selection import Selection, manifest_columns, select_pictures
from training.dataset.sources.record import ImageInfo, LabeledPicture, LeftOut, PictureRecord, SourceContents
from training.dataset.sources.table import read_table
from training.dataset.splits import Shares, draw_splits, name_codes
from training.dataset.synonyms import read_synonyms

CACHE_FILE: Final = "audit.sqlite"


class DatasetSpec(msgspec.Struct, frozen=True):
    """The sources and classes of a training set, before its pictures are decoded."""

    collection: Collection
    roots: Mapping[str, Path]
    """Source -> the folder that its pictures' paths are relative to."""
    classes: Classes
    notes: Sequence[str] = ()
    """What the readers say about the sources."""


def assemble(collection: Collection, base: Path, out: Path, workers: int) -> Report:
    """Makes one training set of several data sets.

    Args:
        collection: The data sets and the rules.
        base: Folder that their roots are relative to.
        out: Folder for manifest.parquet, taxa.json, report.html, report.json, and the cache audit.sqlite.
        workers: Processes that decode.

    Raises:
        DataError: A data set cannot be used or no picture is left; an older manifest then stays in place.
    """
    sources = read_sources(collection, base)
    classes = name_classes(collection, base, sources)
    out.mkdir(parents=True, exist_ok=True)
    pictures, unusable = decode_pictures(
        sources, classes, cache=out / CACHE_FILE, workers=workers, min_side_px=collection.min_side_px
    )
    left_out = [entry for source in sources.values() for entry in source.left_out]
    notes = [note for source in sources.values() for note in source.notes]
    spec = DatasetSpec(collection, {name: source.root for name, source in sources.items()}, classes, notes)
    return write_dataset(spec, pictures, [*left_out, *unusable], out)


def read_sources(collection: Collection, base: Path) -> dict[str, SourceContents]:
    """Reads the records of every data set, without opening a picture.

    Raises:
        DataError: A data set is missing or damaged.
    """
    contents = {}
    for name, entry in collection.sources.items():
        root = (base / entry.root).resolve()
        if entry.layout == "table":
            contents[name] = read_table(name, root, entry.license, entry.columns)
        else:
            contents[name] = READERS[entry.layout](name, root, entry.license)
    return contents


def name_classes(collection: Collection, base: Path, sources: Mapping[str, SourceContents]) -> Classes:
    """Turns the names of all classes into outputs and taxa.

    Raises:
        DataError: A name cannot be used, or the number of outputs is not the expected one.
    """
    plants = {
        name: list({record.plant.class_id: record.plant for record in source.records}.values())
        for name, source in sources.items()
    }
    corrections = {name: entry.names for name, entry in collection.sources.items()}
    synonyms, synonyms_from = {}, ""
    if collection.synonyms is not None:
        synonyms = read_synonyms(base / collection.synonyms, names_to_look_up(plants, corrections))
        synonyms_from = collection.synonyms.name
    classes = build_classes(plants, collection.merge, synonyms, corrections, synonyms_from=synonyms_from)
    _require_num_outputs(classes.taxonomy, collection)
    return classes


def decode_pictures(
    sources: Mapping[str, SourceContents], classes: Classes, *, cache: Path, workers: int, min_side_px: int
) -> tuple[list[LabeledPicture], list[LeftOut]]:
    """Decodes every picture once; returns those that can be used, and the others with the reason."""
    records = [(name, record) for name, source in sources.items() for record in source.records]
    found = examine(
        [(f"{name}:{record.path}", sources[name].root / record.path) for name, record in records],
        cache=cache,
        workers=workers,
        min_side_px=min_side_px,
    )
    pictures = [
        LabeledPicture(
            source=name, record=_with_exif(record, info), label=classes.labels[name, record.plant.class_id], info=info
        )
        for (name, record), info in zip(records, found, strict=True)
        if isinstance(info, ImageInfo)
    ]
    return pictures, [entry for entry in found if isinstance(entry, LeftOut)]


def _with_exif(record: PictureRecord, info: ImageInfo) -> PictureRecord:
    """Returns the record with day and place of the picture's EXIF where the data set gives none."""
    taken_on = record.taken_on or (info.taken_at and info.taken_at.date())
    coordinates = record.coordinates or info.coordinates
    if (taken_on, coordinates) == (record.taken_on, record.coordinates):
        return record
    return msgspec.structs.replace(record, taken_on=taken_on, coordinates=coordinates)


def write_dataset(
    spec: DatasetSpec, pictures: Sequence[LabeledPicture], left_out: Sequence[LeftOut], out: Path
) -> Report:
    """Selects pictures, draws the splits, and writes manifest and report; opens only the pictures of contact sheets.

    Raises:
        DataError: No picture is left, or the number of outputs is not the expected one.
    """
    rules = spec.collection
    names = name_codes(pictures, spec.classes.taxonomy)
    near_copies = near_copy_groups(pictures, names, rules.near_copy_bits)
    selection = select_pictures(pictures, near_copies.group_of, spec.classes.taxonomy)
    left_out = [*left_out, *selection.left_out]
    _require_pictures(selection, left_out)
    _require_num_outputs(selection.taxonomy, rules, selection.left_out)
    shares = Shares(rules.test_share, rules.validation_share, rules.calibration_share)
    splits = draw_splits(selection.pictures, selection.groups, selection.group_names, shares, rules.seed)
    report = build_report(
        rules, spec.classes, pictures, near_copies, selection, splits=splits, left_out=left_out, notes=spec.notes
    )
    sheets = contact_sheets(selection.pictures, spec.roots, selection.taxonomy, rules.seed)
    columns = manifest_columns(selection.pictures, splits, selection.group_names)
    sources = {name: SourceNote(str(spec.roots[name]), entry.note) for name, entry in rules.sources.items()}
    write_manifest(out, columns, selection.taxonomy, sources, further_files=report_files(report, sheets))
    return report


def _require_pictures(selection: Selection, left_out: Sequence[LeftOut]) -> None:
    if not selection.pictures:
        reasons = [f"{entry.picture}: {entry.reason}" for entry in left_out]
        raise DataError("no picture of the sources can be used", value="; ".join(reasons[:3]), remedy="check the files")


def _require_num_outputs(taxonomy: Taxonomy, rules: Collection, left_out: Sequence[LeftOut] = ()) -> None:
    found, expected = len(taxonomy.outputs), rules.expect_outputs
    if expected and found != expected:
        by_source = Counter(output.source for output in taxonomy.outputs)
        counts = ", ".join(f"{count} of {source}" for source, count in by_source.items())
        empty = [f"no picture left of {entry.picture}" for entry in left_out if entry.code == "no_pictures"]
        raise DataError(
            "the data sets do not give the expected number of outputs",
            value=", ".join([f"{found}: {counts}", *empty[:5]]),
            limit=str(expected),
            remedy="complete the data sets, or set expect_outputs = 0",
        )
