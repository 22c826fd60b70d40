"""The content of a comparison: `comparison.json`, and what the page shows."""

from typing import Final

import msgspec

from models.metrics import NamesOfRank, Share
from training.comparison.held_out import HeldOut
from training.comparison.loss import PairedShare

FORMAT: Final = 1
"""Version of comparison.json."""


class ComparedBundle(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two bundles."""

    name: str
    version: str
    created: str
    label_hash: str
    precision: str
    """Its network that was measured."""
    num_taxa: int
    held_out: HeldOut


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """How often the right taxon is among the most likely ones."""

    micro_top1: PairedShare
    micro_top5: PairedShare
    macro_top1: PairedShare
    """Mean of the taxa's shares."""
    macro_top5: PairedShare


class FewShot(msgspec.Struct, frozen=True, kw_only=True):
    """The taxa with few training pictures."""

    limit: int
    """They have fewer training pictures than this."""
    counted_in: str
    """Data whose training pictures were counted."""
    num_taxa: int
    micro_top1: PairedShare | None
    """None if there is no such taxon."""
    macro_top1: PairedShare | None


class GenusAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Top-1 on the pictures of one genus."""

    genus: str
    num_taxa: int
    num_pictures: int
    old_top1: float
    new_top1: float


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """How well the probabilities of a bundle agree with the share of right answers."""

    ece: Share
    """Expected calibration error of the most likely taxon, 15 bins."""
    nll: float
    """Mean negative log-likelihood of the right taxon, nats."""


class CandidateSets(msgspec.Struct, frozen=True, kw_only=True):
    """The candidate sets of a bundle for one coverage."""

    coverage: float
    """The coverage that was asked for."""
    covered: Share
    """Share of the pictures whose set holds the right taxon."""
    macro_covered: float
    """Mean of the taxa's shares."""
    mean_size: float


class Verdicts(msgspec.Struct, frozen=True, kw_only=True):
    """The verdicts of a bundle."""

    species: NamesOfRank
    genus: NamesOfRank
    family: NamesOfRank
    num_uncertain: int
    num_not_a_plant: int


class ChangedVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A picture that one bundle names and the other does not."""

    picture: str
    right: str
    """Its taxon."""
    old: str
    """Rank and name of the old verdict."""
    new: str


class Crossings(msgspec.Struct, frozen=True, kw_only=True):
    """Answers that cross a threshold: one bundle names the plant, the other does not."""

    old_to_new: dict[str, dict[str, int]]
    """Rank of the old verdict -> rank of the new verdict -> number of pictures."""
    only_old: NamesOfRank
    """Pictures that only the old bundle names, at any rank."""
    only_new: NamesOfRank
    pictures: tuple[ChangedVerdict, ...]


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """What a bundle does with pictures that show no plant."""

    things_named: Share
    """Share of them that are named as a plant, at any rank."""
    plants_kept: Share
    """Share of the plants whose verdict is not "not a plant"."""
    has_table: bool
    """Whether the bundle has a table for it."""


class Rename(msgspec.Struct, frozen=True, kw_only=True):
    """A taxon whose scientific name changed."""

    taxon_id: str
    old: str
    new: str


class NameChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The taxa that a bundle names, compared by taxon id."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    renamed: tuple[Rename, ...]


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """Time of a network run for one picture on one thread, both networks in turns."""

    old_ms: float
    """Median."""
    new_ms: float
    ratio: float
    """Median over the pairs of the old time divided by the new one: above 1 if the new bundle is faster."""
    num_pairs: int


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two bundles on one set of pictures."""

    format: int = FORMAT
    created: str
    """UTC, ISO 8601."""
    old: ComparedBundle
    new: ComparedBundle
    data: str
    """Data and split, in words."""
    manifest_sha256: str
    num_pictures: int
    num_plants: int
    num_taxa: int
    """Taxa that the pictures show."""
    num_left_out: int
    """Pictures of taxa that at least one bundle does not know."""
    accuracy: Accuracy
    few_shot: FewShot | None
    """None if no training pictures were given."""
    genera: tuple[GenusAccuracy, ...]
    """The one with the lowest accuracy of the new bundle first."""
    calibration: tuple[Calibration, Calibration]
    """Of the old and of the new bundle, as all further pairs."""
    verdicts: tuple[Verdicts, Verdicts]
    crossings: Crossings
    candidate_sets: tuple[tuple[CandidateSets, ...], tuple[CandidateSets, ...]]
    """Empty for a bundle without a table."""
    num_things: int = 0
    """Pictures without a plant."""
    rejection: tuple[Rejection, Rejection] | None = None
    """None if no pictures without a plant were given."""
    names: NameChanges
    speed: Speed | None = None
    """None if it was not measured."""
    refusals: tuple[str, ...] = ()
    """Why the new bundle is not promoted; empty if nothing speaks against it."""
    may_be_accepted: bool = False
    """Whether a person may promote it all the same: no loss is proved, and neither bundle saw the pictures."""
