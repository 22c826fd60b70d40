"""What a person must know of a preparation, counted: the content of report.json. The page shows the same facts."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np

from models.taxonomy import Taxonomy
from training.dataset.audit.licenses import LicenseSummary, license_summaries
from training.dataset.audit.near_copies import NearGroups
from training.dataset.classes import Classes, NameFindings
from training.dataset.collection import Collection, SourceEntry
from training.dataset.selection import Selection
from training.dataset.sources.record import SPLITS, LabeledPicture, LeftOut, Split
from training.dataset.splits import Codes, taxon_of_label


class Meaning(msgspec.Struct, frozen=True):
    """What a code of `LeftOut` means."""

    title: str
    """What is wrong, in a few words."""
    remedy: str
    """What a user can do about it."""


# In the order of the steps that report them.
MEANINGS: Final[dict[str, Meaning]] = {
    "not_a_plant": Meaning(
        "No plant, says the data set", "Nothing. If it is one, correct its kingdom in the data set."
    ),
    "missing_file": Meaning("File missing", "Finish the download or unpack the archive again, then prepare again."),
    "unreadable_file": Meaning("File cannot be read", "Check permissions and the disk, then prepare again."),
    "not_a_picture": Meaning("Not a picture", "Nothing, or delete it. Restore the target of a link."),
    "unsupported_format": Meaning(
        "No accepted format, whatever its name",
        "Often a web page was saved: download it again. Convert a picture to JPEG, PNG, WebP, HEIC or AVIF.",
    ),
    "unreadable_image": Meaning("Truncated or damaged picture", "Download the file again, or delete it."),
    "too_many_pixels": Meaning("More pixels than its format may have", "Replace it with a smaller version."),
    "too_small": Meaning("Too small", "Find a larger original, or lower min_side_px in the collection."),
    "wrong_label": Meaning("Wrong label, says the collection", "Nothing, or correct the label in the data set."),
    "above_genus": Meaning(
        "Known to no genus", "Give the genus or species. Answers name those, and the family that follows from them."
    ),
    "kept_out": Meaning("Kept out as an unknown plant", "Nothing: the lists of unknown plants have it."),
    "copy": Meaning("Exact copy", "Nothing. If the two have different names, find out which one is right."),
    "near_copy": Meaning(
        "Near copy across splits",
        "Nothing: with it the measured accuracy would be too high. If it is not a copy, lower near_copy_bits.",
    ),
    "observation_split": Meaning(
        "Observation across splits", "Nothing: with it the measured accuracy would be too high."
    ),
    "no_class": Meaning(
        "Without a class folder",
        "Move it into a class folder, or ignore it: contests keep the labels of their test pictures.",
    ),
    "no_pictures": Meaning("Class without pictures", "Add pictures, or ignore it: the class gets no output."),
}
UNKNOWN: Final = Meaning("Other", "See the reason given with each entry.")


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all parts of the report."""


class SourceSummary(Part, frozen=True):
    """One data set."""

    name: str
    layout: str
    note: str
    num_pictures: int
    num_outputs: int
    """Classes with a picture of this source."""
    num_left_out: int
    by_split: dict[Split, int]
    """All splits, including empty ones."""
    num_bytes: int
    """Total length of its files."""
    median_short_side_px: int
    num_dated: int
    num_placed: int
    """Pictures with coordinates."""
    published: tuple[Split, ...] = ()
    """Splits that the data set publishes; the others are cut from its training pictures."""


class ClassSize(Part, frozen=True):
    """One output and its pictures."""

    key: str
    scientific_name: str
    num_pictures: int
    by_split: dict[Split, int]
    """Splits with pictures of the class."""


class Reason(Part, frozen=True):
    """One kind of reason to leave a picture out, with its counts."""

    code: str
    title: str
    remedy: str
    num_entries: int
    num_pictures: int
    by_source: dict[str, int]
    """Entries, not pictures: a class without pictures is an entry too."""


