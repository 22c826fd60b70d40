"""Logits -> calibrated probabilities -> ranked taxa, genera and families -> verdict.

Pure functions over NumPy arrays. Letters in names: B pictures, O outputs, T taxa. The probability of a genus or family
is summed over all its taxa, not over the five most likely: a genus may be spread over twenty species.

The verdict is the most precise rank whose score reaches its threshold, with the promise and the reason in words (Goren
et al. 2024, "Hierarchical Selective Classification", arXiv 2405.11533): a species that is too uncertain is answered
with its genus, then with its family, then not at all. A name that leaves out a harmful genus is no verdict either while
that genus is likely (`models/harmful.py`).
"""

from collections.abc import Collection, Iterator
from typing import Annotated, Final, Literal

import msgspec
import numpy as np

from models.arrays import Doubles, Flags, Positions, Singles
from models.harmful import HARMFUL_GENERA, LARGEST_LEFT_OUT, HarmfulGenus
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
    """A genus or family and its summed probability."""

    name: str
    score: float


class PossibleHarm(msgspec.Struct, frozen=True):
    """A harmful genus and its summed probability."""

    genus: HarmfulGenus
    score: float


class Ranking(msgspec.Struct, frozen=True):
    """Taxa, genera and families, most likely first."""

    taxa: list[RankedTaxon]
    genera: list[RankedGroup]
    families: list[RankedGroup]
    left_out: dict[Rank, list[PossibleHarm]]
    """For each rank with a name, the harmful genera that its most likely name leaves out although they are likely."""


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


def rank(taxa_T: Doubles, taxonomy: Taxonomy, top_k: int = 5) -> Ranking:
    """Ranks taxa, genera and families by the probabilities of all taxa.

    A genus or family is at least as probable as each of its taxa: all sums run in the order of the taxa, and adding a
    probability never lowers a sum.

    Args:
        taxa_T: Calibrated probabilities, shape (num_taxa,).
        taxonomy: Names and groups of the taxa.
        top_k: Maximum length of each list; equal scores keep the order of the taxonomy.
    """
    genera, families = group_scores(taxa_T, taxonomy.genera), group_scores(taxa_T, taxonomy.families)
    best: dict[Rank, Positions] = {
        "species": _best(taxa_T, top_k),
        "genus": _best_groups(genera, taxonomy.genera, top_k),
        "family": _best_groups(families, taxonomy.families, top_k),
    }
    return Ranking(
        [RankedTaxon(taxonomy.taxa[index], float(taxa_T[index])) for index in best["species"]],
        [RankedGroup(taxonomy.genera.names[index], float(genera[index])) for index in best["genus"]],
        [RankedGroup(taxonomy.families.names[index], float(families[index])) for index in best["family"]],
        {
            rank: [
                PossibleHarm(genus, float(score))
                for genus, score, is_left_out in harm_left_out(genera, rank, positions[0], taxonomy)
                if is_left_out
            ]
            for rank, positions in best.items()
            if len(positions)
        },
    )


def best_taxa(taxa_T: Doubles, taxonomy: Taxonomy, top_k: int) -> list[RankedTaxon]:
    """Returns the most likely taxa, most likely first."""
    return [RankedTaxon(taxonomy.taxa[index], float(taxa_T[index])) for index in _best(taxa_T, top_k)]


def group_scores(taxa: Floats, groups: Groups) -> Doubles:
    """Sums the probabilities of the taxa of each group; shapes (..., num_taxa) -> (..., num_groups)."""
    return np.minimum(sum_groups(taxa, groups.of_taxon, len(groups.names)), 1.0)


def name_of_taxon(taxonomy: Taxonomy) -> dict[Rank, Positions]:
    """Returns the position of each taxon's name at each rank, shape (num_taxa,): itself, its genus and its family."""
    return {
        "species": np.arange(len(taxonomy.taxa)),
        "genus": taxonomy.genera.of_taxon,
        "family": taxonomy.families.of_taxon,
    }


