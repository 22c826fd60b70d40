"""A torch network -> one self-describing ONNX file, optionally with its weights stored in half precision.

BatchNorm is folded into the convolutions first, in torch, so that the weights that are rounded are the very weights
that the file holds, and PyTorch can be given the same.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from models.errors import BotanifyError
from models.network import ExportableNetwork, PlantNetwork
from models.preprocess import InputSpec
from models.session import FEATURES_NAME, INPUT_NAME, LABEL_HASH_FIELD, LOGITS_NAME, OUTPUT_KEYS_FIELD
from models.taxonomy import Taxonomy

OPSET: Final = 20
_SMALLEST_HALVED: Final = 64  # tensors of fewer numbers (shapes, axes, scalars) stay as they are


def fold_batch_norm(network: PlantNetwork, spec: InputSpec) -> None:
    """Folds every BatchNorm that follows a convolution into it, in place; the network must be in evaluation mode.

    Pairs are found by running one picture: a norm belongs to the convolution whose output it is given.
    """
    for convolution, norm_name in _pairs(network, spec):
        norm = cast(nn.BatchNorm2d, network.get_submodule(norm_name))
        fused = fuse_conv_bn_eval(convolution, norm)
        convolution.weight, convolution.bias = fused.weight, fused.bias
        rest = [getattr(norm, name) for name in ("drop", "act") if hasattr(norm, name)]  # timm's norms hold both
        network.set_submodule(norm_name, nn.Sequential(*rest))


def round_to_half(network: PlantNetwork) -> None:
    """Rounds every weight that `write_onnx` stores in half precision to it, in place; the type stays float32."""
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.numel() >= _SMALLEST_HALVED:
                parameter.copy_(parameter.half().float())


def write_onnx(network: PlantNetwork, spec: InputSpec, taxonomy: Taxonomy, path: Path, *, half_storage: bool) -> None:
    """Writes the network to one ONNX file with dynamic batch, outputs `logits` and `features`, and its names inside.

    Args:
        network: In evaluation mode, on the CPU, not compiled.
        spec: Gives height and width, which are fixed in the file.
        taxonomy: Its output keys and label hash go into the metadata.
        path: The file to write.
        half_storage: Store weights as float16 and cast them to float32 when the file is loaded.

    Raises:
        BotanifyError: The exporter raised the opset: our promise to runtimes would be broken.
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
    _forget_origin(model)
    if half_storage:
        _store_half(model)
    helper.set_model_props(model, _metadata(taxonomy))
    require_opset(model)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def require_opset(model: onnx.ModelProto) -> None:
    """Refuses a network that was written for another opset than we promise to runtimes.

    Raises:
        BotanifyError: The opset is another.
    """
    opset = next(entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"})
    if opset != OPSET:
        raise BotanifyError(
            f"the exporter wrote opset {opset} where {OPSET} was asked for; install the locked versions."
        )


def _pairs(network: PlantNetwork, spec: InputSpec) -> list[tuple[nn.Conv2d, str]]:
    """Convolutions and the names of the norms that are given their outputs."""
    made_by: dict[int, tuple[nn.Conv2d, Tensor]] = {}  # keeps the outputs alive, so that ids stay unique
    pairs: list[tuple[nn.Conv2d, str]] = []

    def remember(module: nn.Module, _inputs: Any, output: Tensor) -> None:
        made_by[id(output)] = (module, output)  # type: ignore[assignment]

    def pair(name: str) -> Any:
        def look(_module: nn.Module, inputs: tuple[Tensor]) -> None:
            if id(inputs[0]) in made_by:
                pairs.append((made_by[id(inputs[0])][0], name))

        return look

    hooks = []
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d):
            hooks.append(module.register_forward_hook(remember))
        elif isinstance(module, nn.BatchNorm2d):
            hooks.append(module.register_forward_pre_hook(pair(name)))
    with torch.no_grad():
        network(torch.zeros(1, 3, spec.height, spec.width))
    for hook in hooks:
        hook.remove()
    return pairs


def _forget_origin(model: onnx.ModelProto) -> None:
    """Drops the exporter's notes, which hold stack traces with the paths of the machine that exported."""
    for entry in [*model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output, model.graph]:
        del entry.metadata_props[:]
        entry.doc_string = ""


def _store_half(model: onnx.ModelProto) -> None:
    """Stores large float initializers as float16 behind a Cast; ONNX Runtime folds the casts when it loads the file."""
    casts = []
    for initializer in model.graph.initializer:
        array = numpy_helper.to_array(initializer)
        if array.dtype != np.float32 or array.size < _SMALLEST_HALVED:
            continue
        name, stored = initializer.name, f"{initializer.name}_half"
        initializer.CopyFrom(numpy_helper.from_array(array.astype(np.float16), stored))
        casts.append(helper.make_node("Cast", [stored], [name], name=f"{name}_cast", to=TensorProto.FLOAT))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _metadata(taxonomy: Taxonomy) -> dict[str, str]:
    return {
        OUTPUT_KEYS_FIELD: json.dumps(taxonomy.output_keys, ensure_ascii=False),
        LABEL_HASH_FIELD: taxonomy.label_hash,
        "scientific_names": json.dumps(_names(taxonomy), ensure_ascii=False),
    }


def _names(taxonomy: Taxonomy) -> Sequence[str]:
    return [taxonomy.taxa[index].scientific_name for index in taxonomy.taxon_of_output]