class Report(Part, frozen=True):
    """The result of a preparation."""

    name: str
    description: str
    rules: dict[str, str]
    """The collection's rules, as written there."""
    num_pictures: int
    num_outputs: int
    num_taxa: int
    num_left_out: int
    """Pictures."""
    by_split: dict[Split, int]
    sources: tuple[SourceSummary, ...]
    few_pictures: int
    """Classes with fewer pictures are listed in `few`."""
    few: tuple[ClassSize, ...]
    """Smallest first."""
    without: dict[Split, int]
    """Split -> number of classes without a picture in it."""
    classes: tuple[ClassSize, ...]
    """Largest first."""
    reasons: tuple[Reason, ...]
    """Most frequent first."""
    left_out: tuple[LeftOut, ...]
    """All entries, sorted by code and name."""
    names: NameFindings
    near_copies: tuple[tuple[str, ...], ...]
    """Groups of near copies, by picture id; each group is in one split."""
    licenses: dict[str, LicenseSummary]
    two_names: tuple[tuple[str, ...], ...] = ()
    """Near copies with several names, by picture id and name; those with equal hashes first."""
    notes: tuple[str, ...] = ()


def build_report(
    collection: Collection,
    classes: Classes,
    pictures: Sequence[LabeledPicture],
    near_copies: NearGroups,
    selection: Selection,
    *,
    splits: Sequence[Split],
    left_out: Iterable[LeftOut],
    notes: Sequence[str] = (),
) -> Report:
    """Builds the report from the results of the steps.

    `pictures` are all that decode, `near_copies` their groups; `splits` are those of the pictures in `selection`.
    """
    kept = selection.pictures
    taxonomy = selection.taxonomy
    sizes = _class_sizes(taxonomy, kept, splits)
    few = [size for size in sizes if size.num_pictures < collection.few_pictures]
    entries = sorted(map(_printable, left_out), key=lambda entry: (entry.code, entry.picture))
    by_source: dict[str, list[tuple[LabeledPicture, Split]]] = {name: [] for name in collection.sources}
    for picture, split in zip(kept, splits, strict=True):
        by_source[picture.source].append((picture, split))
    elsewhere = {"name", "description", "sources", "few_pictures"}  # of the page
    rules = {key: value for key, value in msgspec.structs.asdict(collection).items() if key not in elsewhere}
    if near_copies.num_chained:
        cut = (
            f"Near copies: {near_copies.num_chained:,} chains of near copies were cut because their ends differ too "
            f"much; {int(near_copies.chained.sum()):,} pictures in them may have a near copy in another group."
        )
        notes = (*notes, cut)
    return Report(
        name=collection.name,
        description=collection.description,
        rules={key: "none" if value is None else str(value) for key, value in rules.items()},
        num_pictures=len(kept),
        num_outputs=len(taxonomy.outputs),
        num_taxa=len(taxonomy.taxa),
        num_left_out=sum(entry.num_pictures for entry in entries),
        by_split=_by_split(splits),
        sources=tuple(
            _source_summary(name, entry, by_source[name], entries) for name, entry in collection.sources.items()
        ),
        few_pictures=collection.few_pictures,
        few=tuple(sorted(few, key=lambda size: (size.num_pictures, size.key))),
        without={split: sum(split not in size.by_split for size in sizes) for split in SPLITS},
        classes=sizes,
        reasons=_reasons(entries),
        left_out=tuple(entries),
        names=classes.names,
        near_copies=_near_copies(pictures, near_copies, kept),
        licenses=license_summaries(kept),
        two_names=_two_names(pictures, near_copies, classes.taxonomy),
        notes=tuple(notes),
    )


def _source_summary(
    name: str, entry: SourceEntry, own: Sequence[tuple[LabeledPicture, Split]], left_out: Iterable[LeftOut]
) -> SourceSummary:
    pictures = [picture for picture, _ in own]
    published = {picture.record.split for picture in pictures}
    short_sides = [min(picture.info.width, picture.info.height) for picture in pictures]
    return SourceSummary(
        name=name,
        layout=entry.layout,
        note=entry.note,
        num_pictures=len(pictures),
        num_outputs=len({picture.label for picture in pictures}),
        num_left_out=sum(each.num_pictures for each in left_out if each.source == name),
        by_split=_by_split(split for _, split in own),
        published=tuple(split for split in SPLITS if split in published),
        num_bytes=sum(picture.info.num_bytes for picture in pictures),
        median_short_side_px=int(np.median(short_sides)) if pictures else 0,
        num_dated=sum(picture.record.taken_on is not None for picture in pictures),
        num_placed=sum(picture.record.coordinates is not None for picture in pictures),
    )


