"""The calibrated predictions of a network for pictures of a manifest."""

import msgspec
import numpy as np
import numpy.typing as npt

from models.ranking import output_probabilities, taxon_probabilities
from models.taxonomy import Taxonomy
from training.evaluation.plants import Plants


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
    plants_N: Plants
    """Number of the plant that the picture shows."""

    @property
    def confidence(self) -> npt.NDArray[np.float64]:
        """Probability of the most likely taxon."""
        return np.asarray(self.taxa_NT.max(axis=1))

    @property
    def hits(self) -> npt.NDArray[np.bool_]:
        """Whether the most likely taxon is the labeled one."""
        return np.asarray(self.taxa_NT.argmax(axis=1) == self.taxon_labels_N)

    def subset(self, chosen: npt.NDArray[np.bool_]) -> "Predictions":
        """Returns the predictions for some of the pictures."""
        return Predictions(*(getattr(self, field)[chosen] for field in self.__struct_fields__))


def calibrated_predictions(
    logits: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    taxonomy: Taxonomy,
    temperature: float,
    *,
    plants: Plants | None = None,
) -> Predictions:
    """Converts logits to probabilities with the functions that the service uses.

    Args:
        logits: Shape (num_pictures, num_outputs).
        labels: Position of each picture's output.
        rows: Rows of the manifest.
        taxonomy: Gives the taxon of each output.
        temperature: Divides the logits.
        plants: The plant of each picture; default: every picture shows another plant.
    """
    outputs = output_probabilities(logits, temperature)
    taxa = taxon_probabilities(outputs, taxonomy)
    plants = np.arange(len(rows)) if plants is None else plants
    return Predictions(rows, outputs, taxa, labels, taxonomy.taxon_of_output[labels], plants)
