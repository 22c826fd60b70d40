"""How long a recipe trains on this machine, told by some steps. Loaders that are too slow are not foreseen."""

import time
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from models.program import duration_in_words
from training.recipe import Recipe, sides_of_epochs

if TYPE_CHECKING:
    import torch

_NUM_CLASSES: Final = 1000  # hardly matter to the time of a step
_BUDGET_S: Final = 3.0


def on_this_machine(recipe: Recipe, num_pictures: int, device: "torch.device") -> str:
    """Takes some steps on random pictures, and says how long a training takes without what is not a step."""
    import torch

    from training.engine.device import describe_device
    from training.engine.losses import TrainingClasses
    from training.monitor.monitor import ENOUGH_PROCESSOR
    from training.tuning_trial import Trial, time_batch_size

    classes = TrainingClasses(tuple(range(_NUM_CLASSES)), _NUM_CLASSES, (1.0,) * _NUM_CLASSES)
    sides = sides_of_epochs(recipe)
    smallest = replace(recipe, pictures=replace(recipe.pictures, picture_px=min(sides), progressive=()))

    def measured() -> tuple[Trial, float]:
        began = time.perf_counter()
        processor_began = time.process_time()
        trial = time_batch_size(smallest, classes, device, _BUDGET_S)
        processor_s = time.process_time() - processor_began
        return trial, processor_s / (time.perf_counter() - began) / torch.get_num_threads()

    trial, processor = measured()
    start = f"forecast for {num_pictures:,} pictures, {describe_device(device)}"
    if trial.outcome != "ran":
        return f"{start}: a batch of {recipe.schedule.batch_size} does not fit into the memory; take a smaller one"
    epochs = sum((side_px / min(sides)) ** 2 for side_px in sides)
    told = (
        f"{start}: about {duration_in_words(epochs * num_pictures / trial.pictures_per_s)}, and some more to validate"
    )
    if device.type == "cpu" and torch.get_num_threads() > 1 and processor < ENOUGH_PROCESSOR:
        torch.set_num_threads(1)
        seconds = epochs * num_pictures / measured()[0].pictures_per_s
        told += (
            f"; other programs keep the cores busy: with OMP_NUM_THREADS=1 before python {duration_in_words(seconds)}"
        )
    return told
