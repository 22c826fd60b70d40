"""One batch size of `train.py --tune`, timed with the real training step on random pictures.

Each trial has its own process, so that its memory, kernel selection and crashes do not affect the next one.
"""

import statistics
import time
from collections.abc import Callable
from typing import Final, Literal

import msgspec
import torch
from msgspec.structs import replace
from torch import Tensor

from training.engine.losses import TrainingClasses
from training.engine.step import Engine
from training.engine.weights import new_network
from training.loading.data import EVALUATION_BATCH
from training.loading.negatives import RunInput
from training.monitor.memory import is_out_of_memory
from training.recipe import NEGATIVES_SHARE, Recipe, sides_of_epochs

MAX_MEMORY_SHARE: Final = 0.9
"""Share of the GPU memory that a trial may use; the rest is for later growth, such as larger pictures."""
_WARMUP_STEPS: Final = 3  # kernels are selected in the first; fp16 adjusts its loss scale in the first few
_WINDOWS: Final = 5
_WINDOW_S: Final = 0.6
_MAX_STEPS: Final = 200  # per window
_GB: Final = 1e9


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The result of measuring a batch size."""

    batch_size: int
    """Pictures per step on each rank."""
    outcome: Literal["ran", "does_not_fit", "too_slow", "crashed"] = "ran"
    pictures_per_s: float = 0.0
    """Median over the timed windows, on the slowest rank."""
    memory_gb: float | None = None
    """Peak GPU memory, including other programs on the card, GB; None on a CPU."""
    memory_share: float | None = None
    """The same as a share of the card."""
    warmup_s: float = 0.0
    """Seconds before the speed was steady: kernel selection, compilation."""
    note: str = ""
    """Why it failed."""

    @property
    def fits(self) -> bool:
        """Whether it ran within the memory limit."""
        return self.outcome == "ran" and (self.memory_share is None or self.memory_share <= MAX_MEMORY_SHARE)


def with_batch_size(recipe: Recipe, batch_size: int) -> Recipe:
    """The recipe with another batch size, and without gradient accumulation."""
    return replace(recipe, schedule=replace(recipe.schedule, batch_size=batch_size, accumulate=1))


def time_batch_size(recipe: Recipe, classes: TrainingClasses, device: torch.device, budget_s: float) -> Trial:
    """Measures the batch size of a recipe. Too little memory is an outcome, not an error.

    The timed windows take `budget_s`; a step that takes longer is timed once.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        return _time_steps(recipe, classes, device, budget_s)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return Trial(batch_size=recipe.schedule.batch_size, outcome="does_not_fit", note="out of memory")


def _time_steps(recipe: Recipe, classes: TrainingClasses, device: torch.device, budget_s: float) -> Trial:
    started = time.perf_counter()
    batch_size = recipe.schedule.batch_size
    network = new_network(recipe, len(classes.taxon_of_output))
    # Enough steps that the learning rate does not reach zero.
    engine = Engine(RunInput.of(recipe), network, device, classes, steps_per_epoch=10_000)
    # The memory of a validation counts, too.
    batch = EVALUATION_BATCH if device.type == "cuda" else 1
    side_px = recipe.pictures.serve_px
    engine.scores(torch.zeros(batch, 3, side_px, side_px, dtype=torch.uint8))
    engine.train_mode()
    take = _steps(engine, batch_size, max(sides_of_epochs(recipe)))
    step_s = take(1)  # includes compilation and kernel selection
    for _ in range(_WARMUP_STEPS - 1):
        step_s = take(1)
        if step_s > budget_s / 3:
            break
    warmup_s = time.perf_counter() - started
    num_steps = min(max(round(_WINDOW_S / step_s), 1), _MAX_STEPS)
    began = time.perf_counter()
    windows_s = [take(num_steps) / num_steps]
    while len(windows_s) < _WINDOWS and time.perf_counter() - began + windows_s[-1] * num_steps < budget_s:
        windows_s.append(take(num_steps) / num_steps)
    speed = batch_size / statistics.median(windows_s)
    trial = Trial(batch_size=batch_size, pictures_per_s=speed, warmup_s=warmup_s)
    if device.type != "cuda":
        return trial
    memory_gb, memory_share = _memory(device)
    return replace(trial, memory_gb=memory_gb, memory_share=memory_share)


def _steps(engine: Engine, batch_size: int, side_px: int) -> Callable[[int], float]:
    """Returns a function that takes a number of steps on random pictures and returns their duration, s."""
    unknown_first = (engine.inputs.unknown, engine.inputs.negatives)
    added = [each.label for each in unknown_first for _ in range(each.of_batch(NEGATIVES_SHARE, batch_size))]

    def random_batch() -> tuple[Tensor, Tensor]:
        """Plants and pictures of no class as the loader returns them: uint8, channels last in memory."""
        labels_B = torch.cat([torch.randint(0, engine.network.num_outputs, (batch_size,)), torch.tensor(added).long()])
        pixels_BHW3 = torch.randint(0, 256, (len(labels_B), side_px, side_px, 3), dtype=torch.uint8)
        if engine.device.type == "cuda":
            pixels_BHW3 = pixels_BHW3.pin_memory()
            labels_B = labels_B.pin_memory()
        return pixels_BHW3.permute(0, 3, 1, 2), labels_B

    batches = [random_batch(), random_batch()]
    taken = 0

    def take(num_steps: int) -> float:
        nonlocal taken
        started = time.perf_counter()
        for _ in range(num_steps):
            engine.micro_step(*batches[taken % 2], step=taken)
            taken += 1
        engine.read()  # waits for the device
        engine.clock.read()
        return time.perf_counter() - started

    return take


def _memory(device: torch.device) -> tuple[float, float]:
    """Peak memory of the card, GB, and as a share of all of it; includes the CUDA context and other programs."""
    free, total = torch.cuda.mem_get_info(device)
    peak = torch.cuda.max_memory_reserved(device)
    now = torch.cuda.memory_reserved(device)
    taken = peak + max(total - free - now, 0)
    return taken / _GB, taken / total
