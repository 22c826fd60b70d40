"""GPU memory: how much may be used, and what would fit when it runs out."""

from collections.abc import Callable

import torch

from models.errors import BotanifyError

_GB = 1e9


class OutOfMemory(BotanifyError):
    """The device's memory does not hold a step."""

    code = "out_of_memory"


def limit_memory(gigabytes: float, device: torch.device) -> None:
    """Lets this process use no more than so much of a GPU's memory; 0 sets no limit, and a CPU has none."""
    if gigabytes and device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(gigabytes * _GB / total, 1.0), device)


def peak_memory_gb(device: torch.device) -> float | None:
    """Most GPU memory that was held since the last call, GB; None on a CPU."""
    if device.type != "cuda":
        return None
    peak = torch.cuda.max_memory_reserved(device) / _GB
    torch.cuda.reset_peak_memory_stats(device)
    return round(peak, 3)


def largest_that_fits(rehearse: Callable[[int], None], batch_size: int) -> int:
    """The largest half, quarter, ... of a batch whose step fits; each is tried. 0: not even one picture does.

    Args:
        rehearse: Takes a step with so many pictures that changes nothing, and frees its memory.
        batch_size: What did not fit.
    """
    size = batch_size // 2
    while size >= 1:
        try:
            rehearse(size)
        except torch.OutOfMemoryError:
            size //= 2
        else:
            return size
    return 0


def out_of_memory(batch_size: int, side_px: int, accumulate: int, fits: int | None) -> OutOfMemory:
    """The one sentence about a batch that did not fit: what would, and how the effective batch stays the same.

    Args:
        batch_size: Pictures a step and rank.
        side_px: Their side, px.
        accumulate: Steps of a window.
        fits: How many were found to fit; None if nothing could be tried.
    """
    problem = f"the GPU's memory does not hold a step of {batch_size} pictures of {side_px} px"
    if fits == 0:
        return OutOfMemory(f"{problem}, nor of one; train with a smaller --picture-px or on a larger card.")
    most = max(batch_size // 2, 1) if fits is None else fits
    size = next(size for size in range(most, 0, -1) if batch_size % size == 0)
    tried = "half of it may fit" if fits is None else f"{fits} fit, which was tried"
    return OutOfMemory(
        f"{problem}; {tried}: --batch-size {size} --accumulate {batch_size // size * accumulate} keeps the effective "
        f"batch of {batch_size * accumulate}."
    )
