"""int8: 8-bit weights and activations, for CPUs. Pictures go in and logits come out as float32."""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from training.bundling.precisions.graph import fold_constants, pool_means, restore_metadata
from training.bundling.precisions.ranges import Pixels, picture_extremes, write_ranges

# Share of the calibration pictures whose extremes fit into the ranges. Of 1.0, 0.99, 0.95, 0.9 and 0.75 this changed
# the predictions least for both networks that were measured (docs/experiments.md, 2026-11-22).
RANGE_SHARE: Final = 0.9


def write_int8(fp32: Path, target: Path, calibration: Iterable[Pixels]) -> None:
    """Writes the network in 8 bits: calibrates the ranges of its tensors, then quantizes weights and activations.

    Args:
        fp32: The fp32 file.
        target: The file to write.
        calibration: Training pictures, each of shape (1, 3, height, width).
    """
    with tempfile.TemporaryDirectory() as folder:
        prepared, ranges = Path(folder) / "prepared.onnx", Path(folder) / "ranges.json"
        fold_constants(fp32, prepared)
        pool_means(prepared)
        write_ranges(picture_extremes(prepared, calibration), RANGE_SHARE, ranges)
        _quantize(prepared, ranges, target)
    restore_metadata(target, like=fp32)


def _quantize(network: Path, ranges: Path, target: Path) -> None:
    """Writes the network with quantize and dequantize nodes (QDQ) around its operators.

    Activations are unsigned: on a processor without VNNI, signed ones ran slower than float32, unsigned ones faster.
    Weights use 7 of the 8 bits, with one scale for each output channel: without VNNI, two products of 8-bit weights
    overflow the 16-bit sums of x86, so that the same file would give other results on another processor. There 7 bits
    were as fast, and agreed with float32 more often.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    quantize_static(
        network,
        target,
        calibration_cache_path=ranges,
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        reduce_range=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
