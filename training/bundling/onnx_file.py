"""Writes a checkpoint to an ONNX file with metadata, its weights stored in half precision, and to a file of weights.

BatchNorm is folded into the convolutions in torch, before the weights are rounded, so that PyTorch can run with exactly
the weights of the file.
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
from training.evaluation.pictures import Pictures

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
        convolution.weight, convolution.bias = fused.weight, fused.bias
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
        BotanifyError: The exporter wrote another opset than `OPSET`.
    """
    example = torch.zeros(2, 3, spec.height, spec.width)
    program = torch.onnx.export(
        ExportableNetwork(network).eval(),
        (example,),
        input_names=[INPUT_NAME],
        output_names=[LOGITS_NAME, FEATURES_NAME],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        opset_version=OPSET,
        dynamo=True,
        verbose=False,
    )
    assert program is not None, "the dynamo exporter returns a program"
    model = program.model_proto
    # The exporter's notes contain stack traces with paths of the machine.
    for entry in [*model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output, model.graph]:
        del entry.metadata_props[:]
        entry.doc_string = ""
    casts = []  # of large weights, stored as float16, to float32; ONNX Runtime folds them on loading
    for initializer in model.graph.initializer:
        array = numpy_helper.to_array(initializer)
        if array.dtype == np.float32 and array.size >= _SMALLEST_HALVED:
            name, stored = initializer.name, f"{initializer.name}_half"
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
        return np.concatenate([network(torch.from_numpy(pixels)).numpy() for pixels in pictures.pixels()])


def write_weights(path: Path, checkpoint: Checkpoint) -> None:
    """Writes the weights that are exported, in full precision, to a safetensors file under timm's names."""
    weights = timm_names(checkpoint.eval_weights)
    save_file({name: value.contiguous() for name, value in weights.items()}, path, {"format": "pt"})
