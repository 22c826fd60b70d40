"""The golden picture: a drawn picture inside the bundle, and what each network file answered on it when it was sealed.

Hashes show that a file is the one that was released. They do not show that this machine, with its runtime and its
device, computes with it what was released: a golden picture does. The service runs it after it opened a network.
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
# On drawn pictures half-precision arithmetic moved a probability of the demonstration network by at most 0.0015; int8
# computed operator by operator instead of fused moved it by 0.002 on the steadiest. A wrong file moves it by far more.
LARGEST_DIFFERENCE: Final = 0.02


class Golden(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A picture and its recorded answers; stands in the bundle as `golden.json`."""

    picture: bytes
    """A PNG file, to be preprocessed as any other picture; base64 in JSON."""
    logits: dict[Precision, tuple[float, ...]]
    """Precision -> what its very file gave, shape (num_outputs,), not calibrated."""


def check_golden(golden: Golden, precision: Precision, logits: Floats, temperature: float) -> None:
    """Holds what a network answers now against what was recorded.

    Args:
        golden: The bundle's.
        precision: Whose record.
        logits: What the network gives for `golden.picture` now, shape (num_outputs,).
        temperature: Of that precision; the difference is one of calibrated probabilities.

    Raises:
        BundleError: A probability differs by more than 0.02, or there is no record to hold it against.
    """
    recorded = golden.logits.get(precision)
    if recorded is None:
        raise BundleError(
            "the golden picture has no recorded answer of that precision",
            value=precision,
            limit=" or ".join(golden.logits),
            remedy="export the bundle again",
        )
    difference = _largest_difference(np.asarray(recorded), logits, temperature)
    if not difference <= LARGEST_DIFFERENCE:  # also true of NaN
        raise BundleError(
            f"the {precision} network answers the golden picture otherwise than when it was sealed",
            value=f"a probability that differs by {difference:.3f}",
            limit=f"at most {LARGEST_DIFFERENCE}",
            remedy="fetch the bundle again; if that does not help, this runtime or device computes wrongly",
        )


def _largest_difference(recorded: npt.NDArray[np.float64], logits: Floats, temperature: float) -> float:
    if logits.shape != recorded.shape or not np.isfinite(logits).all():
        return float("nan")
    difference = output_probabilities(logits, temperature) - output_probabilities(recorded, temperature)
    return float(np.abs(difference).max())
