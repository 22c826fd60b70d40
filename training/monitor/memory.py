"""GPU memory: its peak, and what to do if a step does not fit."""

from collections.abc import Callable
from typing import Final

import torch

from models.errors import BotanifyError

_GB = 1e9
# Messages of cuDNN, cuBLAS and the CPU allocator when memory runs out, in lower case. cuDNN tries one engine after the
# other, hides that they ran out of memory, and reports in the end that it found none.
_MESSAGES: Final = (
    "out of memory",
    "alloc_failed",
    "can't allocate memory",
    "not enough memory",
    "unable to find an engine to execute this computation",
)


class OutOfMemory(BotanifyError):
    """The device has too little memory for a step."""

    code = "out_of_memory"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out, by its class or by its message."""
    message = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(part in message for part in _MESSAGES)


def peak_memory_gb(device: torch.device) -> float | None:
    """Peak GPU memory since the last call, GB; None on a CPU."""
    if device.type != "cuda":
        return None
    peak = torch.cuda.max_memory_reserved(device) / _GB
    torch.cuda.reset_peak_memory_stats(device)
    return round(peak, 3)


def largest_fitting_batch(dry_run: Callable[[int], None], batch_size: int) -> int:
    """Tries a half, a quarter, ... of a batch that did not fit; returns the first that does, or 0 if none does.

    `dry_run` runs a step with so many pictures, changes nothing and frees its memory.
    """
    while batch_size := batch_size // 2:
        try:
            dry_run(batch_size)
            break
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
    return batch_size


def out_of_memory(
    batch_size: int, side_px: int, accumulate: int, fits: int | None, *, resumes: bool = False
) -> OutOfMemory:
    """The error for a batch that did not fit: says what fits, and how to keep the effective batch.

    `fits` is the batch size that was found to fit, None if none could be tried. `resumes` says whether the run has a
    checkpoint, from which it can continue with the flags of the advice.
    """
    problem = f"the device has too little memory for a step of {batch_size} pictures of {side_px} px"
    also = " --resume" if resumes else ""
    if fits == 0:
        return OutOfMemory(f"{problem}, and even for one picture; use a smaller --picture-px{also}, or a larger GPU.")
    most = max(batch_size // 2, 1) if fits is None else fits
    size = next(size for size in range(most, 0, -1) if batch_size % size == 0)
    advice = "half of it may fit" if fits is None else f"{fits} fit (tested)"
    return OutOfMemory(
        f"{problem}; {advice}: --batch-size {size} --accumulate {batch_size // size * accumulate}{also} keeps the "
        f"effective batch of {batch_size * accumulate}."
    )
