"""The schema of report.json; the page shows the same facts."""

import datetime

import msgspec
from msgspec import field

from training.dataset.audit.licenses import LicenseSummary
from training.dataset.sources.record import LeftOut, Split


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all parts of the report."""


class NameFinding(Part, frozen=True):
    """A name that a person should check."""

    name: str
    """The class or taxon."""
    members: tuple[str, ...] = ()
    """Source and name as written, of each class."""
    explanation: str = ""
    """What was done, or what to check."""


class NameFindings(Part, frozen=True):
    """The names that a person should check."""

    merged: tuple[NameFinding, ...] = ()
    """Names that share one taxon."""
    genus_level: tuple[NameFinding, ...] = ()
    """Classes that only name a genus."""
    common: tuple[NameFinding, ...] = ()
    """Classes that are known by their common names alone."""
    misspelt: tuple[NameFinding, ...] = ()
    """Genera that may be misspelt."""
    similar: tuple[NameFinding, ...] = ()
    """Similar or ambiguous names, which were not merged."""


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
    first_taken: datetime.date | None
    last_taken: datetime.date | None
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
    explanation: str
    remedy: str
    num_entries: int
    num_pictures: int
    by_source: dict[str, int]
    """Entries, not pictures: a class without pictures is an entry too."""


class Histogram(Part, frozen=True):
    """Numbers of pictures by size."""

    edges: tuple[float, ...]
    """Bin i is [edges[i], edges[i + 1])."""
    counts: dict[str, tuple[int, ...]]
    """Source -> number of pictures in each bin."""


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
    without: dict[Split, int]
    """Split -> number of classes without a picture in it."""
    classes: tuple[ClassSize, ...]
    """Largest first."""
    curves: dict[str, tuple[int, ...]]
    """Source -> sizes of its classes, largest first, counting only its own pictures."""
    reasons: tuple[Reason, ...]
    left_out: tuple[LeftOut, ...]
    """All entries, sorted by code and name."""
    names: NameFindings
    near_copies: tuple[tuple[str, ...], ...]
    """Groups of near copies, by picture id; each group is in one split."""
    licenses: dict[str, LicenseSummary] = field(name="licences")
    short_sides_px: Histogram
    file_sizes_bytes: Histogram
    two_names: tuple[tuple[str, ...], ...] = ()
    """Near copies with several names, by picture id and name; those with equal hashes first."""
    notes: tuple[str, ...] = ()
