"""The report as a record: every fact that the page shows and that report.json holds."""

import datetime

import msgspec
from msgspec import field

from models.bundle import CommercialUse
from training.dataset.sources.record import LeftOut, Split


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of everything that the report is made of."""


class NameFinding(Part, frozen=True):
    """Something that a person should know about a name."""

    name: str
    """The class or taxon."""
    members: tuple[str, ...] = ()
    """Names as the data sets write them, each with its source."""
    explanation: str = ""
    """What was done, or what to look at."""


class NameFindings(Part, frozen=True):
    """What came of the sources' names."""

    merged: tuple[NameFinding, ...] = ()
    """Several names that mean one taxon."""
    genus_level: tuple[NameFinding, ...] = ()
    """Classes that only name a genus."""
    similar: tuple[NameFinding, ...] = ()
    """Names so alike that one may be a misspelling; nothing was merged."""


class LicenseSummary(Part, frozen=True):
    """What may be done with the pictures of one source."""

    commercial_use: CommercialUse
    """What the licenses, taken together, say of commercial use."""
    sentence: str
    """The same for people, and why."""
    licenses: dict[str, int] = field(name="licences", default_factory=dict)
    """License -> number of pictures."""
    num_authors: int = 0
    """Distinct authors that are named."""


class SourceSummary(Part, frozen=True):
    """One data set."""

    name: str
    layout: str
    note: str
    num_pictures: int
    num_outputs: int
    """Classes that have a picture of this source."""
    num_left_out: int
    by_split: dict[Split, int]
    """Every split, also the empty ones."""
    num_bytes: int
    """Length of all its files."""
    median_short_side_px: int
    num_dated: int
    num_placed: int
    """Pictures with coordinates."""
    first_taken: datetime.date | None
    last_taken: datetime.date | None


class ClassSize(Part, frozen=True):
    """One output and its pictures."""

    key: str
    scientific_name: str
    num_pictures: int
    by_split: dict[Split, int]
    """Only splits that have pictures of it."""


class Reason(Part, frozen=True):
    """One kind of reason to leave something out."""

    code: str
    title: str
    explanation: str
    remedy: str
    num_entries: int
    num_pictures: int
    by_source: dict[str, int]
    """Entries, not pictures: a class without pictures also counts."""


class Histogram(Part, frozen=True):
    """Numbers of pictures by size."""

    edges: tuple[float, ...]
    """Bin i is [edges[i], edges[i + 1])."""
    counts: dict[str, tuple[int, ...]]
    """For each source one number a bin."""


class Report(Part, frozen=True):
    """What a preparation found."""

    name: str
    description: str
    rules: dict[str, str]
    """The collection's rules that decided, as written there."""
    num_pictures: int
    num_outputs: int
    num_taxa: int
    num_left_out: int
    """Pictures."""
    by_split: dict[Split, int]
    sources: tuple[SourceSummary, ...]
    few_pictures: int
    """Below this number a class stands in `few`."""
    few: tuple[ClassSize, ...]
    without: dict[Split, int]
    """Classes that have no picture in a split."""
    classes: tuple[ClassSize, ...]
    """Largest first."""
    curves: dict[str, tuple[int, ...]]
    """For each source the sizes of its classes, largest first, counting its own pictures only."""
    reasons: tuple[Reason, ...]
    left_out: tuple[LeftOut, ...]
    """Everything, by code and name."""
    names: NameFindings
    near_copies: tuple[tuple[str, ...], ...]
    """Groups of pictures that look alike, by picture id; each group stays in one split."""
    licenses: dict[str, LicenseSummary] = field(name="licences")
    short_sides_px: Histogram
    file_sizes_bytes: Histogram
    notes: tuple[str, ...] = ()
