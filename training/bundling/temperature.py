"""Fits the temperature that calibrates the logits of a network file."""

import math
from typing import Final

import numpy as np
from scipy.optimize import minimize_scalar

from models.metrics import Whole, negative_log_likelihood
from models.ranking import Floats, output_probabilities
from models.taxonomy import Taxonomy
from training.evaluation.predictions import Plants, Rows, chunks, picture_weights

LEAST: Final = 0.05
MOST: Final = 20.0
MOST_PICTURES: Final = 20_000
"""Pictures that are used at most: one number needs no more, and all 89,000 take minutes."""
_TOLERANCE: Final = 1e-8  # of the logarithm; a minimum cannot be told more exactly from values in double precision


def fit_temperature(logits: Rows, labels: Whole, taxonomy: Taxonomy, plants: Plants) -> float:
    """Finds the temperature that gives the labeled taxa the highest likelihood (Brent's method), in [0.05, 20].

    Below 1 it raises the highest probability, above 1 it lowers it. The outputs of a taxon are summed, as in the
    service, and every plant weighs the same, however many pictures of it there are.
    """
    chosen = plants_drawn(plants, MOST_PICTURES)
    logits, taxa, weights = logits[chosen], taxonomy.taxon_of_output[labels[chosen]], picture_weights(plants)[chosen]

    def loss(log_temperature: float) -> float:
        return negative_log_likelihood(right_probabilities(logits, taxa, taxonomy, math.exp(log_temperature)), weights)

    bounds = (math.log(LEAST), math.log(MOST))
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": _TOLERANCE})
    return math.exp(found.x)


def plants_drawn(plants: Plants, most: int) -> Whole:
    """Draws whole plants, at least one, while all their pictures fit in; returns their positions, ascending."""
    if len(plants) <= most:
        return np.arange(len(plants))
    _, plant_N, counts = np.unique(plants, return_inverse=True, return_counts=True)
    order = np.random.default_rng(0).permutation(len(counts))
    num_drawn = max(int((np.cumsum(counts[order]) <= most).sum()), 1)
    return np.flatnonzero(np.isin(plant_N, order[:num_drawn]))


def right_probabilities(logits: Rows, taxa: Whole, taxonomy: Taxonomy, temperature: float) -> Floats:
    """Returns the probability of the right taxon of each picture, without those of all other taxa."""
    right = np.empty(len(taxa))
    for part in chunks(*logits.shape):
        is_right = taxonomy.taxon_of_output == taxa[part, None]
        right[part] = (output_probabilities(logits[part], temperature) * is_right).sum(axis=1)
    return right
