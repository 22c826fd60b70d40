"""Data sets -> manifest and report: read, name, look at every picture, leave out, split, write.

read_sources     what the data sets say                          no picture is opened
name_classes     their names -> outputs and taxa                 fails before the long part
look             every picture decoded once                      hours; resumable
settle           copies, groups, splits -> manifest, report      minutes; nothing is opened
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from models.errors import DataError
from models.taxonomy import Taxonomy
from training.dataset.audit import FEATURELESS, NearGroups, drop_copies, examine, ledger, license_id, near_groups
from training.dataset.classes import Classes, build_classes, names_to_look_up
from training.dataset.collection import Collection
from training.dataset.grouping import Codes, copy_codes, group_names, join_groups, observation_codes, strongest_rows
from training.dataset.labeled_picture import ImageInfo, LabeledPicture
from training.dataset.manifest import SourceNote, write_manifest
from training.dataset.report import Report, contact_sheets, report_files, summarize
from training.dataset.report.name_findings import license_summaries, name_findings, near_copy_notes
from training.dataset.sources.layouts import READERS
from training.dataset.sources.record import LeftOut, SourceContents, Split
from training.dataset.splits import SPLITS, Candidates, Shares, assign_splits, published_codes, straddling
from training.dataset.synonyms import read_synonyms

JOURNAL_FILE: Final = "audit.sqlite"
_LEAKS: Final = {
    True: ("observation_split", "it belongs to the same observation as"),
    False: ("near_copy", "it, or another picture of its observation, is a near copy of"),
}


class Described(msgspec.Struct, frozen=True):
    """What the data sets say of themselves."""

    collection: Collection
    roots: dict[str, Path]
    """Source -> the folder that its pictures' paths are relative to."""
    readings: dict[str, SourceContents]
    classes: Classes


def assemble(collection: Collection, base: Path, out: Path, workers: int) -> Report:
    """Makes one training set of several data sets.

    Args:
        collection: The data sets and the rules.
        base: Folder that their roots are relative to.
        out: Folder for manifest.parquet, taxa.json, report.html and report.json; audit.sqlite keeps what was decoded.
        workers: Processes that decode.

    Raises:
        DataError: A data set cannot be used or nothing is left; an old manifest then still stands.
    """
    described = describe(collection, base)
    out.mkdir(parents=True, exist_ok=True)
    pictures, unusable = look(described, journal=out / JOURNAL_FILE, workers=workers)
    unread = [entry for reading in described.readings.values() for entry in reading.left_out]
    return settle(described, pictures, [*unread, *unusable], out)


def describe(collection: Collection, base: Path) -> Described:
    """Reads every data set's description and turns the names of its classes into outputs and taxa.

    Raises:
        DataError: A data set is missing or damaged, a name cannot be used, or the number of outputs is not the expected
            one.
    """
    sources = collection.sources
    given = {name: (base / entry.root).resolve() for name, entry in sources.items()}
    readings = {name: READERS[entry.layout](name, given[name], entry.license) for name, entry in sources.items()}
    roots = {name: given[name].parent if entry.layout == "table" else given[name] for name, entry in sources.items()}
    plants = {
        name: list({record.plant.class_id: record.plant for record in reading.records}.values())
        for name, reading in readings.items()
    }
    names = {name: entry.names for name, entry in sources.items()}
    synonyms = {}
    if collection.synonyms is not None:
        synonyms = read_synonyms(base / collection.synonyms, names_to_look_up(plants, names))
    edition = collection.synonyms.name if collection.synonyms is not None else ""
    classes = build_classes(plants, collection.merge, synonyms, names, synonyms_from=edition)
    _require_outputs(classes.taxonomy, collection)
    return Described(collection, roots, readings, classes)


def look(described: Described, *, journal: Path, workers: int) -> tuple[list[LabeledPicture], list[LeftOut]]:
    """Decodes every picture once; returns those that can be used, and the others with the reason."""
    named = [(name, record) for name, reading in described.readings.items() for record in reading.records]
    found = examine(
        [(f"{name}:{record.path}", described.roots[name] / record.path) for name, record in named],
        journal=journal,
        workers=workers,
        min_side_px=described.collection.min_side_px,
    )
    labels = described.classes.labels
    pictures = [
        LabeledPicture(source=name, record=record, label=labels[name, record.plant.class_id], info=facts)
        for (name, record), facts in zip(named, found, strict=True)
        if isinstance(facts, ImageInfo)
    ]
    return pictures, [entry for entry in found if isinstance(entry, LeftOut)]


