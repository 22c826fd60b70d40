"""Logits -> calibrated probabilities -> ranked taxa, genera and families, and the records of a verdict.

Pure functions over NumPy arrays. Letters in names: N pictures or plants, B pictures of one plant, O outputs, T taxa, R
ranks as in `RANKS`. The probability of a genus or family is summed over all its taxa, not over the five most likely: a
genus may be spread over twenty species.
"""

from collections.abc import Iterator
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
import numpy as np

from models.arrays import Doubles, Flags, Positions, Singles
from models.harmful import LARGEST_LEFT_OUT, HarmKind
from models.taxonomy import Groups, Taxon, Taxonomy

_VALUES_AT_ONCE: Final = 2**18
Floats = Singles | Doubles
"""Floats of the network (single precision), or what is computed from them (double precision)."""
Rank = Literal["species", "genus", "family"]
RANKS: Final[tuple[Rank, ...]] = ("species", "genus", "family")
"""The ranks of names, the most precise one first."""


class RankedTaxon(msgspec.Struct, frozen=True):
    """A taxon and its probability."""

    taxon: Taxon
    score: float


class RankedGroup(msgspec.Struct, frozen=True):
    """A genus or family and the summed probability of its taxa."""

    name: str
    """Scientific name of the genus or family."""
    score: float
    """Probability in [0, 1]."""


def combine_pictures(logits_BO: Floats, weight_B: Floats) -> Doubles:
    """Combines the pictures of one plant by the weighted mean of their logits, shape (num_outputs,).

    With equal weights the result gives the geometric mean of their probabilities. The weights sum to 1.
    """
    return np.asarray(weight_B, dtype=np.float64) @ np.asarray(logits_BO, dtype=np.float64)


def output_probabilities(logits: Floats, temperature: float) -> Doubles:
    """Computes the calibrated softmax of raw outputs over the last axis; same shape (..., num_outputs).

    The temperature, above 0, divides the logits (Guo et al. 2017, "On Calibration of Modern Neural Networks").
    """
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    exponentials = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))


def taxon_probabilities(probabilities: Floats, taxonomy: Taxonomy) -> Doubles:
    """Sums the probabilities of the outputs of each taxon; shapes (..., num_outputs) -> (..., num_taxa)."""
    sums = sum_groups(probabilities, taxonomy.taxon_of_output, len(taxonomy.taxa))
    return np.minimum(sums, 1.0)  # which rounding errors can raise 1e-16 above 1


