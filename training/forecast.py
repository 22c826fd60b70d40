"""How long a recipe trains: on this machine, by some steps; on a card where nothing ran, by what is known of it.

On a card, a step of EfficientNet-B4 waits for the memory of the card, or, with few pictures, for the host that starts
its kernels (benchmarks/gpu/forecasts.py has the figures). Its activations in half precision are those of
recipes/b4_8gb.toml.
Loaders that are too slow are not foreseen.
"""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from models.program import duration_in_words
from training.recipe import Recipe, sides_of_epochs

if TYPE_CHECKING:
    import torch

_NETWORK: Final = "efficientnet_b4"
_SIDE_PX: Final = 380
# Bytes of a picture of that side; they grow with its area.
_MOVED: Final = 2.2e9
_MOVED_COMPILED: Final = 1.6e9
_KEPT: Final = 328e6
_OTHER_MEMORY: Final = 2e9  # bytes: weights, gradients, moments, CUDA
_REACHED: Final = (0.68, 0.54)  # of the published bandwidth: 75 to 60 % of what a copy reaches
_HOST_S: Final = (0.031, 0.038)  # of a step
_NUM_CLASSES: Final = 1000  # hardly matter to the time of a step
_BUDGET_S: Final = 3.0


class Card(NamedTuple):
    """A GPU, as its maker publishes it."""

    name: str
    memory: float
    """Bytes."""
    bandwidth: float
    """Bytes a second of its memory."""


CARDS: Final = (
    Card("GeForce RTX 3070, 8 GB", 8.6e9, 448e9),
    Card("GeForce RTX 4090, 24 GB", 25.8e9, 1008e9),
    Card("H100 SXM, 80 GB", 85.9e9, 3350e9),
)


class Forecast(NamedTuple):
    """Of one recipe on one card."""

    card: str
    memory: float
    """Bytes."""
    hours: tuple[float, float] | None
    """At least and at most; None if the card has too little memory."""


def forecasts(recipe: Recipe, num_pictures: int) -> Iterator[Forecast]:
    """Yields a forecast for each card; none for another network, since nobody measured one."""
    if _NETWORK not in recipe.network.architecture:
        return
    schedule = recipe.schedule
    areas = [(side_px / _SIDE_PX) ** 2 for side_px in sides_of_epochs(recipe)]
    memory = _OTHER_MEMORY + schedule.batch_size * max(areas) * _KEPT
    moved = schedule.batch_size * (_MOVED if recipe.hardware.compile == "off" else _MOVED_COMPILED)
    steps = num_pictures / schedule.batch_size
    for card in CARDS:
        least, most = (
            steps * sum(max(host_s, moved * area / (card.bandwidth * reached)) for area in areas) / 3600
            for reached, host_s in zip(_REACHED, _HOST_S, strict=True)
        )
        yield Forecast(card.name, memory, (least, most) if memory <= card.memory else None)


def sentences(recipe: Recipe, num_pictures: int) -> Iterator[str]:
    """Yields the forecasts in words."""
    for each in forecasts(recipe, num_pictures):
        told = f"too small, the recipe takes {each.memory / 1e9:.0f} GB"
        if each.hours:
            least, most = (duration_in_words(hours * 3600) for hours in each.hours)
            told = f"{least} to {most}, {each.memory / 1e9:.0f} GB of its memory"
        yield f"forecast for {num_pictures:,} pictures, {each.card}: {told}"


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