def settle(described: Described, pictures: Sequence[LabeledPicture], left_out: Sequence[LeftOut], out: Path) -> Report:
    """Decides what stays and in which split, and writes manifest and report; opens only what the sheets show.

    Raises:
        DataError: Nothing is left, or not as many outputs as expected.
    """
    collection, roots, classes = described.collection, described.roots, described.classes
    near = _near_copies(pictures, collection.near_copy_bits)
    kept, groups, dropped = _leave_out(pictures, near.group_of, classes.taxonomy)
    left_out = [*left_out, *dropped]
    if not kept:
        reasons = [f"{entry.picture}: {entry.reason}" for entry in left_out]
        raise DataError(
            "no picture of the sources can be used", value="; ".join(reasons[:3]), remedy="see to the files"
        )
    taxonomy, emptied = _keep_pictured(classes.taxonomy, {picture.label for picture in kept})
    _require_outputs(taxonomy, collection, emptied)
    names = group_names(groups, [picture.picture_id for picture in kept])
    splits = _draw_splits(kept, groups, names, collection)
    report = summarize(
        collection,
        kept,
        splits,
        [*left_out, *emptied],
        taxonomy,
        names=name_findings(classes),
        licenses=license_summaries(ledger(kept)),
        near_copies=_named_groups(pictures, near.group_of, {id(picture) for picture in kept}),
        notes=near_copy_notes(near),
    )
    sources = {name: SourceNote(str(roots[name]), entry.note) for name, entry in collection.sources.items()}
    sheets = contact_sheets(kept, roots, taxonomy, collection.seed)
    write_manifest(out, _columns(kept, splits, names), taxonomy, sources, beside=report_files(report, sheets))
    return report


def _near_copies(pictures: Sequence[LabeledPicture], max_bits: int) -> NearGroups:
    """Groups of near copies; pictures that have nothing on them stand alone."""
    hashes = np.array([picture.info.perceptual_hash for picture in pictures], dtype=np.uint64)
    found = near_groups(hashes, max_bits)
    blank = np.isin(hashes, np.array(FEATURELESS, dtype=np.uint64))
    return msgspec.structs.replace(found, group_of=np.where(blank, -1, found.group_of))


def _leave_out(
    pictures: Sequence[LabeledPicture], near: Codes, taxonomy: Taxonomy
) -> tuple[list[LabeledPicture], Codes, list[LeftOut]]:
    """Leaves out copies, and what would show a judged plant or picture in a weaker split.

    A copy joins its observation to that of its original before it goes, so that neither leaks through the other.

    Returns:
        The pictures that stay, the group of each, and what was left out.
    """
    taxon_of_label = {output.key: output.taxon_id for output in taxonomy.outputs}
    unique, copies = drop_copies(pictures, taxon_of_label)
    stays = np.isin([id(picture) for picture in pictures], [id(picture) for picture in unique])
    observations = join_groups(observation_codes(pictures))
    groups = join_groups(observations, near, copy_codes(pictures))
    published = published_codes([picture.record.split for picture in pictures])
    leaks = np.flatnonzero(straddling(published, groups) & stays)
    of_observation = straddling(published, observations)
    judged = {True: strongest_rows(published, observations), False: strongest_rows(published, groups)}
    group_of = {True: observations, False: groups}
    left_out = list(copies)
    for row in leaks.tolist():
        same = bool(of_observation[row])
        left_out.append(_leak(pictures[row], pictures[judged[same][group_of[same][row]]], same_observation=same))
    stays[leaks] = False
    kept = np.flatnonzero(stays)
    return [pictures[row] for row in kept.tolist()], np.unique(groups[kept], return_inverse=True)[1], left_out


