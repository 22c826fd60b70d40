"""The counts of the report."""

import datetime
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from models.taxonomy import Taxonomy
from training.dataset.audit.licenses import LicenseSummary
from training.dataset.collection import Collection, SourceEntry
from training.dataset.report.reasons import meaning
from training.dataset.report.schema import (
    ClassSize,
    Histogram,
    NameFindings,
    Reason,
    Report,
    SourceSummary,
)
from training.dataset.sources.record import SPLITS, LabeledPicture, LeftOut, Split

_BINS_PER_DOUBLING: Final = 4

Counts = Mapping[tuple[str, str, Split], int]
"""(source, label, split) -> number of pictures."""


def summarize(
    collection: Collection,
    pictures: Sequence[LabeledPicture],
    splits: Sequence[Split],
    left_out: Sequence[LeftOut],
    taxonomy: Taxonomy,
    *,
    names: NameFindings,
    licenses: Mapping[str, LicenseSummary],
    near_copies: Sequence[tuple[str, ...]] = (),
    two_names: Sequence[tuple[str, ...]] = (),
    notes: Sequence[str] = (),
) -> Report:
    """Counts the pictures of the training set.

    Args:
        collection: The data sets and the rules.
        pictures: The pictures that are kept.
        splits: Split of each picture.
        left_out: Everything that was left out, from every step.
        taxonomy: The outputs that the pictures' labels name.
        names: Names that a person should check.
        licenses: Source -> licenses and authors of its pictures.
        near_copies: Groups of near copies, by picture id.
        two_names: Groups of near copies with several names, by picture id and name.
        notes: Sentences at the top of the page.
    """
    counts: Counts = Counter(
        zip((picture.source for picture in pictures), (picture.label for picture in pictures), splits, strict=True)
    )
    columns = _Columns(tuple(collection.sources), pictures)
    classes = _class_sizes(taxonomy, counts)
    entries = sorted((_printable(entry) for entry in left_out), key=lambda entry: (entry.code, entry.picture))
    return Report(
        name=collection.name,
        description=collection.description,
        rules=_rules(collection),
        num_pictures=len(pictures),
        num_outputs=len(taxonomy.outputs),
        num_taxa=len(taxonomy.taxa),
        num_left_out=sum(entry.num_pictures for entry in entries),
        by_split=_by_split(counts),
        sources=tuple(
            _source_summary(name, entry, counts, columns, entries) for name, entry in collection.sources.items()
        ),
        few_pictures=collection.few_pictures,
        few=_few(classes, collection.few_pictures),
        without={split: sum(split not in size.by_split for size in classes) for split in SPLITS},
        classes=classes,
        curves={name: _curve(name, counts) for name in collection.sources},
        reasons=_reasons(entries),
        left_out=tuple(entries),
        names=names,
        near_copies=tuple(near_copies),
        two_names=tuple(two_names),
        licenses=dict(licenses),
        short_sides_px=columns.histogram(columns.short_side_px),
        file_sizes_bytes=columns.histogram(columns.num_bytes),
        notes=tuple(notes),
    )


class _Columns:
    """The values to count, as arrays with one number for each picture: a million objects would be slow."""

    def __init__(self, names: Sequence[str], pictures: Sequence[LabeledPicture]) -> None:
        self.names, number = names, len(pictures)
        code = {name: position for position, name in enumerate(names)}
        records, facts = [picture.record for picture in pictures], [picture.info for picture in pictures]
        self.source = np.fromiter((code[picture.source] for picture in pictures), np.int16, number)
        self.short_side_px = np.fromiter((min(fact.width, fact.height) for fact in facts), np.int64, number)
        self.num_bytes = np.fromiter((fact.num_bytes for fact in facts), np.int64, number)
        # Proleptic ordinal of the day; 0 if unknown.
        self.day = np.fromiter((record.taken_on.toordinal() if record.taken_on else 0 for record in records), np.int64)
        self.published = {(picture.source, picture.record.split) for picture in pictures}
        self.placed = np.fromiter((record.coordinates is not None for record in records), np.bool_, number)

    def of(self, name: str) -> npt.NDArray[np.bool_]:
        """Returns which pictures belong to a source."""
        return np.asarray(self.source == self.names.index(name))

    def histogram(self, values: npt.NDArray[np.int64]) -> Histogram:
        """Counts sizes in bins of equal width on a logarithmic scale; all sources have the same bins."""
        if len(values) == 0:
            return Histogram(edges=(), counts={})
        steps = np.log2(np.maximum(values, 1)) * _BINS_PER_DOUBLING
        bins = np.floor(steps + 1e-9).astype(np.int64)  # a power of two starts a bin, despite rounding
        low, high = int(bins.min()), int(bins.max())
        counts = {name: np.bincount(bins[self.of(name)] - low, minlength=high - low + 1) for name in self.names}
        return Histogram(
            edges=tuple(float(2.0 ** (edge / _BINS_PER_DOUBLING)) for edge in range(low, high + 2)),
            counts={name: tuple(of_source.tolist()) for name, of_source in counts.items()},
        )


