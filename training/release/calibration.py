"""Temperature scaling (Guo et al. 2017): one number, fitted on validation, that makes scores mean what they say."""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from models.ranking import output_probabilities, taxon_probabilities
from models.taxonomy import Taxonomy
from training.evaluation.metrics import negative_log_likelihood

LEAST: Final = 0.05
MOST: Final = 20.0
_STEPS: Final = 60  # golden-section steps: the bracket shrinks by 0.618 each, to 1e-12 of its size
_GOLDEN: Final = (math.sqrt(5) - 1) / 2


def fit_temperature(logits: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], taxonomy: Taxonomy) -> float:
    """Finds the temperature under which the right taxa are likeliest.

    Args:
        logits: Shape (num_pictures, num_outputs), of the very network file that will be served.
        labels: Shape (num_pictures,), positions of outputs.
        taxonomy: Outputs of one taxon are summed, as in service.

    Returns:
        A temperature in [0.05, 20]: below 1 sharpens, above 1 softens.
    """
    taxa = taxonomy.taxon_of_output[labels]

    def loss(log_temperature: float) -> float:
        probabilities = output_probabilities(logits, math.exp(log_temperature))
        return negative_log_likelihood(taxon_probabilities(probabilities, taxonomy), taxa)

    low, high = math.log(LEAST), math.log(MOST)
    for _ in range(_STEPS):
        width = _GOLDEN * (high - low)
        if loss(high - width) < loss(low + width):
            high = low + width
        else:
            low = high - width
    return math.exp((low + high) / 2)