def _leak(picture: LabeledPicture, judged: LabeledPicture, *, same_observation: bool) -> LeftOut:
    code, what = _LEAKS[same_observation]
    reason = f"{what} {judged.picture_id}, which stands in the {judged.record.split} split"
    return LeftOut(picture=picture.picture_id, code=code, reason=reason)


def _named_groups(pictures: Sequence[LabeledPicture], near: Codes, kept: set[int]) -> tuple[tuple[str, ...], ...]:
    """The pictures of each group of near copies, by id; of a group that leaked those too that are left out."""
    members: dict[int, list[LabeledPicture]] = {}
    for row in np.flatnonzero(near >= 0).tolist():
        members.setdefault(int(near[row]), []).append(pictures[row])
    return tuple(
        sorted(
            tuple(sorted(picture.picture_id for picture in group))
            for group in members.values()
            if len({picture.info.sha256 for picture in group}) > 1 and any(id(picture) in kept for picture in group)
        )
    )


def _draw_splits(
    pictures: Sequence[LabeledPicture], groups: Codes, names: Sequence[str], rules: Collection
) -> list[Split]:
    candidates = Candidates(
        group_names=names,
        labels=_numbered(picture.label for picture in pictures),
        sources=_numbered(picture.source for picture in pictures),
        groups=groups,
        published=published_codes([picture.record.split for picture in pictures]),
    )
    shares = Shares(rules.test_share, rules.validation_share, rules.calibration_share)
    return [SPLITS[code] for code in assign_splits(candidates, shares, rules.seed).tolist()]


def _numbered(names: Iterable[str]) -> Codes:
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


def _keep_pictured(taxonomy: Taxonomy, pictured: set[str]) -> tuple[Taxonomy, list[LeftOut]]:
    """Drops the outputs that no picture is left for."""
    outputs = tuple(output for output in taxonomy.outputs if output.key in pictured)
    named = {output.taxon_id for output in outputs}
    taxa = tuple(taxon for taxon in taxonomy.taxa if taxon.taxon_id in named)
    emptied = [
        LeftOut(picture=output.key, code="no_pictures", reason="no picture of the class can be used", num_pictures=0)
        for output in taxonomy.outputs
        if output.key not in pictured
    ]
    return msgspec.structs.replace(taxonomy, taxa=taxa, outputs=outputs), emptied


def _require_outputs(taxonomy: Taxonomy, collection: Collection, emptied: Sequence[LeftOut] = ()) -> None:
    found, expected = len(taxonomy.outputs), collection.expect_outputs
    if expected and found != expected:
        by_source = Counter(output.source for output in taxonomy.outputs)
        counts = ", ".join(f"{count} of {source}" for source, count in by_source.items())
        raise DataError(
            "the data sets give another number of outputs than expected",
            value=", ".join([f"{found}: {counts}", *(f"no picture left of {entry.picture}" for entry in emptied[:5])]),
            limit=str(expected),
            remedy="complete the data sets, or set expect_outputs = 0",
        )


def _columns(
    pictures: Sequence[LabeledPicture], splits: Sequence[Split], names: Sequence[str]
) -> dict[str, Sequence[Any]]:
    """The manifest's columns; every picture is a file of its own."""
    records, facts = [picture.record for picture in pictures], [picture.info for picture in pictures]
    licenses = {text: license_id(text) for text in {record.license for record in records}}
    nowhere = (None, None)
    return {
        "picture_id": [picture.picture_id for picture in pictures],
        "source": [picture.source for picture in pictures],
        "path": [record.path for record in records],
        "shard": [""] * len(pictures),
        "offset": [0] * len(pictures),
        "length": [fact.num_bytes for fact in facts],
        "label": [picture.label for picture in pictures],
        "split": splits,
        "group": names,
        "licence": [licenses[record.license] for record in records],
        "author": [record.author for record in records],
        "taken_on": [record.taken_on for record in records],
        "latitude": [(record.coordinates or nowhere)[0] for record in records],
        "longitude": [(record.coordinates or nowhere)[1] for record in records],
        "sha256": [fact.sha256 for fact in facts],
        "width": [fact.width for fact in facts],
        "height": [fact.height for fact in facts],
    }
