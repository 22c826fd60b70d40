"""The gradient-noise scale: beyond which batch more pictures a step hardly make the step better.

The simple noise scale of McCandlish et al. 2018 ("An empirical model of large-batch training"): tr(S) / |G|^2, with S
the covariance of one picture's gradient and G the true gradient. Both come from the lengths of gradients over small
and large batches (their appendix A.1). It grows during training, so a measurement at the first weights is a low one.
"""

import math
import time
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import torch
from torch import Tensor

from models.network import PlantNetwork
from training.dataset.manifest import Manifest
from training.engine.losses import TrainingClasses
from training.engine.step import Engine
from training.insight.tuning.launch import largest_side_px
from training.loading.augment import seeded
from training.loading.data import training_loader
from training.monitor.memory import is_out_of_memory
from training.recipe import Recipe

_GROUP: Final = 8  # micro-batches in a large batch
_MOST_GROUPS: Final = 16
_LEAST_GROUPS: Final = 2  # fewer have no spread
_MOST_PICTURES: Final = 16  # of a micro-batch; smaller ones show the noise better


class NoiseScale(msgspec.Struct, frozen=True):
    """What was measured of the gradient's noise."""

    pictures: float | None
    """The noise scale, pictures; None where noise hid the gradient."""
    error: float | None
    """Standard error of its natural logarithm, by the jackknife over groups; None where that cannot be told."""
    num_pictures: int
    """Pictures that it was measured on."""


class NoiseMeter:
    """Collects gradients of micro-batches of one size.

    Args:
        batch_size: Pictures of each.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._sum: list[Tensor] = []
        self._squares: list[Tensor] = []
        self._groups: list[tuple[float, float]] = []  # estimates of |G|^2 and tr(S)

    @property
    def num_groups(self) -> int:
        """Large batches that are complete."""
        return len(self._groups)

    def add(self, gradients: Sequence[Tensor]) -> None:
        """Adds the gradient of a micro-batch's mean loss."""
        self._squares.append(_square(gradients))
        totals = self._sum or [torch.zeros_like(part) for part in gradients]
        self._sum = [total + part for total, part in zip(totals, gradients, strict=True)]
        if len(self._squares) == _GROUP:
            self._groups.append(self._estimates())
            self._sum, self._squares = [], []

    def read(self) -> NoiseScale:
        """The noise scale of all complete groups together."""
        num_pictures = self.num_groups * _GROUP * self._batch_size
        scale = _ratio(self._groups)
        others = [_ratio(self._groups[:left] + self._groups[left + 1 :]) for left in range(self.num_groups)]
        logs = [math.log(other) for other in others if other]
        if scale is None or len(logs) < max(len(others), _LEAST_GROUPS):
            return NoiseScale(scale, None, num_pictures)
        mean = math.fsum(logs) / len(logs)
        error = math.sqrt((len(logs) - 1) / len(logs) * math.fsum((log - mean) ** 2 for log in logs))
        return NoiseScale(scale, error, num_pictures)

    def _estimates(self) -> tuple[float, float]:
        small = float(torch.stack(self._squares).mean())
        large = float(_square(self._sum)) / _GROUP**2
        return (_GROUP * large - small) / (_GROUP - 1), (small - large) * self._batch_size * _GROUP / (_GROUP - 1)


def measure_noise(
    recipe: Recipe,
    manifest: Manifest,
    network: PlantNetwork,
    classes: TrainingClasses,
    *,
    device: torch.device,
    budget_s: float,
) -> NoiseScale | None:
    """Measures the noise scale on training pictures, changed at random as in training but not mixed.

    Args:
        recipe: Its batch size bounds the micro-batches.
        manifest: The data.
        network: Holds the weights to measure at; its norms become the recipe's, its weights stay.
        classes: What the outputs mean.
        device: Where.
        budget_s: When to begin no more large batches, s; two are always finished.

    Returns:
        The noise scale, or None where the data is smaller than a micro-batch or memory does not hold one.
    """
    recipe = _in_micro_batches(recipe)
    batch_size = recipe.schedule.batch_size
    if len(manifest.rows_of("train")) < batch_size:
        return None
    try:
        engine = Engine(recipe, network, device, classes, steps_per_epoch=1)
        with seeded(recipe.run.seed):
            return _metered(engine, _batches(manifest, recipe), budget_s)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None


