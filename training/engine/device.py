"""The device and the precision of training, and the ranks: the processes that train together under torchrun.

Without torchrun there is one rank, and nothing here waits. Ranks agree on values other than gradients over a Gloo group
of the hosts, not over NCCL, so that no host waits for its GPU.
"""

import ctypes
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn

from models.errors import BotanifyError, RecipeError
from models.openvino_session import processor_flags
from training.machine import find_gpus
from training.recipe import HardwareRecipe

# Of malloc.h. Without mapped blocks and trimming, steps of EfficientNet-B4 took less CPU time (in turns, glibc 2.36).
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_MAX: Final = -4
_HAVE_BF16: Final = frozenset({"avx512_bf16", "amx_bf16"})  # flags of processors on which bf16 is faster than FP32
Value = TypeVar("Value")
# Below this, memory that is free in pieces too small for a new batch is missed, as after a change of the picture size.
_SMALL_CARD_GB: Final = 13.0
_TIMEOUT: Final = timedelta(minutes=30)  # one rank may end a validation sooner; a dead rank is noticed at once
_LOST_RANK_MESSAGES: Final = ("Connection closed", "Connection reset", "NCCL")  # of Gloo and NCCL


def choose_device(hardware: HardwareRecipe, local_rank: int = 0) -> torch.device:
    """The device of a recipe; of several GPUs, the one of this rank.

    Raises:
        RecipeError: The recipe is for a GPU, and PyTorch finds none.
        BotanifyError: There are fewer GPUs than ranks.
    """
    if hardware.device == "cpu" or not torch.cuda.is_available():
        if hardware.device == "cuda":
            raise _no_gpu()
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise BotanifyError(
            f"there is no GPU for rank {local_rank} of this machine, which has {torch.cuda.device_count()}; start "
            "torchrun with --nproc-per-node of at most that."
        )
    return torch.device("cuda", local_rank)


def _no_gpu() -> RecipeError:
    cards, driver = find_gpus()
    needed = "PyTorch for CUDA, as make train-env without TORCH installs it"
    if cuda := torch.version.cuda:
        least = 580 if cuda >= "13" else 525  # NVIDIA, "CUDA Compatibility": all minor versions of CUDA 13 and 12
        needed = f"driver {least} or newer, since PyTorch is built for CUDA {cuda}"
    return RecipeError(
        "PyTorch finds no GPU",
        value=f"{cards[0].name} with driver {driver}" if cards else "no card with a driver of NVIDIA",
        limit=needed,
        remedy="mend that, or say --device cpu, which takes far longer",
    )


def avoid_fragments(device: torch.device) -> None:
    """Lets the memory of a small GPU be used in pieces that can grow; call it before CUDA starts, which reads this."""
    if device.type == "cuda" and any(card.memory_gb < _SMALL_CARD_GB for card in find_gpus()[0]):
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")


def require_compiler(hardware: HardwareRecipe, device: torch.device) -> None:
    """Checks that what a compiled network needs is installed.

    Raises:
        RecipeError: There is no compiler, or Python's headers are missing.
    """
    variable, names = ("CC", ("gcc", "clang")) if device.type == "cuda" else ("CXX", ("g++", "clang++"))
    compiler = next(filter(shutil.which, [os.environ[variable]] if variable in os.environ else names), None)
    if hardware.compile == "off" or (compiler and Path(sysconfig.get_path("include"), "Python.h").exists()):
        return
    raise RecipeError(
        "the network cannot be compiled on this machine",
        value=f"compile = {hardware.compile}, and no {'Python.h' if compiler else names[0]}",
        remedy="install gcc, g++ and python3-dev, or pass --compile off",
    )


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
    """The autocast dtype, or None for FP32; on a CPU, fp16 becomes FP32, and bf16 too where it would be slower.

    Raises:
        RecipeError: The GPU has no bf16 arithmetic.
    """
    on_cuda = device.type == "cuda"
    if not on_cuda and not _HAVE_BF16 & processor_flags():
        return None
    if hardware.amp != "bf16":
        return torch.float16 if hardware.amp == "fp16" and on_cuda else None
    if on_cuda and torch.cuda.is_available():
        with torch.cuda.device(device):
            known = torch.cuda.is_bf16_supported(including_emulation=False)
        if not known:
            raise RecipeError(
                "this GPU has no bf16 arithmetic",
                value=torch.cuda.get_device_name(device),
                limit="Ampere or newer",
                remedy="train with --amp fp16",
            )
    return torch.bfloat16


def allow_tf32(device: torch.device, allowed: bool) -> None:
    """Switches TF32 on a GPU on or off.

    PyTorch has an old and a new setting for this. Up to 2.15 its compiler reads both, and fails if only the new one was
    set. These two setters change both.
    """
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if allowed else "highest")
        torch.backends.cudnn.allow_tf32 = allowed


