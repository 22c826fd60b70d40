"""Why a run that met numbers that are none had to stop."""

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from models.errors import BotanifyError


class Diverged(BotanifyError):
    """The gradients or the weights are no longer numbers."""

    code = "diverged"


def diagnose(network: nn.Module, pixels: Tensor, scale: float, fp16: bool) -> str:
    """Says in one sentence where the numbers end, by a forward pass in single precision.

    Args:
        network: As it stands.
        pixels: Normalized pictures of the step.
        scale: What the loss is multiplied with.
        fp16: Whether training runs in half precision.
    """
    lost = [name for name, value in network.named_parameters() if not bool(value.isfinite().all())]
    if lost:
        return f"{len(lost)} tensors of weights are no numbers, first {lost[0]}: start again from an earlier checkpoint"
    if not bool(pixels.isfinite().all()):
        return "the network's input is no number"
    first = _first_without_numbers(network, pixels)
    if first:
        return f"in single precision too, the first layer whose output is no number is {first}"
    if fp16:
        return f"in single precision the forward pass is sound: half precision overflows (loss scale {scale:g})"
    return "the forward pass in single precision is sound: the loss or the gradients overflow"


def _first_without_numbers(network: nn.Module, pixels: Tensor) -> str:
    found: list[str] = []

    def note(name: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if not found and isinstance(output, Tensor) and not bool(output.isfinite().all()):
                found.append(name)

        return hook

    mode = network.training
    network.eval()
    with ExitStack() as hooks, torch.no_grad():
        for name, module in network.named_modules():
            if not any(True for _ in module.children()):
                hooks.callback(module.register_forward_hook(note(name)).remove)
        network(pixels)
    network.train(mode)
    return found[0] if found else ""
