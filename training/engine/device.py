"""Chooses the device and the precision of training."""

import ctypes
from typing import Final

import torch

from models.errors import BotanifyError, RecipeError
from training.machine import find_gpus
from training.recipe import HardwareRecipe

# Of malloc.h. Without mapped blocks and trimming, steps of EfficientNet-B4 took less CPU time (in turns, glibc 2.36).
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_MAX: Final = -4


def choose_device(hardware: HardwareRecipe, local_rank: int = 0) -> torch.device:
    """The device of a recipe; of several GPUs, the one of this rank.

    Raises:
        BotanifyError: The recipe requires CUDA and there is no GPU, or there are fewer GPUs than ranks.
    """
    if hardware.device == "cuda" and not torch.cuda.is_available():
        raise BotanifyError(
            "the recipe requires CUDA but PyTorch finds no GPU; install the driver or train with --device cpu."
        )
    if hardware.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise BotanifyError(
            f"there is no GPU for rank {local_rank} of this machine, which has {torch.cuda.device_count()}; start "
            "torchrun with --nproc-per-node of at most that."
        )
    return torch.device("cuda", local_rank)


def keep_freed_memory(hardware: HardwareRecipe) -> bool:
    """Makes glibc keep freed memory in the process, for training on a CPU; returns False on a GPU or without glibc.

    By default glibc gives each large block back to the kernel, which must clear its pages for the next step. Call it
    before the first large allocation.
    """
    if hardware.device != "cpu" and torch.cuda.is_available():
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, -1))


def amp_dtype(hardware: HardwareRecipe, device: torch.device) -> torch.dtype | None:
    """The autocast dtype, or None for FP32; on a CPU, fp16 becomes FP32.

    Raises:
        RecipeError: The GPU has no bf16 arithmetic.
    """
    if hardware.amp == "bf16" and device.type == "cuda" and torch.cuda.is_available():
        _require_bf16(device)
    if hardware.amp == "off" or (hardware.amp == "fp16" and device.type != "cuda"):
        return None
    return torch.float16 if hardware.amp == "fp16" else torch.bfloat16


def allow_tf32(device: torch.device, allowed: bool) -> None:
    """Switches TF32 on a GPU on or off.

    PyTorch has an old and a new setting for this. Up to 2.15 its compiler reads both, and fails if only the new one was
    set. These two setters change both.
    """
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if allowed else "highest")
        torch.backends.cudnn.allow_tf32 = allowed


def cpu_warnings(hardware: HardwareRecipe, device: torch.device) -> list[str]:
    """Says that a run trains on a CPU where a GPU may have been expected, and that a CPU has no fp16."""
    warnings = []
    if device.type == "cpu" and hardware.device == "auto" and (reason := _why_no_gpu()):
        warnings.append(f"the run trains on the CPU: {reason}; mend that, or pass --device cpu")
    if device.type == "cpu" and hardware.amp == "fp16":
        warnings.append("fp16 needs a GPU, so the run computes in float32, as with --amp off")
    return warnings


def _why_no_gpu() -> str:
    """Why PyTorch uses no GPU, if it is built for GPUs or this machine has one; otherwise empty."""
    if torch.version.cuda is not None:
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
        except (RuntimeError, AssertionError) as error:
            return (
                f"PyTorch is built for CUDA {torch.version.cuda} and says: {str(error).partition('. ')[0].strip('.')}"
            )
    cards, _ = find_gpus()
    return f"this machine has {cards[0].name}, but PyTorch is built without CUDA" if cards else ""


def _require_bf16(device: torch.device) -> None:
    with torch.cuda.device(device):
        known = torch.cuda.is_bf16_supported(including_emulation=False)
    if not known:
        raise RecipeError(
            "this GPU has no bf16 arithmetic",
            value=torch.cuda.get_device_name(device),
            limit="Ampere or newer",
            remedy="train with --amp fp16",
        )


def describe_device(device: torch.device) -> str:
    """A name such as "NVIDIA H200" or "CPU, AVX512, 2 threads"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