def sum_groups(values: Floats, group_of: Positions, num_groups: int) -> Doubles:
    """Sums values by group over the last axis; shapes (..., n) and (n,) -> (..., num_groups).

    `bincount` adds in the order of the values, and takes a fifth of the time of `np.add.at`. It takes many rows at once
    but not so many that the groups of all values fill the memory.
    """
    rows = np.asarray(values, dtype=np.float64).reshape(-1, values.shape[-1])
    summed = np.empty((len(rows), num_groups), dtype=np.float64)
    step = max(_VALUES_AT_ONCE // values.shape[-1], 1)
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        group = np.arange(len(some))[:, None] * num_groups + group_of
        sums = np.bincount(group.ravel(), some.ravel(), len(some) * num_groups)
        summed[start : start + step] = sums.reshape(-1, num_groups)
    return summed.reshape(*values.shape[:-1], num_groups)


def best_taxa(taxa_T: Doubles, taxonomy: Taxonomy, top_k: int) -> list[RankedTaxon]:
    """Returns the most likely taxa, most likely first."""
    return [RankedTaxon(taxonomy.taxa[index], float(taxa_T[index])) for index in _best(taxa_T, top_k)]


def name_of_taxon(taxonomy: Taxonomy) -> dict[Rank, Positions]:
    """Returns the position of each taxon's name at each rank, shape (num_taxa,): itself, its genus and its family."""
    return {
        "species": np.arange(len(taxonomy.taxa)),
        "genus": taxonomy.genera.of_taxon,
        "family": taxonomy.families.of_taxon,
    }


def best_groups(taxa_T: Doubles, groups: Groups, top_k: int) -> list[RankedGroup]:
    """Returns the most likely groups, most likely first, without the group "" of taxa whose genus or family is unknown.

    A group is at least as probable as each of its taxa: all sums run in the order of the taxa, and adding a probability
    never lowers a sum.
    """
    scores = group_scores(taxa_T, groups)
    found = [RankedGroup(groups.names[at], float(scores[at])) for at in _best(scores, top_k + 1) if groups.names[at]]
    return found[:top_k]


def _best(scores: Doubles, count: int) -> Positions:
    """Returns the positions of the highest scores, best first and stable; sorts only those that are needed."""
    least = np.partition(scores, -count)[-count] if count < len(scores) else -np.inf
    among = np.flatnonzero(scores >= least)
    return among[np.argsort(-scores[among], kind="stable")][:count]


def group_scores(taxa: Floats, groups: Groups) -> Doubles:
    """Sums the probabilities of the taxa of each group; shapes (..., num_taxa) -> (..., num_groups)."""
    return np.minimum(sum_groups(taxa, groups.of_taxon, len(groups.names)), 1.0)


class BestNames(NamedTuple):
    """The most likely name of each rank, for N pictures or plants."""

    position_NR: Positions
    """Position of the name among the taxa, genera or families."""
    score_NR: Doubles
    """Its probability; 0 or less if the rank has no name."""
    may_name_NR: Flags
    """Whether a verdict may give it: it is a name of the rank, and leaves out no grave harm that is likely."""


def best_names(taxa_NT: Doubles, taxonomy: Taxonomy) -> BestNames:
    """Finds the most likely name of each rank; equal scores keep the order of the taxonomy."""
    genera_NG = group_scores(taxa_NT, taxonomy.genera)
    scores = (taxa_NT, genera_NG, group_scores(taxa_NT, taxonomy.families))
    for groups_NG, groups in zip(scores[1:], (taxonomy.genera, taxonomy.families), strict=True):
        groups_NG[:, ~groups.has_name] = -1.0  # taxa whose genus or family is unknown share no name
    position_NR = np.stack([each.argmax(axis=1) for each in scores], axis=1)
    score_NR = np.stack([each.max(axis=1) for each in scores], axis=1)
    may_name_NR = score_NR > 0
    may_name_NR[:, 0] &= taxonomy.is_species[position_NR[:, 0]]
    for _, _, left_out_NR in harm_left_out(taxa_NT, position_NR, taxonomy):
        may_name_NR &= ~left_out_NR
    return BestNames(position_NR, score_NR, may_name_NR)


def harm_left_out(
    taxa_NT: Doubles, position_NR: Positions, taxonomy: Taxonomy
) -> Iterator[tuple[HarmKind, Doubles, Flags]]:
    """Yields each grave harm, the probability of its taxa, and which names leave them all out although it is likely.

    The names are at these positions, shape (N, R), and the flags have this shape.
    """
    for kind, has_grave in taxonomy.grave_harms.items():
        score_N = taxa_NT @ has_grave[0]
        covers_RN = [has[position_N] for has, position_N in zip(has_grave, position_NR.T, strict=True)]
        yield kind, score_N, (score_N > LARGEST_LEFT_OUT)[:, None] & ~np.stack(covers_RN, axis=1)


Probability = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
VerdictRank = Literal[Rank, "uncertain", "not_a_plant"]


class Thresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The smallest calibrated probability at which a verdict names a species, genus or family.

    A name that reaches the default of 0.5 has at least as much probability as all other names of its rank together. A
    rank whose threshold is 1 names nothing.
    """

    species: Probability = 0.5
    """Smallest probability of the most likely taxon."""
    genus: Probability = 0.5
    """Smallest summed probability."""
    family: Probability = 0.5
    """Smallest summed probability."""


class Promise(msgspec.Struct, frozen=True):
    """What calibration plants prove about the names of one rank.

    With probability `confidence`, over the draw of the calibration plants, at most `max_risk` of the plants that get a
    name of this rank get a wrong one. It holds for plants like those of the calibration split, with as many pictures,
    and takes the temperature, which was fitted on the same plants, as given.
    """

    max_risk: Probability
    """Share of the names of this rank that may be wrong."""
    confidence: Probability
    """Probability that no more of them are."""
    num_named: int
    """Number of calibration plants that got a name of this rank."""
    num_wrong: int
    """Number of those names that were wrong."""


class Promises(msgspec.Struct, frozen=True):
    """The promise of each rank, or None if too few calibration plants were named to prove one."""

    species: Promise | None = None
    """That of the names of species."""
    genus: Promise | None = None
    """That of the names of genera."""
    family: Promise | None = None
    """That of the names of families."""


NAMES_ARE_GUESSES: Final = "Names are guesses: no calibration plants prove how often they are right."
"""What a bundle without any promise says of itself."""


class MistakenTaxa(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Taxa whose names were often wrong on validation plants; their species names have a limit of their own.

    Without it the promise would hold for the mean plant, since most are easy, and be false of these.
    """

    taxon_ids: tuple[str, ...]
    threshold: Probability
    """Smallest probability of a species name."""
    promise: Promise | None = None


class Verdict(msgspec.Struct, frozen=True):
    """The most precise name that the scores support."""

    rank: VerdictRank
    """The rank of the name; `uncertain` and `not_a_plant` have none."""
    name: str | None
    """Scientific name; null when uncertain or not a plant."""
    score: float
    """Probability of the name in [0, 1], or of the most likely taxon if there is no name."""
    reason: str
    """The reason, as a sentence."""
    promise: Promise | None
    """What calibration plants prove about names of this rank; null if nothing is proved, no name is given, or the
    request chose the taxa."""
    unknown_plant: bool
    """Whether the rank is uncertain because the pictures show a plant unlike those that the model knows."""


def comparison(score: float, threshold: float) -> str:
    """Says whether a score reaches a threshold, with as many decimals as tell the two apart: "0.41 is below 0.70"."""
    decimals = next((count for count in range(2, 18) if round(score, count) != round(threshold, count)), 2)
    relation = "reaches" if score >= threshold else "is below"
    return f"{score:.{decimals}f} {relation} {threshold:.{decimals}f}"
