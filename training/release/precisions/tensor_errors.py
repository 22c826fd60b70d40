"""Which tensors of a network lose most when they are quantized, and which nodes must stay in float32 to spare them."""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import onnx

from models.session import INPUT_NAME
from training.release.precisions.ranges import Pixels


class TensorError(msgspec.Struct, frozen=True):
    """What quantization does to one tensor."""

    tensor: str
    signal_to_noise_db: float
    """Signal to quantization noise, mean over the pictures, decibels: the lower, the worse."""


def tensor_errors(network: Path, quantized: Path, pictures: Iterable[Pixels]) -> list[TensorError]:
    """Compares every quantized tensor with what it was before, picture by picture.

    Args:
        network: The float32 file that was quantized.
        quantized: The int8 file.
        pictures: A few, each of shape (1, 3, height, width); all tensors of one picture are held at once.

    Returns:
        Worst first.
    """
    from onnxruntime.quantization import qdq_loss_debug

    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        whole, rounded = str(Path(folder) / "whole.onnx"), str(Path(folder) / "rounded.onnx")
        qdq_loss_debug.modify_model_output_intermediate_tensors(str(network), whole)
        qdq_loss_debug.modify_model_output_intermediate_tensors(str(quantized), rounded)
        for pixels in pictures:
            tensors = [qdq_loss_debug.collect_activations(file, _once(pixels)) for file in (whole, rounded)]
            matched = qdq_loss_debug.create_activation_matching(tensors[1], tensors[0])
            for tensor, errors in qdq_loss_debug.compute_activation_error(matched).items():
                found.setdefault(tensor, []).append(errors["qdq_err"])
    means = [TensorError(tensor, float(np.mean(values))) for tensor, values in found.items()]
    return sorted(means, key=lambda error: (error.signal_to_noise_db, error.tensor))


def nodes_around(network: Path, tensors: Iterable[str]) -> tuple[str, ...]:
    """Names of the nodes that write or read these tensors: all of them must stay in float32 to keep one whole."""
    spared = set(tensors)
    nodes = onnx.load(network, load_external_data=False).graph.node
    return tuple(node.name for node in nodes if spared & {*node.input, *node.output})


def _once(pixels: Pixels) -> Iterator[dict[str, Pixels]]:
    yield {INPUT_NAME: pixels}
