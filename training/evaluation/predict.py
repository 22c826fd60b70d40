"""Runs pictures through a torch network; shared by validation, evaluation and export."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from models.network import ExportableNetwork
from models.session import NetworkOutput

Logits = npt.NDArray[np.float32]
RunBatch = Callable[[Tensor], Logits]


def predict(loader: Iterable[list[Tensor]], run_batch: RunBatch) -> tuple[Logits, npt.NDArray[np.int64]]:
    """Runs every batch of a loader.

    Args:
        loader: Yields (pixels, labels).
        run_batch: Network input of shape (batch, 3, height, width) -> logits of shape (batch, num_outputs).

    Returns:
        Logits of shape (num_pictures, num_outputs) and labels of shape (num_pictures,), in the loader's order.
    """
    logits, labels = [], []
    for pixels, batch_labels in loader:
        logits.append(run_batch(pixels))
        labels.append(batch_labels.numpy())
    return np.concatenate(logits), np.concatenate(labels)


def run_in_torch(
    network: ExportableNetwork, device: torch.device, batches: Iterable[npt.NDArray[np.float32]]
) -> Iterator[NetworkOutput]:
    """Yields the outputs of a network for each batch of inputs, in single precision.

    Args:
        network: The network, in evaluation mode.
        device: Where it lies.
        batches: Inputs of shape (batch, 3, height, width).
    """
    for pixels in batches:
        with torch.inference_mode():
            found = network(torch.from_numpy(pixels).to(device, memory_format=torch.channels_last))
        yield NetworkOutput(*(each.float().cpu().numpy() for each in found))


def torch_runner(network: nn.Module, device: torch.device, amp_dtype: torch.dtype | None = None) -> RunBatch:
    """Returns a function that runs batches through a torch network in evaluation mode and then restores its mode."""

    def run(pixels: Tensor) -> Logits:
        was_training = network.training
        network.eval()
        precision = torch.autocast(device.type, dtype=amp_dtype) if amp_dtype else nullcontext()
        with torch.inference_mode(), precision:
            logits = network(pixels.to(device, memory_format=torch.channels_last))
        network.train(was_training)
        result: Logits = logits.float().cpu().numpy()
        return result

    return run