def noise_sentence(noise: NoiseScale | None, pictures_per_step: int) -> str:
    """What the noise scale says of a number of pictures a step."""
    if noise is None:
        return "The gradient-noise scale was not measured: too few training pictures, or too little memory for fp32."
    where = f"measured on {noise.num_pictures} training pictures at the first weights"
    if noise.pictures is None:
        return (
            f"The gradient-noise scale, {where}, is larger than these can show: noise hides the gradient, and "
            f"{pictures_per_step} pictures a step are not too many."
        )
    give_or_take = "" if noise.error is None else f", give or take a factor of {math.exp(noise.error):.2g}"
    told = f"The gradient-noise scale is {noise.pictures:.3g} pictures{give_or_take} ({where}; it grows in training)"
    if pictures_per_step > noise.pictures:
        return (
            f"{told}: {pictures_per_step} pictures a step exceed it, so at first each picture moves the network less "
            "than it would in smaller batches (McCandlish et al. 2018); a shorter run wants fewer."
        )
    return f"{told}: {pictures_per_step} pictures a step are below it, so larger batches still make better steps."


def _metered(engine: Engine, batches: Iterator[tuple[Tensor, Tensor]], budget_s: float) -> NoiseScale:
    meter, started = NoiseMeter(engine.recipe.schedule.batch_size), time.perf_counter()
    parameters = [parameter for parameter in engine.network.parameters() if parameter.requires_grad]
    for pixels, labels in batches:
        loss = engine.loss(engine.network(engine.normalized(pixels)), labels.to(engine.device))
        meter.add(torch.autograd.grad(loss, parameters))
        late = time.perf_counter() - started > budget_s
        if meter.num_groups == _MOST_GROUPS or (late and meter.num_groups >= _LEAST_GROUPS):
            break
    return meter.read()


def _in_micro_batches(recipe: Recipe) -> Recipe:
    """The recipe in small batches and full precision, where no gradient is too small for its numbers.

    Full precision takes twice the memory of half, so the batches are at most half of what was tuned. They are no larger
    than a group of ghost batches, so they need no groups.
    """
    replace = msgspec.structs.replace
    batch_size = max(min(recipe.schedule.batch_size // 2, _MOST_PICTURES), 2)
    norms = "leave" if recipe.network.norms == "ghost" else recipe.network.norms
    return replace(
        recipe,
        network=replace(recipe.network, norms=norms),
        data=replace(recipe.data, persistent_workers=False),
        schedule=replace(recipe.schedule, batch_size=batch_size, accumulate=1, ema_decay=0.0),
        hardware=replace(recipe.hardware, amp="off", compile=False, cudnn_benchmark=False),
    )


def _batches(manifest: Manifest, recipe: Recipe) -> Iterator[tuple[Tensor, Tensor]]:
    """Training batches without end: each epoch changes the pictures in another way."""
    loader, batches = training_loader(manifest, recipe, pin=False)
    batches.side_px = largest_side_px(recipe)
    while True:
        yield from loader
        batches.epoch += 1


def _square(tensors: Sequence[Tensor]) -> Tensor:
    """Squared length of all tensors together."""
    return torch.nn.utils.get_total_norm(tensors).square()


def _ratio(groups: Sequence[tuple[float, float]]) -> float | None:
    length, trace = (math.fsum(values) for values in zip(*groups, strict=True)) if groups else (0.0, 0.0)
    return trace / length if length > 0 and trace > 0 else None
