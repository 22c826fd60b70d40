"""The calibrated predictions of a network for pictures of a manifest."""

import msgspec
import numpy as np
import numpy.typing as npt

from models.ranking import output_probabilities, taxon_probabilities
from models.taxonomy import Taxonomy


class Predictions(msgspec.Struct, frozen=True):
    """Calibrated probabilities, and the labels. Letters in names: N pictures, O outputs, T taxa."""

    rows: npt.NDArray[np.int64]
    """Rows of the manifest, shape (N,)."""
    outputs_NO: npt.NDArray[np.float64]
    """Probability of every output."""
    taxa_NT: npt.NDArray[np.float64]
    """Probability of every taxon."""
    labels_N: npt.NDArray[np.int64]
    """Position of the labeled output."""
    taxon_labels_N: npt.NDArray[np.intp]
    """Position of the labeled taxon."""

    def subset(self, chosen: npt.NDArray[np.bool_]) -> "Predictions":
        """Returns the predictions for some of the pictures."""
        return Predictions(*(getattr(self, field)[chosen] for field in self.__struct_fields__))


def calibrated_predictions(
    logits: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    taxonomy: Taxonomy,
    temperature: float,
) -> Predictions:
    """Converts logits to probabilities with the functions that the service uses."""
    outputs = output_probabilities(logits, temperature)
    taxa = taxon_probabilities(outputs, taxonomy)
    return Predictions(rows, outputs, taxa, labels, taxonomy.taxon_of_output[labels])
