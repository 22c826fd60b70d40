"""Temperature scaling (Guo et al. 2017): one number, fitted on held-out pictures, that calibrates probabilities."""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from models.ranking import output_probabilities, taxon_probabilities
from models.taxonomy import Taxonomy
from training.evaluation.metrics import negative_log_likelihood
from training.evaluation.plants import Plants, picture_weights

LEAST: Final = 0.05
MOST: Final = 20.0
_STEPS: Final = 60  # of golden-section search: each shrinks the bracket by 0.618, all to 1e-12 of its size
_GOLDEN: Final = (math.sqrt(5) - 1) / 2


def fit_temperature(
    logits: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], taxonomy: Taxonomy, plants: Plants
) -> float:
    """Finds the temperature that gives the labeled taxa the highest likelihood.

    Args:
        logits: Logits of the network file that will be served, shape (num_pictures, num_outputs).
        labels: Positions of the labeled outputs, shape (num_pictures,).
        taxonomy: Gives the taxon of each output; the outputs of a taxon are summed, as in the service.
        plants: Plant of each picture; every plant weighs the same, however many pictures of it there are.

    Returns:
        A temperature in [0.05, 20]: below 1 it raises the highest probability, above 1 it lowers it.
    """
    taxa, weights = taxonomy.taxon_of_output[labels], picture_weights(plants)

    def loss(log_temperature: float) -> float:
        probabilities = output_probabilities(logits, math.exp(log_temperature))
        right = taxon_probabilities(probabilities, taxonomy)[np.arange(len(taxa)), taxa]
        return negative_log_likelihood(right, weights)

    low, high = math.log(LEAST), math.log(MOST)
    for _ in range(_STEPS):
        width = _GOLDEN * (high - low)
        if loss(high - width) < loss(low + width):
            high = low + width
        else:
            low = high - width
    return math.exp((low + high) / 2)
