"""fp16: computes in half precision, for GPUs. Pictures go in and logits come out as float32."""

import os
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from training.bundling.onnx_file import require_opset

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # as in models/session.py: before ONNX Runtime is first imported


def fold_constants(source: Path, target: Path) -> None:
    """Writes a copy of a network with all constants folded, weights in float32, and all shapes inferred."""
    import onnxruntime

    # The two steps of ONNX Runtime's quant_pre_process, which forgets the first one before 1.31.
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(target)
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    onnx.shape_inference.infer_shapes_path(target, target)


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


def write_fp16(fp32: Path, target: Path) -> None:
    """Writes the network of the fp32 file in half precision."""
    from onnxruntime.quantization.onnx_model import ONNXModel
    from onnxruntime.transformers.float16 import convert_float_to_float16

    fold_constants(fp32, target)
    converted = ONNXModel(convert_float_to_float16(onnx.load(target), keep_io_types=True))
    converted.topological_sort()  # the conversion appends the casts of input and outputs at the end
    onnx.save(converted.model, target)
    restore_metadata(target, like=fp32)


def write_rounded(fp32: Path, target: Path) -> None:
    """Writes a network that computes on a CPU what the half-precision network computes on a GPU.

    It computes in float32 and rounds each operator's result to half precision, like a GPU that sums in float32 and
    stores in float16; values that are too large become infinite. The half-precision file itself cannot be used: ONNX
    Runtime's CPU provider computes it in float32 throughout, which hides both the rounding and the overflow.
    """
    fold_constants(fp32, target)
    model = onnx.load(target)
    for initializer in model.graph.initializer:
        array = numpy_helper.to_array(initializer)
        if array.dtype == np.float32:
            with np.errstate(over="ignore"):
                array = array.astype(np.float16).astype(np.float32)
            initializer.CopyFrom(numpy_helper.from_array(array, initializer.name))
    floats = {
        each.name
        for each in [*model.graph.value_info, *model.graph.output]
        if each.type.tensor_type.elem_type == TensorProto.FLOAT
    }
    (pixels,) = model.graph.input
    rounded = f"{pixels.name}_rounded"
    nodes = _round(pixels.name, rounded)
    for node in model.graph.node:
        node.input[:] = [rounded if name == pixels.name else name for name in node.input]
        nodes.append(node)
        for index, name in enumerate(node.output):
            if name in floats:  # the casts take over the name
                node.output[index] = f"{name}_exact"
                nodes += _round(node.output[index], name)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, target)
    restore_metadata(target, like=fp32)


def _round(source: str, target: str) -> list[onnx.NodeProto]:
    """Casts that round a tensor to half precision."""
    half = f"{target}_half"
    return [
        helper.make_node("Cast", [source], [half], name=f"{half}_cast", to=TensorProto.FLOAT16),
        helper.make_node("Cast", [half], [target], name=f"{target}_cast", to=TensorProto.FLOAT),
    ]
