"""Logits -> calibrated probabilities -> taxa, genera, families -> verdict; several pictures -> one answer.

Pure functions over NumPy arrays. Letters in names: B pictures, O outputs, T taxa. The probability of a genus or family
is summed over all its taxa, not over the five most likely: a genus may be spread over twenty species.
"""

from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from models.taxonomy import Groups, Taxon, Taxonomy

Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Probability = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
VerdictRank = Literal["species", "genus", "family", "uncertain", "not_a_plant"]


class Thresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The smallest calibrated probability at which a verdict names a species, genus or family.

    A name that reaches the default of 0.5 has at least as much probability as all other names of its rank together.
    """

    species: Probability = 0.5
    """Smallest probability of the most likely taxon."""
    genus: Probability = 0.5
    """Smallest summed probability of a genus."""
    family: Probability = 0.5
    """Smallest summed probability of a family."""


class RankedTaxon(msgspec.Struct, frozen=True):
    """A taxon and its probability."""

    taxon: Taxon
    score: float


class RankedGroup(msgspec.Struct, frozen=True):
    """A genus or family and its summed probability."""

    name: str
    score: float


class Verdict(msgspec.Struct, frozen=True):
    """The most precise rank that the scores support."""

    rank: VerdictRank
    name: str | None
    """Scientific name; None if no rank reaches its threshold."""
    score: float
    """Probability of the name, or of the most likely taxon if there is no name."""
    reason: str
    """The reason, as a sentence."""


class Ranking(msgspec.Struct, frozen=True):
    """The answer about one plant: the verdict, and ranked lists."""

    verdict: Verdict
    taxa: list[RankedTaxon]
    genera: list[RankedGroup]
    families: list[RankedGroup]


def combine_pictures(logits_BO: Floats) -> npt.NDArray[np.float64]:
    """Combines the pictures of one plant by the mean of their logits (the geometric mean of their probabilities).

    Args:
        logits_BO: Raw outputs, shape (num_pictures, num_outputs), at least one picture.

    Returns:
        Shape (num_outputs,).
    """
    return np.asarray(np.asarray(logits_BO, dtype=np.float64).mean(axis=0))


def output_probabilities(logits: Floats, temperature: float) -> npt.NDArray[np.float64]:
    """Computes the calibrated softmax over the last axis.

    Args:
        logits: Raw outputs, shape (..., num_outputs).
        temperature: Divides the logits (Guo et al. 2017, "On Calibration of Modern Neural Networks"); above 0.

    Returns:
        Probabilities in [0, 1] that sum to 1 along the last axis; same shape, float64.
    """
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    exponentials = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))


def taxon_probabilities(probabilities: Floats, taxonomy: Taxonomy) -> npt.NDArray[np.float64]:
    """Sums the probabilities of the outputs of each taxon.

    Args:
        probabilities: Shape (..., num_outputs).
        taxonomy: Gives the taxon of each output.

    Returns:
        Shape (..., num_taxa), in the order of `taxonomy.taxa`.
    """
    return _at_most_1(sum_groups(probabilities, taxonomy.taxon_of_output, len(taxonomy.taxa)))


def sum_groups(values: Floats, group_of: npt.NDArray[np.intp], num_groups: int) -> npt.NDArray[np.float64]:
    """Sums values by group over the last axis; shapes (..., n) and (n,) -> (..., num_groups)."""
    summed = np.zeros((*values.shape[:-1], num_groups), dtype=np.float64)
    np.add.at(summed.T, group_of, np.asarray(values, dtype=np.float64).T)
    return summed


def rank(logits_O: Floats, taxonomy: Taxonomy, temperature: float, thresholds: Thresholds, top_k: int = 5) -> Ranking:
    """Ranks taxa, genera and families for the (combined) logits of one plant.

    Args:
        logits_O: Shape (num_outputs,).
        taxonomy: Names and groups of the outputs.
        temperature: Temperature of the network file.
        thresholds: Smallest probability at which the verdict names a species, genus or family.
        top_k: Maximum length of each list; equal scores keep the order of the taxonomy.

    Returns:
        The verdict and the lists, most likely first.
    """
    taxa_T = taxon_probabilities(output_probabilities(logits_O, temperature), taxonomy)
    taxa = [RankedTaxon(taxonomy.taxa[index], float(taxa_T[index])) for index in _best(taxa_T, top_k)]
    genera = _rank_groups(taxa_T, taxonomy.genera, top_k)
    families = _rank_groups(taxa_T, taxonomy.families, top_k)
    return Ranking(decide(taxa[0], genera[0], families, thresholds), taxa, genera, families)


def decide(
    best_taxon: RankedTaxon, best_genus: RankedGroup, families: list[RankedGroup], thresholds: Thresholds
) -> Verdict:
    """Names the most precise rank whose probability reaches its threshold.

    A taxon of rank genus is never named as a species, whatever its score.
    """
    species_named = best_taxon.taxon.rank == "species"
    if species_named and best_taxon.score >= thresholds.species:
        return _verdict("species", best_taxon.taxon.scientific_name, best_taxon.score, thresholds.species)
    if best_genus.score >= thresholds.genus:
        return _verdict("genus", best_genus.name, best_genus.score, thresholds.genus)
    if families and families[0].score >= thresholds.family:
        return _verdict("family", families[0].name, families[0].score, thresholds.family)
    reason = "No species, genus or family reaches its threshold; a closer or sharper picture may help."
    return Verdict("uncertain", None, best_taxon.score, reason)


def _verdict(rank: VerdictRank, name: str, score: float, threshold: float) -> Verdict:
    return Verdict(rank, name, score, f"The {rank} reaches its threshold ({score:.2f} of at least {threshold:.2f}).")


def _rank_groups(taxa_T: npt.NDArray[np.float64], groups: Groups, top_k: int) -> list[RankedGroup]:
    """Ranks groups by probability, without the group "" of taxa whose family is unknown."""
    scores = _at_most_1(sum_groups(taxa_T, groups.of_taxon, len(groups.names)))
    best = _best(scores, top_k + 1)  # one more, since the group "" may be among them
    return [RankedGroup(groups.names[index], float(scores[index])) for index in best if groups.names[index]][:top_k]


def _best(scores: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.intp]:
    """Returns the positions of the highest scores, best first and stable; sorts only those that are needed."""
    least = np.partition(scores, -count)[-count] if count < len(scores) else -np.inf
    among = np.flatnonzero(scores >= least)
    return among[np.argsort(-scores[among], kind="stable")][:count]


def _at_most_1(sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Clips sums of probabilities, which rounding errors can raise 1e-16 above 1."""
    return np.minimum(sums, 1.0)
