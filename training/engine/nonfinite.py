"""Finds out why gradients or weights are NaN or infinite."""

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from models.errors import BotanifyError


class Diverged(BotanifyError):
    """The gradients or the weights are not finite."""

    code = "diverged"


def diagnose(network: nn.Module, pixels: Tensor, scale: float, fp16: bool) -> str:
    """Says in one sentence where the first value that is not finite appears, by a forward pass in FP32.

    Args:
        network: The network as it is now.
        pixels: Normalized pictures of the last step.
        scale: Factor of the loss.
        fp16: Whether training runs in fp16.
    """
    lost = [name for name, value in network.named_parameters() if not bool(value.isfinite().all())]
    if lost:
        return f"{len(lost)} weight tensors are not finite, first {lost[0]}: resume from an earlier checkpoint"
    if not bool(pixels.isfinite().all()):
        return "the network's input is not finite"
    first = _first_nonfinite_layer(network, pixels)
    if first:
        return f"in FP32 too, the first layer whose output is not finite is {first}"
    if fp16:
        return f"in FP32 the forward pass is finite: half precision overflows (loss scale {scale:g})"
    return "in FP32 the forward pass is finite: the loss or the gradients overflow"


def _first_nonfinite_layer(network: nn.Module, pixels: Tensor) -> str:
    found: list[str] = []

    def check(name: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if not found and isinstance(output, Tensor) and not bool(output.isfinite().all()):
                found.append(name)

        return hook

    was_training = network.training
    network.eval()
    with ExitStack() as hooks, torch.no_grad():
        for name, module in network.named_modules():
            if not any(True for _ in module.children()):
                hooks.callback(module.register_forward_hook(check(name)).remove)
        network(pixels)
    network.train(was_training)
    return found[0] if found else ""