def harm_left_out(
    genus_scores: Floats, rank: Rank, best: Positions | int, taxonomy: Taxonomy
) -> Iterator[tuple[HarmfulGenus, Doubles, Flags]]:
    """Finds the names that leave out a harmful genus although it is likely, and so are no verdict.

    Args:
        genus_scores: Summed probabilities of all genera, shape (..., num_genera).
        rank: Rank of the names.
        best: Position of each name at its rank, shape (...).
        taxonomy: Names and groups of the taxa.

    Yields:
        Each harmful genus that the taxonomy knows, its probabilities, and whether the name leaves it out; shapes (...).
    """
    names, name_T = taxonomy.genera.names, name_of_taxon(taxonomy)[rank]
    for genus in HARMFUL_GENERA:
        if genus.name in names:
            position = names.index(genus.name)
            covering = np.unique(name_T[taxonomy.genera.of_taxon == position])
            scores = np.asarray(genus_scores[..., position], dtype=np.float64)
            yield genus, scores, (scores > LARGEST_LEFT_OUT) & ~np.isin(best, covering)


def _best_groups(scores: Doubles, groups: Groups, top_k: int) -> Positions:
    """Returns the positions of the best groups, without the group "" of taxa whose genus or family is unknown."""
    best = _best(scores, top_k + 1)  # one more, since the group "" may be among them
    return np.array([index for index in best if groups.names[index]][:top_k], dtype=np.intp)


def _best(scores: Doubles, count: int) -> Positions:
    """Returns the positions of the highest scores, best first and stable; sorts only those that are needed."""
    least = np.partition(scores, -count)[-count] if count < len(scores) else -np.inf
    among = np.flatnonzero(scores >= least)
    return among[np.argsort(-scores[among], kind="stable")][:count]


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


class MistakenTaxa(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Taxa whose names were often wrong on validation plants; their species names have a limit of their own.

    Without it the promise would hold for the mean plant, since most are easy, and be false of these.
    """

    taxon_ids: tuple[str, ...]
    threshold: Probability
    """Smallest probability of a species name."""
    promise: Promise | None = None


class Verdict(msgspec.Struct, frozen=True):
    """The most precise rank that the scores support."""

    rank: VerdictRank
    name: str | None
    """Scientific name; None if nothing is named."""
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

    A taxon of rank genus is never named as a species, whatever its score. A name that leaves out a harmful genus is not
    given while that genus is likely; a less precise one that includes it may be.

    Args:
        ranking: What the pictures support.
        thresholds: The smallest score of a name, for each rank.
        promises: What is proved about names of each rank.
        shared: Ranks at which all taxa that the client allowed have the same name. That name has the score 1 whatever
            the pictures show, so it is not a verdict.
    """
    best, reasons = ranking.taxa[0], list[str]()
    for rank, name, score in _best_names(ranking):
        threshold = getattr(thresholds, rank)
        if name is None and rank == "species":
            reasons.append(
                f"the most likely taxon, {best.taxon.scientific_name}, is a {best.taxon.rank} and not a species"
            )
        elif name is None:
            reasons.append(f"no {rank} is known")
        elif rank in shared:
            reasons.append(f"every allowed taxon is of the {rank} {name}")
        elif threshold == 1:
            reasons.append(f"this model names no {rank}")
        elif score >= threshold and ranking.left_out[rank]:
            warned = [_warning(each) for each in ranking.left_out[rank]]
            reasons += [each for each in warned if each not in reasons]
            reasons.append(f"{rank} {name} leaves it out")
        else:
            named = rank if rank == "species" else f"{rank} {name}"
            reasons.append(f"{named} {comparison(score, threshold)}")
            if score >= threshold:
                return Verdict(rank, name, score, f"{'; '.join(reasons)}.", getattr(promises, rank))
    return Verdict("uncertain", None, best.score, f"{'; '.join(reasons)}.")


def _warning(harm: PossibleHarm) -> str:
    genus, likely = harm.genus, comparison(harm.score, LARGEST_LEFT_OUT)
    return f"may be {genus.name}, which {genus.effect}: {likely}"


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
