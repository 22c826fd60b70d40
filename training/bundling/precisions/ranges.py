"""Calibration of int8: the range of values of each tensor of a network, measured on training pictures.

ONNX Runtime's own methods pool the values of all pictures: their minimum and maximum (MinMax), a percentile, or the
range of least entropy. A single outlier, a picture with extreme activations, can then set the range. Here the minimum
and maximum are taken for each picture, and the range is a percentile of those. In int8 the demonstration network lost
most of its accuracy with MinMax and Entropy, several points with Percentile, and least with this.
"""

import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from models.session import INPUT_NAME

Pixels = npt.NDArray[np.float32]


class Extremes(msgspec.Struct, frozen=True):
    """Minimum and maximum of every tensor for every picture. N pictures, T tensors."""

    tensors: tuple[str, ...]
    lowest_NT: npt.NDArray[np.float32]
    highest_NT: npt.NDArray[np.float32]


def picture_extremes(network: Path, pictures: Iterable[Pixels]) -> Extremes:
    """Runs pictures through a network and records the minimum and maximum of every tensor.

    Args:
        network: A float32 file with inferred shapes.
        pictures: Network inputs, each of shape (1, 3, height, width).
    """
    from onnxruntime.quantization import CalibrationMethod
    from onnxruntime.quantization.calibrate import create_calibrator

    with tempfile.TemporaryDirectory() as folder:
        augmented = str(Path(folder) / "augmented.onnx")
        method = CalibrationMethod.MinMax  # adds the minimum and maximum of every tensor to the outputs
        session = create_calibrator(network, augmented_model_path=augmented, calibrate_method=method).infer_session
        names = [node.name for node in session.get_outputs()]
        tensors = tuple(sorted(name.removesuffix("_ReduceMin") for name in names if name.endswith("_ReduceMin")))
        outputs = [f"{tensor}_{end}" for end in ("ReduceMin", "ReduceMax") for tensor in tensors]
        found = [np.concatenate(session.run(outputs, {INPUT_NAME: pixels}), axis=None) for pixels in pictures]
    lowest, highest = np.split(np.stack(found), 2, axis=1)
    return Extremes(tensors, lowest, highest)


def write_ranges(extremes: Extremes, share: float, path: Path) -> None:
    """Writes ranges that hold the extremes of a share of the pictures, as a calibration cache of ONNX Runtime.

    Args:
        extremes: The extremes for the calibration pictures.
        share: In (0, 1]; 1 gives the minimum and maximum of all pictures.
        path: The JSON file to write.
    """
    from onnxruntime.quantization import CalibrationMethod
    from onnxruntime.quantization.calibrate import TensorData, TensorsData, save_tensors_data

    lowest = np.quantile(extremes.lowest_NT, 1 - share, axis=0).astype(np.float32)
    highest = np.quantile(extremes.highest_NT, share, axis=0).astype(np.float32)
    ranges = {
        tensor: TensorData(lowest=low, highest=high)
        for tensor, low, high in zip(extremes.tensors, lowest, highest, strict=True)
    }
    save_tensors_data(TensorsData(CalibrationMethod.MinMax, ranges), path)
