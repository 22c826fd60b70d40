"""The errors of a step with their cause: memory that ran out, and values that are not finite."""

from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from models.errors import BotanifyError
from training.engine.step import Engine
from training.loading.negatives import num_plants
from training.monitor.memory import OutOfMemory, largest_fitting_batch, out_of_memory


class Diverged(BotanifyError):
    """The gradients or the weights are not finite."""

    code = "diverged"


def memory_ran_out(engine: Engine, pixels: Tensor, labels: Tensor, *, resumes: bool) -> OutOfMemory:
    """The error for a micro-batch that did not fit; it names a smaller one that was tried and fits.

    Call it where the failed step's own error is no longer alive, since that would keep its tensors. The engine does not
    change. `resumes` says whether the run has a checkpoint to continue from.
    """

    def dry_run(size: int) -> None:
        if engine.device.type == "cuda":
            torch.cuda.empty_cache()
        kept = [*range(size), *range(batch_size, len(labels))]  # all pictures without a plant
        engine.dry_run(pixels[kept], labels[kept])

    batch_size = num_plants(labels)
    # The other ranks take no dry run, and would wait for this one.
    fits = None if engine.ranks.is_distributed else largest_fitting_batch(dry_run, batch_size)
    accumulate = engine.recipe.schedule.accumulate
    return out_of_memory(batch_size, pixels.shape[-1], accumulate, fits, resumes=resumes)


def diagnose(network: nn.Module, pixels: Tensor, scale: float, fp16: bool) -> str:
    """Says in one sentence where the first value that is not finite appears, by a forward pass in FP32.

    `pixels` are the normalized pictures of the last step, and `scale` the factor of the loss.
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

    def check(name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and not bool(output.isfinite().all()):
            found.append(name)

    was_training = network.training
    network.eval()
    with ExitStack() as hooks, torch.no_grad():
        for name, module in network.named_modules():
            if next(module.children(), None) is None:
                hooks.callback(module.register_forward_hook(partial(check, name)).remove)
        network(pixels)
    network.train(was_training)
    return found[0] if found else ""