def choose_deterministic_kernels() -> None:
    """Lets PyTorch take kernels that add in the same order each time; it warns where it has none.

    Call it before the first matrix product on a GPU, since cuBLAS reads its variable then. cuDNN must not time its
    kernels either.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # NVIDIA's documentation, "Results Reproducibility"
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=True)


def cpu_warnings(hardware: HardwareRecipe, device: torch.device) -> list[str]:
    """Says that a run trains on a CPU where a GPU may have been expected, and that a CPU has no fp16."""
    warnings: list[str] = []
    if device.type != "cpu":
        return warnings
    if hardware.device == "auto" and (torch.version.cuda or find_gpus()[0]):
        warnings.append(f"the run trains on the CPU: {_no_gpu()}")
    if hardware.amp == "fp16":
        warnings.append("fp16 needs a GPU, so the run computes in float32, as with --amp off")
    elif hardware.amp == "bf16" and amp_dtype(hardware, device) is None:
        warnings.append("bf16 is slow on this processor, so the run computes in float32, as with --amp off")
    return warnings


def describe_device(device: torch.device) -> str:
    """A name such as "NVIDIA H200" or "CPU, AVX512, 2 threads"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU, {torch.backends.cpu.get_cpu_capability()}, {threads} thread{'s' if threads > 1 else ''}"


def join(device_type: str) -> "Ranks":
    """Joins the process group that torchrun set up, NCCL for "cuda", else Gloo; without torchrun, a single rank."""
    if "RANK" not in os.environ:
        return Ranks()
    hosts = None
    if device_type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", timeout=_TIMEOUT, device_id=device)
        hosts = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=_TIMEOUT))
    else:
        dist.init_process_group("gloo", timeout=_TIMEOUT)
    return Ranks(dist.get_rank(), dist.get_world_size(), hosts)


class Ranks:
    """This process's rank and its collective operations.

    `hosts` is the group for values on the host; None for the default group.
    """

    def __init__(self, rank: int = 0, num_ranks: int = 1, hosts: dist.ProcessGroup | None = None) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self._hosts = hosts

    @property
    def is_main(self) -> bool:
        """Whether this rank writes files and prints."""
        return self.rank == 0

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Runs the block on the main rank before the others, so that they find the files it writes.

        Raises:
            BotanifyError: On the other ranks, if the main rank failed.
        """
        if self.is_main:
            try:
                yield
            except BaseException:
                self.maxima([True])
                raise
            self.maxima([False])
        elif self.maxima([False])[0]:
            raise BotanifyError("the first rank failed; its own message says why.")
        else:
            yield

    def maxima(self, values: Sequence[float]) -> list[float]:
        """The largest of each value over all ranks."""
        return self._all_reduce(values, dist.ReduceOp.MAX)

    def mean(self, values: Sequence[float]) -> list[float]:
        """The mean of each value over all ranks."""
        return [total / self.num_ranks for total in self.sum(values)]

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sum of each value over all ranks."""
        return self._all_reduce(values, dist.ReduceOp.SUM)

    def broadcast(self, value: Value) -> Value:
        """The main rank's value, on every rank."""
        if not self.is_distributed:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self._hosts)
        return values[0]

    def mean_statistics(self, network: nn.Module) -> None:
        """Averages BatchNorm's running statistics over all ranks, so that every rank validates the same network.

        This happens in place and on the device; the host does not wait.
        """
        named = network.named_buffers()
        statistics = [value for name, value in named if name.endswith(("running_mean", "running_var"))]
        if not self.is_distributed or not statistics:
            return
        flat = torch.cat([value.flatten() for value in statistics]).double()  # so that equal values stay what they are
        dist.all_reduce(flat)
        flat /= self.num_ranks
        for value, part in zip(statistics, torch.split(flat, [value.numel() for value in statistics]), strict=True):
            value.copy_(part.view_as(value))

    @property
    def is_distributed(self) -> bool:
        """Whether there is more than one rank."""
        return self.num_ranks > 1

    def _all_reduce(self, values: Sequence[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        if not self.is_distributed:
            return list(values)
        reduced = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(reduced, op=operation, group=self._hosts)
        return [float(value) for value in reduced]


def leave() -> None:
    """Closes the process group. Every rank must call it, since each waits for the others."""
    if dist.is_initialized():
        dist.destroy_process_group()


def exit_now(code: int) -> None:
    """Ends a failed rank without waiting for the others, which torchrun then ends; returns if there is one rank."""
    if dist.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def lost_ranks(error: Exception) -> BotanifyError | None:
    """The error that the ranks cannot exchange values, as one line; None if the error has another cause."""
    message = str(error)
    is_lost = dist.is_initialized() and any(part in message for part in _LOST_RANK_MESSAGES)
    if not is_lost and not isinstance(error, dist.DistError):
        return None
    first, _, rest = message.strip().partition("\n")
    last = rest.partition("Last error:")[2].strip()  # NCCL's first line names the call, and its last one the cause
    cause = " ".join(f"{first} {last}".split())
    return BotanifyError(
        f"the ranks cannot exchange values ({cause}); if another rank has ended, its own message says why; otherwise "
        "start again with NCCL_DEBUG=INFO, which tells more."
    )


def launch_id() -> str:
    """torchrun's run id, the same for all ranks and restarts of one launch; empty without torchrun."""
    return os.environ.get("TORCHELASTIC_RUN_ID", "")
