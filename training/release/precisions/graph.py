"""Changes to the graph of a network file that keep what it computes, its names and its promises."""

import logging
import os
from pathlib import Path
from typing import Final

import onnx
from onnx import helper, numpy_helper

from models.errors import BotanifyError
from training.release.onnx_file import require_opset

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # as in models/session.py: before ONNX Runtime is first imported

_SPATIAL_AXES: Final = ({2, 3}, {-2, -1})  # height and width of a picture


def fold_constants(source: Path, target: Path) -> None:
    """Writes a network with every constant computed, half-stored weights widened and all shapes known.

    Raises:
        BotanifyError: ONNX Runtime could not do it, which it only logs.
    """
    from onnxruntime.quantization.shape_inference import quant_pre_process

    logging.getLogger("onnxruntime.quantization.shape_inference").setLevel(logging.CRITICAL)  # told below, in one line
    quant_pre_process(source, target, skip_symbolic_shape=True)  # symbolic shapes are meant for transformers
    model = onnx.load(target)
    constants = {initializer.name for initializer in model.graph.initializer}
    if any(node.op_type == "Cast" and node.input[0] in constants for node in model.graph.node):
        raise BotanifyError(f"ONNX Runtime could not fold the constants of {source.name}; install the locked versions.")


def pool_means(path: Path) -> int:
    """Turns every mean over height and width into a global average pool, in place.

    They compute the same, but the quantized `ReduceMean` of ONNX Runtime is slow: over the squeeze-and-excite blocks of
    EfficientNet-B4 it takes 45 ms where the other takes 5.

    Returns:
        How many were rewritten.
    """
    model = onnx.load(path)
    values = {each.name: each for each in model.graph.initializer}
    means = [node for node in model.graph.node if _is_picture_mean(node, values)]
    for node in means:
        pool = helper.make_node("GlobalAveragePool", [node.input[0]], [node.output[0]], name=node.name)
        node.CopyFrom(pool)
    _drop_unused(model)
    onnx.save(model, path)
    return len(means)


def keep_promises(path: Path, like: Path) -> None:
    """Gives a rewritten file the metadata of the one it came from, and checks it.

    Raises:
        BotanifyError: The opset was raised on the way.
    """
    model, original = onnx.load(path), onnx.load(like)
    helper.set_model_props(model, {entry.key: entry.value for entry in original.metadata_props})
    used = {node.domain for node in model.graph.node}
    opsets = [opset for opset in model.opset_import if opset.domain in used]  # the optimizer names all it knows
    del model.opset_import[:]
    model.opset_import.extend(opsets)
    require_opset(model)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _is_picture_mean(node: onnx.NodeProto, values: dict[str, onnx.TensorProto]) -> bool:
    """Whether it keeps the two axes, as a pool does, and they are known before it runs."""
    if node.op_type != "ReduceMean" or len(node.input) < 2 or node.input[1] not in values:
        return False
    keeps = next((attribute.i for attribute in node.attribute if attribute.name == "keepdims"), 1)
    return keeps == 1 and set(numpy_helper.to_array(values[node.input[1]]).tolist()) in _SPATIAL_AXES


def _drop_unused(model: onnx.ModelProto) -> None:
    used = {name for node in model.graph.node for name in node.input}
    kept = [each for each in model.graph.initializer if each.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