def _by_split(splits: Iterable[Split]) -> dict[Split, int]:
    counts = Counter(splits)
    return {split: counts[split] for split in SPLITS}


def _class_sizes(
    taxonomy: Taxonomy, pictures: Sequence[LabeledPicture], splits: Sequence[Split]
) -> tuple[ClassSize, ...]:
    by_split: dict[str, Counter[Split]] = {key: Counter() for key in taxonomy.output_keys}
    for picture, split in zip(pictures, splits, strict=True):
        by_split[picture.label][split] += 1
    taxa = taxon_of_label(taxonomy)
    sizes = [
        ClassSize(key=key, scientific_name=taxa[key].scientific_name, num_pictures=own.total(), by_split=dict(own))
        for key, own in by_split.items()
    ]
    return tuple(sorted(sizes, key=lambda size: (-size.num_pictures, size.key)))


def _reasons(left_out: Sequence[LeftOut]) -> tuple[Reason, ...]:
    by_source: dict[str, Counter[str]] = {}
    num_pictures: Counter[str] = Counter()
    for entry in left_out:
        by_source.setdefault(entry.code, Counter())[entry.source] += 1
        num_pictures[entry.code] += entry.num_pictures
    return tuple(
        Reason(
            code=code,
            **msgspec.structs.asdict(MEANINGS.get(code, UNKNOWN)),
            num_entries=entries.total(),
            num_pictures=num_pictures[code],
            by_source=dict(entries),
        )
        for code, entries in sorted(by_source.items(), key=lambda item: (-item[1].total(), item[0]))
    )


def _printable(entry: LeftOut) -> LeftOut:
    """Escapes bytes of file names that are not valid text, which JSON could not hold."""
    picture, reason = (text.encode(errors="backslashreplace").decode() for text in (entry.picture, entry.reason))
    return msgspec.structs.replace(entry, picture=picture, reason=reason)


def _near_copies(
    pictures: Sequence[LabeledPicture], near_copies: NearGroups, kept: Sequence[LabeledPicture]
) -> tuple[tuple[str, ...], ...]:
    """Returns the groups with several files of which one is kept, by picture id."""
    kept_ids = {id(picture) for picture in kept}
    found = [
        tuple(sorted(picture.picture_id for picture in group))
        for group in _members(pictures, near_copies.group_of)
        if len({picture.info.sha256 for picture in group}) > 1 and any(id(picture) in kept_ids for picture in group)
    ]
    return tuple(sorted(found))


def _two_names(
    pictures: Sequence[LabeledPicture], near_copies: NearGroups, taxonomy: Taxonomy
) -> tuple[tuple[str, ...], ...]:
    """Returns the groups of near copies, names ignored, that have several taxa: equal hashes first, ids with names."""
    names = {label: taxon.scientific_name for label, taxon in taxon_of_label(taxonomy).items()}
    found = [
        (
            len({picture.info.perceptual_hash for picture in group}),
            tuple(sorted(f"{picture.picture_id} ({names[picture.label]})" for picture in group)),
        )
        for group in _members(pictures, near_copies.any_name)
        if len({names[picture.label] for picture in group}) > 1
    ]
    return tuple(group for _, group in sorted(found))


def _members(pictures: Sequence[LabeledPicture], group_of: Codes) -> Iterable[list[LabeledPicture]]:
    members: dict[int, list[LabeledPicture]] = {}
    for row in np.flatnonzero(group_of >= 0).tolist():
        members.setdefault(int(group_of[row]), []).append(pictures[row])
    return members.values()
