"""Rewrites of a network file that change neither its results nor its interface."""

import logging
import os
from pathlib import Path
from typing import Final

import onnx
from onnx import helper, numpy_helper

from models.errors import BotanifyError
from training.bundling.onnx_file import require_opset

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # as in models/session.py: before ONNX Runtime is first imported

_SPATIAL_AXES: Final = ({2, 3}, {-2, -1})  # height and width


def fold_constants(source: Path, target: Path) -> None:
    """Writes a copy of a network with all constants folded, weights in float32, and all shapes inferred.

    Raises:
        BotanifyError: ONNX Runtime could not fold the constants; it only logs that.
    """
    from onnxruntime.quantization.shape_inference import quant_pre_process

    logging.getLogger("onnxruntime.quantization.shape_inference").setLevel(logging.CRITICAL)  # raised below instead
    quant_pre_process(source, target, skip_symbolic_shape=True)  # only transformers need symbolic shapes
    model = onnx.load(target)
    constants = {initializer.name for initializer in model.graph.initializer}
    if any(node.op_type == "Cast" and node.input[0] in constants for node in model.graph.node):
        raise BotanifyError(f"ONNX Runtime could not fold the constants of {source.name}; install the locked versions.")


def pool_means(path: Path) -> int:
    """Replaces every mean over height and width by a global average pool, in place.

    The result is the same, but the quantized `ReduceMean` of ONNX Runtime is several times as slow as the pool, in each
    squeeze-and-excite block of EfficientNet.

    Returns:
        The number of replaced means.
    """
    model = onnx.load(path)
    values = {each.name: each for each in model.graph.initializer}
    means = [node for node in model.graph.node if _is_spatial_mean(node, values)]
    for node in means:
        pool = helper.make_node("GlobalAveragePool", [node.input[0]], [node.output[0]], name=node.name)
        node.CopyFrom(pool)
    _drop_unused(model)
    onnx.save(model, path)
    return len(means)


def restore_metadata(path: Path, like: Path) -> None:
    """Copies the metadata of the original to a rewritten file, and checks the file.

    Raises:
        BotanifyError: The rewriting changed the opset.
    """
    model, original = onnx.load(path), onnx.load(like)
    helper.set_model_props(model, {entry.key: entry.value for entry in original.metadata_props})
    used = {node.domain for node in model.graph.node}
    # The optimizer lists every domain that it knows.
    opsets = [opset for opset in model.opset_import if opset.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(opsets)
    require_opset(model)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _is_spatial_mean(node: onnx.NodeProto, values: dict[str, onnx.TensorProto]) -> bool:
    """Whether a node is a mean over height and width that keeps both axes, with the axes as a constant."""
    if node.op_type != "ReduceMean" or len(node.input) < 2 or node.input[1] not in values:
        return False
    keeps = next((attribute.i for attribute in node.attribute if attribute.name == "keepdims"), 1)
    return keeps == 1 and set(numpy_helper.to_array(values[node.input[1]]).tolist()) in _SPATIAL_AXES


def _drop_unused(model: onnx.ModelProto) -> None:
    used = {name for node in model.graph.node for name in node.input}
    kept = [each for each in model.graph.initializer if each.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
