"""The golden picture: a drawn picture in the bundle, with the logits of each network file, recorded at the export.

A hash shows that a file is the released one. It does not show that this runtime and this device compute the right
logits with it. The golden picture does: the service runs it after it has opened a network.
"""

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from models.bundle_record import Precision
from models.errors import BundleError
from models.ranking import Floats, output_probabilities

GOLDEN_PART: Final = "golden"
GOLDEN_FILE: Final = "golden.json"
# Half-precision arithmetic changed a probability of the demonstration network by at most 0.0015 on drawn pictures. int8
# with unfused operators changed it by 0.002 on the most stable of them. A wrong file changes it by far more.
LARGEST_DIFFERENCE: Final = 0.02


class Golden(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A picture and its recorded logits: the content of `golden.json`."""

    picture: bytes
    """A PNG file, which is preprocessed like any other picture; base64 in JSON."""
    logits: dict[Precision, tuple[float, ...]]
    """Precision -> logits that its file gave, shape (num_outputs,), not calibrated."""


def check_golden(golden: Golden, precision: Precision, logits: Floats, temperature: float) -> None:
    """Compares the logits of an opened network with the recorded ones.

    Args:
        golden: The golden picture of the bundle.
        precision: The precision of the network.
        logits: The logits that the network gives for `golden.picture`, shape (num_outputs,).
        temperature: Temperature of that network, since calibrated probabilities are compared.

    Raises:
        BundleError: A probability differs by more than 0.02, or the picture has no logits of that precision.
    """
    recorded = golden.logits.get(precision)
    if recorded is None:
        raise BundleError(
            "the golden picture has no recorded logits of that precision",
            value=precision,
            limit=" or ".join(golden.logits),
            remedy="export the bundle again",
        )
    difference = _largest_difference(np.asarray(recorded), logits, temperature)
    if not difference <= LARGEST_DIFFERENCE:  # also true of NaN
        raise BundleError(
            f"the {precision} network does not give the recorded answer to the golden picture",
            value=f"a difference in probability of {difference:.3f}",
            limit=f"at most {LARGEST_DIFFERENCE}",
            remedy="fetch the bundle again; if the error stays, this runtime or device computes wrong results",
        )


def _largest_difference(recorded: npt.NDArray[np.float64], logits: Floats, temperature: float) -> float:
    if logits.shape != recorded.shape or not np.isfinite(logits).all():
        return float("nan")
    difference = output_probabilities(logits, temperature) - output_probabilities(recorded, temperature)
    return float(np.abs(difference).max())
