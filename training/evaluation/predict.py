"""Pictures of a split -> logits, through any network: what validation, evaluation and calibration share."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

Logits = npt.NDArray[np.float32]
RunBatch = Callable[[Tensor], Logits]


def predict(loader: Iterable[list[Tensor]], run_batch: RunBatch) -> tuple[Logits, npt.NDArray[np.int64]]:
    """Runs every batch of a loader.

    Args:
        loader: Gives (pixels, labels).
        run_batch: Network input of shape (batch, 3, height, width) -> logits of shape (batch, num_outputs).

    Returns:
        Logits of shape (num_pictures, num_outputs) and labels of shape (num_pictures,), in the loader's order.
    """
    logits, labels = [], []
    for pixels, batch_labels in loader:
        logits.append(run_batch(pixels))
        labels.append(batch_labels.numpy())
    return np.concatenate(logits), np.concatenate(labels)


def torch_runner(network: nn.Module, device: torch.device, amp_dtype: torch.dtype | None = None) -> RunBatch:
    """Runs batches through a torch network in evaluation mode, and leaves its mode as it was."""

    def run(pixels: Tensor) -> Logits:
        was_training = network.training
        network.eval()
        precision = torch.autocast(device.type, dtype=amp_dtype) if amp_dtype else nullcontext()
        with torch.inference_mode(), precision:
            logits = network(pixels.to(device, memory_format=torch.channels_last))
        network.train(was_training)
        found: Logits = logits.float().cpu().numpy()
        return found

    return run
