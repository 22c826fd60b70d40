"""The device's memory: how much may be used, whether it ran out, and what would fit then."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch

from models.errors import BotanifyError

_GB = 1e9
# How cuDNN, cuBLAS and the CPU's allocator tell that memory ran out, in small letters. cuDNN tries one engine after the
# other, swallows that one had too little memory, and in the end finds none.
_WORDS: Final = (
    "out of memory",
    "alloc_failed",
    "can't allocate memory",
    "not enough memory",
    "unable to find an engine to execute this computation",
)


class OutOfMemory(BotanifyError):
    """The device's memory does not hold a step."""

    code = "out_of_memory"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: torch's own class, or another library's words."""
    words = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(part in words for part in _WORDS)


@contextmanager
def suppress_out_of_memory() -> Iterator[None]:
    """Leaves the block where memory runs out, without an error."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise


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


def largest_fitting_batch(dry_run: Callable[[int], None], batch_size: int) -> int:
    """The largest half, quarter, ... of a batch whose step fits; each is tried. 0: not even one picture does.

    Args:
        dry_run: Takes a step with so many pictures that changes nothing, and frees its memory.
        batch_size: What did not fit.

    Raises:
        RuntimeError: A step fails for another reason.
    """
    size = batch_size // 2
    while size >= 1:
        try:
            dry_run(size)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
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
    problem = f"the device's memory does not hold a step of {batch_size} pictures of {side_px} px"
    if fits == 0:
        return OutOfMemory(f"{problem}, nor of one; train with a smaller --picture-px or on a larger card.")
    most = max(batch_size // 2, 1) if fits is None else fits
    size = next(size for size in range(most, 0, -1) if batch_size % size == 0)
    tried = "half of it may fit" if fits is None else f"{fits} fit, which was tried"
    return OutOfMemory(
        f"{problem}; {tried}: --batch-size {size} --accumulate {batch_size // size * accumulate} keeps the effective "
        f"batch of {batch_size * accumulate}."
    )
