"""Logits -> calibrated probabilities -> ranked taxa, genera and families.

Pure functions over NumPy arrays. Letters in names: B pictures, O outputs, T taxa. The probability of a genus or family
is summed over all its taxa, not over the five most likely: a genus may be spread over twenty species.
"""

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from models.taxonomy import Groups, Taxon, Taxonomy

_VALUES_AT_ONCE: Final = 2**18
Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]
"""Floats of the network (single precision), or what is computed from them (double precision)."""


class RankedTaxon(msgspec.Struct, frozen=True):
    """A taxon and its probability."""

    taxon: Taxon
    score: float


class RankedGroup(msgspec.Struct, frozen=True):
    """A genus or family and its summed probability."""

    name: str
    score: float


class Ranking(msgspec.Struct, frozen=True):
    """Taxa, genera and families, most likely first."""

    taxa: list[RankedTaxon]
    genera: list[RankedGroup]
    families: list[RankedGroup]


def combine_pictures(logits_BO: Floats, weight_B: Floats) -> npt.NDArray[np.float64]:
    """Combines the pictures of one plant by the weighted mean of their logits.

    With equal weights the result gives the geometric mean of their probabilities.

    Args:
        logits_BO: Raw outputs, shape (num_pictures, num_outputs), at least one picture.
        weight_B: Weight of each picture, shape (num_pictures,); the weights sum to 1.

    Returns:
        Shape (num_outputs,).
    """
    return np.asarray(np.asarray(weight_B, dtype=np.float64) @ np.asarray(logits_BO, dtype=np.float64))


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


def rank(taxa_T: npt.NDArray[np.float64], taxonomy: Taxonomy, top_k: int = 5) -> Ranking:
    """Ranks taxa, genera and families by the probabilities of all taxa.

    A genus or family is at least as probable as each of its taxa: all sums run in the order of the taxa, and adding a
    probability never lowers a sum.

    Args:
        taxa_T: Calibrated probabilities, shape (num_taxa,).
        taxonomy: Names and groups of the taxa.
        top_k: Maximum length of each list; equal scores keep the order of the taxonomy.
    """
    return Ranking(
        best_taxa(taxa_T, taxonomy, top_k),
        _rank_groups(taxa_T, taxonomy.genera, top_k),
        _rank_groups(taxa_T, taxonomy.families, top_k),
    )


def best_taxa(taxa_T: npt.NDArray[np.float64], taxonomy: Taxonomy, top_k: int) -> list[RankedTaxon]:
    """Returns the most likely taxa, most likely first."""
    return [RankedTaxon(taxonomy.taxa[index], float(taxa_T[index])) for index in _best(taxa_T, top_k)]


def _rank_groups(taxa_T: npt.NDArray[np.float64], groups: Groups, top_k: int) -> list[RankedGroup]:
    """Ranks groups by probability, without the group "" of taxa whose genus or family is unknown."""
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
