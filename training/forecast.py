"""How long a recipe trains and how much GPU memory it takes: a forecast, made before anything ran on such a card.

A step of EfficientNet-B4 waits for the memory of the card, or, with few pictures, for the host that starts its kernels
(benchmarks/gpu/forecasts.py has the figures). Its activations in half precision are those of recipes/b4_8gb.toml.
Loaders that are too slow are not foreseen.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from training.recipe import Recipe, sides_of_epochs

_NETWORK: Final = "efficientnet_b4"
_SIDE_PX: Final = 380
# Bytes of a picture of that side; they grow with its area.
_MOVED: Final = 2.2e9
_MOVED_COMPILED: Final = 1.6e9
_KEPT: Final = 328e6
_OTHER_MEMORY: Final = 2e9  # bytes: weights, gradients, moments, CUDA
_REACHED: Final = (0.68, 0.54)  # of the published bandwidth: 75 to 60 % of what a copy reaches
_HOST_S: Final = (0.031, 0.038)  # of a step


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
    hours: tuple[float, float]
    """At least and at most."""


def forecasts(recipe: Recipe, num_pictures: int) -> Iterator[Forecast]:
    """Yields a forecast for each card that has the memory; none for another network, since nobody measured one."""
    if _NETWORK not in recipe.network.architecture:
        return
    schedule = recipe.schedule
    areas = [(side_px / _SIDE_PX) ** 2 for side_px in sides_of_epochs(recipe)]
    memory = _OTHER_MEMORY + schedule.batch_size * max(areas) * _KEPT
    moved = schedule.batch_size * (_MOVED if recipe.hardware.compile == "off" else _MOVED_COMPILED)
    steps = num_pictures / schedule.batch_size
    for card in CARDS:
        if memory <= card.memory:
            least, most = (
                steps * sum(max(host_s, moved * area / (card.bandwidth * reached)) for area in areas) / 3600
                for reached, host_s in zip(_REACHED, _HOST_S, strict=True)
            )
            yield Forecast(card.name, memory, (least, most))


def sentences(recipe: Recipe, num_pictures: int) -> Iterator[str]:
    """Yields the forecasts in words."""
    for each in forecasts(recipe, num_pictures):
        least, most = each.hours
        yield (
            f"forecast for {num_pictures:,} pictures, {each.card}: {least:.1f} to {most:.1f} hours, "
            f"{each.memory / 1e9:.0f} GB of its memory"
        )
