"""Writes a checkpoint to ONNX files with metadata, fp32 and fp16, and to a file of weights.

The weights of the fp32 file are stored in half precision. BatchNorm is folded into the convolutions in torch, before
the weights are rounded, so that PyTorch can run with exactly the weights of the file. fp16 computes in half precision,
for GPUs; pictures go in and logits come out as float32.
"""

import json
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from models.errors import BotanifyError
from models.network import ExportableNetwork, PlantNetwork, timm_names
from models.preprocess import InputSpec
from models.ranking import Floats
from models.session import FEATURES_NAME, INPUT_NAME, LABEL_HASH_FIELD, LOGITS_NAME, OUTPUT_KEYS_FIELD
from models.taxonomy import Taxonomy
from training.engine.checkpoint import Checkpoint
from training.fit.pictures import Pictures

OPSET: Final = 20
_SMALLEST_HALVED: Final = 64  # smaller tensors (shapes, axes, scalars) stay in float32


def fold_batch_norm(network: PlantNetwork, spec: InputSpec) -> None:
    """Folds every BatchNorm that follows a convolution into it, in place; the network must be in evaluation mode.

    The pairs are found by running one picture: a norm follows the convolution whose output is its input.
    """
    made_by: dict[int, tuple[nn.Conv2d, Tensor]] = {}  # holds the outputs, so that their ids stay unique
    pairs: list[tuple[nn.Conv2d, str]] = []

    def keep_output(convolution: Any, _inputs: Any, output: Tensor) -> None:
        made_by[id(output)] = convolution, output

    def find_pair(name: str, _norm: nn.Module, inputs: tuple[Tensor]) -> None:
        if id(inputs[0]) in made_by:
            pairs.append((made_by[id(inputs[0])][0], name))

    with ExitStack() as hooks, torch.no_grad():
        for name, module in network.named_modules():
            if isinstance(module, nn.Conv2d):
                hooks.callback(module.register_forward_hook(keep_output).remove)
            elif isinstance(module, nn.BatchNorm2d):
                hooks.callback(module.register_forward_pre_hook(partial(find_pair, name)).remove)
        network(torch.zeros(1, 3, spec.height, spec.width))
    for convolution, name in pairs:
        norm = cast(nn.BatchNorm2d, network.get_submodule(name))
        fused = fuse_conv_bn_eval(convolution, norm)
        convolution.weight = fused.weight
        convolution.bias = fused.bias
        others = [getattr(norm, part) for part in ("drop", "act") if hasattr(norm, part)]  # timm's norms contain both
        network.set_submodule(name, nn.Sequential(*others))


def round_to_half(network: PlantNetwork) -> None:
    """Rounds the weights that `write_onnx` stores in half precision, in place; their type stays float32."""
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.numel() >= _SMALLEST_HALVED:
                parameter.copy_(parameter.half().float())


def write_onnx(network: PlantNetwork, spec: InputSpec, taxonomy: Taxonomy, path: Path) -> None:
    """Writes the network to an ONNX file with a dynamic batch size, outputs `logits` and `features`, and metadata.

    Weights are stored as float16, and cast to float32 when the file is loaded. The file fixes height and width. The
    network is in evaluation mode, on the CPU, and not compiled.

    Raises:
        BotanifyError: PyTorch cannot convert the network, or wrote another opset than `OPSET`.
    """
    model = convert(network, spec.height, spec.width)
    # The exporter's notes contain stack traces with paths of the machine.
    for entry in [*model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output, model.graph]:
        del entry.metadata_props[:]
        entry.doc_string = ""
    casts = []  # of large weights, stored as float16, to float32; ONNX Runtime folds them on loading
    for initializer in model.graph.initializer:
        array = numpy_helper.to_array(initializer)
        if array.dtype == np.float32 and array.size >= _SMALLEST_HALVED:
            name = initializer.name
            stored = f"{initializer.name}_half"
            initializer.CopyFrom(numpy_helper.from_array(array.astype(np.float16), stored))
            casts.append(helper.make_node("Cast", [stored], [name], name=f"{name}_cast", to=TensorProto.FLOAT))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    names = [taxonomy.taxa[index].scientific_name for index in taxonomy.taxon_of_output]
    metadata = {
        OUTPUT_KEYS_FIELD: json.dumps(taxonomy.output_keys, ensure_ascii=False),
        LABEL_HASH_FIELD: taxonomy.label_hash,
        "scientific_names": json.dumps(names, ensure_ascii=False),
    }
    helper.set_model_props(model, metadata)
    require_opset(model)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def convert(network: PlantNetwork, height: int, width: int) -> onnx.ModelProto:
    """Converts a network with a dynamic batch size and outputs `logits` and `features`; see `write_onnx`.

    Raises:
        BotanifyError: PyTorch cannot convert this architecture.
    """
    try:
        program = torch.onnx.export(
            ExportableNetwork(network).eval(),
            (torch.zeros(2, 3, height, width),),
            input_names=[INPUT_NAME],
            output_names=[LOGITS_NAME, FEATURES_NAME],
            dynamic_shapes=({0: "batch"},),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    except torch.onnx.OnnxExporterError as error:
        raise BotanifyError(
            f"PyTorch cannot convert {network.architecture} to ONNX; take another --architecture."
        ) from error
    assert program is not None  # the dynamo exporter returns a program
    return program.model_proto


def require_opset(model: onnx.ModelProto) -> None:
    """Raises BotanifyError for a network whose opset is not `OPSET`, which runtimes of a bundle must support."""
    opset = next(entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"})
    if opset != OPSET:
        raise BotanifyError(f"the exporter wrote opset {opset} instead of {OPSET}; install the locked versions.")


def write_fp32(checkpoint: Checkpoint, pictures: Pictures, target: Path) -> tuple[Floats, Floats]:
    """Writes the network file, and runs PyTorch on some pictures for comparison.

    Returns PyTorch's logits with the weights of the checkpoint, and with the weights of the file.
    """
    network = checkpoint.trained_network()
    network.fix_size(pictures.spec.height, pictures.spec.width)
    fold_batch_norm(network, pictures.spec)
    exact = _torch_logits(network, pictures)
    round_to_half(network)
    same_weights = _torch_logits(network, pictures)
    write_onnx(network, pictures.spec, pictures.manifest.taxonomy, target)
    return exact, same_weights


def _torch_logits(network: PlantNetwork, pictures: Pictures) -> Floats:
    with torch.inference_mode():
        return np.concatenate([network(torch.from_numpy(pixels)).numpy() for pixels in pictures.pixels([])])


def write_weights(path: Path, checkpoint: Checkpoint) -> None:
    """Writes the weights that are exported, in full precision, to a safetensors file under timm's names."""
    weights = timm_names(checkpoint.eval_weights)
    save_file({name: value.contiguous() for name, value in weights.items()}, path, {"format": "pt"})


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
    model = onnx.load(path)
    original = onnx.load(like)
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
