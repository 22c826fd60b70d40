"""How long a recipe trains on this machine, told by some steps. Loaders that are too slow are not foreseen."""

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from models.program import duration_in_words
from training.recipe import NEGATIVES_SHARE, Recipe, sides_of_epochs

if TYPE_CHECKING:
    import torch

    from training.engine.step import Engine

_NUM_CLASSES: Final = 1000  # hardly matter to the time of a step
_WINDOWS: Final = 5
_WINDOW_S: Final = 0.6
_MAX_STEPS: Final = 200  # per window


def on_this_machine(recipe: Recipe, num_pictures: int, device: "torch.device") -> str:
    """Takes some steps on random pictures, and says how long a training takes without what is not a step."""
    from training.engine.device import describe_device

    sides = sides_of_epochs(recipe)
    if recipe.network.frozen_stages:  # each picture runs through the network once
        sides = sides[:1]
    pictures = replace(recipe.pictures, picture_px=min(sides), progressive=())
    speed = pictures_per_s(replace(recipe, pictures=pictures), device)
    start = f"forecast for {num_pictures:,} pictures, {describe_device(device)}"
    if speed is None:
        return f"{start}: a batch of {recipe.schedule.batch_size} does not fit into the memory; take a smaller one"
    work = sum((side_px / min(sides)) ** 2 for side_px in sides) * num_pictures
    return f"{start}: about {duration_in_words(work / speed)}, and some more to validate"


def pictures_per_s(recipe: Recipe, device: "torch.device") -> float | None:
    """Times the training step of a recipe on random pictures of its largest size.

    Returns the median speed of some seconds, or that of one step if it is slow, or None if there is too little memory.
    """
    from training.engine.losses import TrainingClasses
    from training.engine.step import Engine
    from training.engine.weights import new_network
    from training.loading.negatives import RunInput
    from training.monitor.memory import is_out_of_memory

    classes = TrainingClasses(tuple(range(_NUM_CLASSES)), _NUM_CLASSES, (1.0,) * _NUM_CLASSES)
    try:
        # Enough steps that the learning rate does not reach zero.
        network = new_network(recipe, _NUM_CLASSES)
        engine = Engine(RunInput.of(recipe), network, device, classes, steps_per_epoch=10_000)
        engine.train_mode()
        take = _steps(engine, recipe.schedule.batch_size, max(sides_of_epochs(recipe)))
        take(1)  # compiles and selects kernels
        step_s = take(1)
        if step_s < _WINDOW_S:
            step_s = take(1)
        num_steps = min(max(round(_WINDOW_S / step_s), 1), _MAX_STEPS)
        num_windows = _WINDOWS if step_s < _WINDOW_S else 1
        return recipe.schedule.batch_size * num_steps / statistics.median(take(num_steps) for _ in range(num_windows))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None


def _steps(engine: "Engine", batch_size: int, side_px: int) -> Callable[[int], float]:
    """Returns a function that takes a number of steps on random pictures and returns their duration, s."""
    import torch

    unknown_first = (engine.inputs.unknown, engine.inputs.negatives)
    added = [each.label for each in unknown_first for _ in range(each.of_batch(NEGATIVES_SHARE, batch_size))]

    def random_batch() -> "tuple[torch.Tensor, torch.Tensor]":
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
