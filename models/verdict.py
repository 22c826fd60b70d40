"""The verdict: the most precise rank whose score reaches its threshold, with the promise and the reason in words.

The thresholds are those of hierarchical selective classification (Goren et al. 2024, arXiv 2405.11533): a species that
is too uncertain is answered with its genus, then with its family, then not at all.
"""

from collections.abc import Collection, Iterator
from typing import Annotated, Final, Literal

import msgspec

from models.ranking import RankedGroup, RankedTaxon, Ranking

Probability = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Rank = Literal["species", "genus", "family"]
RANKS: Final[tuple[Rank, ...]] = ("species", "genus", "family")
"""The ranks of names, the most precise one first."""
VerdictRank = Literal[Rank, "uncertain", "not_a_plant"]


class Thresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The smallest calibrated probability at which a verdict names a species, genus or family.

    A name that reaches the default of 0.5 has at least as much probability as all other names of its rank together. A
    rank whose threshold is 1 names nothing.
    """

    species: Probability = 0.5
    """Smallest probability of the most likely taxon."""
    genus: Probability = 0.5
    """Smallest summed probability of a genus."""
    family: Probability = 0.5
    """Smallest summed probability of a family."""


class Promise(msgspec.Struct, frozen=True):
    """What calibration plants prove about the names of one rank.

    With probability `confidence`, over the draw of the calibration plants, at most `max_risk` of the plants that get a
    name of this rank get a wrong one. It holds for plants like those of the calibration split, with one picture each,
    and takes the temperature, which was fitted on the same plants, as given.
    """

    max_risk: Probability
    confidence: Probability
    num_named: int
    """Number of calibration plants that got a name of this rank."""
    num_wrong: int
    """Number of those names that were wrong."""


class Promises(msgspec.Struct, frozen=True):
    """The promise of each rank, or None if too few calibration plants were named to prove one."""

    species: Promise | None = None
    genus: Promise | None = None
    family: Promise | None = None


class Verdict(msgspec.Struct, frozen=True):
    """The most precise rank that the scores support."""

    rank: VerdictRank
    name: str | None
    """Scientific name; None if no rank reaches its threshold."""
    score: float
    """Probability of the name, or of the most likely taxon if there is no name."""
    reason: str
    """The reason, as a sentence."""
    promise: Promise | None = None
    """What is proved about names of this rank."""
    unknown_plant: bool = False
    """Whether nothing is named because the pictures show a plant unlike those that the network knows."""


def decide(
    ranking: Ranking, thresholds: Thresholds, promises: Promises, shared: Collection[Rank] = frozenset()
) -> Verdict:
    """Names the most precise rank whose score reaches its threshold.

    A taxon of rank genus is never named as a species, whatever its score.

    Args:
        ranking: Taxa, genera and families, most likely first.
        thresholds: The smallest score of a name, for each rank.
        promises: What is proved about names of each rank.
        shared: Ranks at which all taxa that the client allowed have the same name. That name has the score 1 whatever
            the pictures show, so it is not a verdict.
    """
    reasons = []
    for rank, name, score in _best_names(ranking):
        if name is None:
            reasons.append(_no_name(rank, ranking.taxa[0]))
        elif rank in shared:
            reasons.append(f"every allowed taxon is of the {rank} {name}")
        elif getattr(thresholds, rank) == 1:
            reasons.append(f"this model names no {rank}")
        else:
            reasons.append(_compared(rank, name, score, getattr(thresholds, rank)))
            if score >= getattr(thresholds, rank):
                return Verdict(rank, name, score, _sentence(reasons), getattr(promises, rank))
    return Verdict("uncertain", None, ranking.taxa[0].score, _sentence(reasons))


def not_a_plant(best: RankedTaxon, plant_score: float, cutoff: float) -> Verdict:
    """Returns the verdict on pictures whose plant score is below its cutoff."""
    return Verdict("not_a_plant", None, best.score, f"plant score {comparison(plant_score, cutoff)}.")


def unknown_plant(best: RankedTaxon, familiarity: float, cutoff: float) -> Verdict:
    """Returns the verdict on a plant that is unlike those that the network knows."""
    reason = f"unlike the plants that this model knows: familiarity {comparison(familiarity, cutoff)}."
    return Verdict("uncertain", None, best.score, reason, unknown_plant=True)


def comparison(score: float, threshold: float) -> str:
    """Says whether a score reaches a threshold, with as many decimals as tell the two apart: "0.41 is below 0.70"."""
    decimals = next((count for count in range(2, 18) if round(score, count) != round(threshold, count)), 2)
    relation = "reaches" if score >= threshold else "is below"
    return f"{score:.{decimals}f} {relation} {threshold:.{decimals}f}"


def _best_names(ranking: Ranking) -> Iterator[tuple[Rank, str | None, float]]:
    """Yields the most likely name of each rank with its score; None if the rank has no name."""
    best = ranking.taxa[0]
    yield "species", best.taxon.scientific_name if best.taxon.rank == "species" else None, best.score
    groups: tuple[tuple[Rank, list[RankedGroup]], ...] = (("genus", ranking.genera), ("family", ranking.families))
    for rank, ranked in groups:
        known = [group for group in ranked if group.score > 0]  # no allowed taxon may have a group with a name
        yield (rank, known[0].name, known[0].score) if known else (rank, None, 0.0)


def _no_name(rank: Rank, best: RankedTaxon) -> str:
    if rank == "species":
        return f"the most likely taxon, {best.taxon.scientific_name}, is a {best.taxon.rank} and not a species"
    return f"no {rank} is known"


def _compared(rank: Rank, name: str, score: float, threshold: float) -> str:
    return f"{rank if rank == 'species' else f'{rank} {name}'} {comparison(score, threshold)}"


def _sentence(reasons: list[str]) -> str:
    return f"{'; '.join(reasons)}."
