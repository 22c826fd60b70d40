"""fp16: a network that computes in half precision, for GPUs; pictures go in and answers come out as float32."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from training.release.precisions.graph import fold_constants, keep_promises


def write_half(single: Path, target: Path) -> None:
    """Writes the network in half precision.

    Args:
        single: The fp32 file.
        target: The file to write.
    """
    from onnxruntime.quantization.onnx_model import ONNXModel
    from onnxruntime.transformers.float16 import convert_float_to_float16

    fold_constants(single, target)
    converted = ONNXModel(convert_float_to_float16(onnx.load(target), keep_io_types=True))
    converted.topological_sort()  # the casts of input and outputs were added at the end
    onnx.save(converted.model, target)
    keep_promises(target, like=single)


def write_rounded(single: Path, target: Path) -> None:
    """Writes a stand-in that gives on a CPU what the half-precision network gives on a GPU.

    It computes in float32 and rounds what each operator gives to half precision, as a GPU does that sums in float32 and
    stores in float16; what is too large becomes infinite. ONNX Runtime's CPU provider would not do: it computes a
    half-precision file in float32 throughout, and hides both the rounding and the overflow.

    Args:
        single: The fp32 file.
        target: The file to write.
    """
    fold_constants(single, target)
    model = onnx.load(target)
    for initializer in model.graph.initializer:
        array = numpy_helper.to_array(initializer)
        if array.dtype == np.float32:
            with np.errstate(over="ignore"):
                rounded = array.astype(np.float16).astype(np.float32)
            initializer.CopyFrom(numpy_helper.from_array(rounded, initializer.name))
    floats = {
        each.name
        for each in [*model.graph.value_info, *model.graph.output]
        if each.type.tensor_type.elem_type == TensorProto.FLOAT
    }
    nodes = [each for node in model.graph.node for each in _rounding(node, floats)]
    (pixels,) = model.graph.input
    for node in nodes:
        node.input[:] = [f"{name}_rounded" if name == pixels.name else name for name in node.input]
    nodes = [*_round(pixels.name, f"{pixels.name}_rounded"), *nodes]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, target)
    keep_promises(target, like=single)


def _rounding(node: onnx.NodeProto, floats: set[str]) -> list[onnx.NodeProto]:
    """The node, and what rounds those of its outputs that are float; their names go to what is rounded."""
    rounds = []
    for at, name in enumerate(node.output):
        if name in floats:
            node.output[at] = f"{name}_exact"
            rounds += _round(node.output[at], name)
    return [node, *rounds]


def _round(source: str, target: str) -> list[onnx.NodeProto]:
    half = f"{target}_half"
    return [
        helper.make_node("Cast", [source], [half], name=f"{half}_cast", to=TensorProto.FLOAT16),
        helper.make_node("Cast", [half], [target], name=f"{target}_cast", to=TensorProto.FLOAT),
    ]