def _source_summary(
    name: str, entry: SourceEntry, counts: Counts, columns: _Columns, left_out: Iterable[LeftOut]
) -> SourceSummary:
    own = {key: number for key, number in counts.items() if key[0] == name}
    chosen = columns.of(name)
    days = columns.day[chosen]
    days = days[days > 0]
    return SourceSummary(
        name=name,
        layout=entry.layout,
        note=entry.note,
        num_pictures=int(chosen.sum()),
        num_outputs=len({label for _, label, _ in own}),
        num_left_out=sum(entry.num_pictures for entry in left_out if source_of(entry) == name),
        by_split=_by_split(own),
        published=tuple(split for split in SPLITS if (name, split) in columns.published),
        num_bytes=int(columns.num_bytes[chosen].sum()),
        median_short_side_px=int(np.median(columns.short_side_px[chosen])) if chosen.any() else 0,
        num_dated=len(days),
        num_placed=int(columns.placed[chosen].sum()),
        first_taken=datetime.date.fromordinal(int(days.min())) if len(days) else None,
        last_taken=datetime.date.fromordinal(int(days.max())) if len(days) else None,
    )


def source_of(entry: LeftOut) -> str:
    """Returns the source of an entry."""
    return entry.picture.partition(":")[0]


def _class_sizes(taxonomy: Taxonomy, counts: Counts) -> tuple[ClassSize, ...]:
    by_split: dict[str, Counter[Split]] = {output.key: Counter() for output in taxonomy.outputs}
    for (_, label, split), number in counts.items():
        by_split[label][split] += number
    names = [taxonomy.taxa[position].scientific_name for position in taxonomy.taxon_of_output]
    sizes = [
        ClassSize(key=key, scientific_name=name, num_pictures=of_class.total(), by_split=dict(of_class))
        for (key, of_class), name in zip(by_split.items(), names, strict=True)
    ]
    return tuple(sorted(sizes, key=lambda size: (-size.num_pictures, size.key)))


def _few(classes: Iterable[ClassSize], limit: int) -> tuple[ClassSize, ...]:
    """Returns the classes with fewer pictures than the limit, smallest first."""
    return tuple(sorted((size for size in classes if size.num_pictures < limit), key=lambda s: (s.num_pictures, s.key)))


def _curve(source: str, counts: Counts) -> tuple[int, ...]:
    sizes: Counter[str] = Counter()
    for (name, label, _), number in counts.items():
        if name == source:
            sizes[label] += number
    return tuple(sorted(sizes.values(), reverse=True))


def _by_split(counts: Counts) -> dict[Split, int]:
    return {wanted: sum(number for (_, _, split), number in counts.items() if split == wanted) for wanted in SPLITS}


def _reasons(left_out: Sequence[LeftOut]) -> tuple[Reason, ...]:
    """Counts the entries by code, the most frequent first."""
    by_source: dict[str, Counter[str]] = {}
    num_pictures: Counter[str] = Counter()
    for entry in left_out:
        by_source.setdefault(entry.code, Counter())[source_of(entry)] += 1
        num_pictures[entry.code] += entry.num_pictures
    return tuple(
        Reason(
            code=code,
            title=meaning(code).title,
            explanation=meaning(code).explanation,
            remedy=meaning(code).remedy,
            num_entries=entries.total(),
            num_pictures=num_pictures[code],
            by_source=dict(entries),
        )
        for code, entries in sorted(by_source.items(), key=lambda item: (-item[1].total(), item[0]))
    )


def _printable(entry: LeftOut) -> LeftOut:
    """Escapes bytes of file names that are not valid text, which JSON could not hold."""
    return msgspec.structs.replace(entry, picture=_escaped(entry.picture), reason=_escaped(entry.reason))


def _escaped(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _rules(collection: Collection) -> dict[str, str]:
    fields = msgspec.structs.asdict(collection).items()
    elsewhere = {"name", "description", "sources", "few_pictures"}  # shown elsewhere on the page
    return {name: "none" if value is None else str(value) for name, value in fields if name not in elsewhere}
