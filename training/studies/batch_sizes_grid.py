"""The grid of the study of batch sizes: size by augmentation by learning rate, and what its cells gave."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from training.recipe import Recipe
from training.studies.ablation_findings import memory_gb, pictures_per_s, top1_points
from training.studies.arms import Arm, ArmResult
from training.studies.verdicts import Interval, points_interval

Augmentation = Literal["light", "heavy"]
Rule = Literal["square_root", "linear"]

AUGMENTATIONS: Final[Mapping[Augmentation, tuple[str, ...]]] = {
    "light": (
        *("--crop-scale-min", "0.5", "--randaugment-ops", "0", "--erase", "0"),
        *("--mixup", "0", "--cutmix", "0"),
    ),
    "heavy": (
        *("--crop-scale-min", "0.25", "--randaugment-ops", "2", "--randaugment-magnitude", "9", "--erase", "0.25"),
        *("--mixup", "0.2", "--cutmix", "1", "--mix-share", "0.5"),
    ),
}
RULES: Final[Mapping[Rule, str]] = {
    "square_root": "the square root of the batch, as derived for Adam (Malladi et al. 2022)",
    "linear": "the batch, as found for SGD (Goyal et al. 2017)",
}


class Cell(msgspec.Struct, frozen=True):
    """One setting of the grid."""

    size: int
    """Pictures a step."""
    augmentation: Augmentation
    scaled: bool
    """Whether the rates grow with the batch."""


class Grid(msgspec.Struct, frozen=True):
    """All settings, and how they become runs."""

    sizes: tuple[int, ...]
    """Ascending; the first is what the others are compared with."""
    rule: Rule
    backbone_lr: float
    """Peak rates of the recipe, at its own batch."""
    head_lr: float
    recipe_batch: int
    """Pictures that the recipe averages for a step of the optimizer."""

    @property
    def cells(self) -> list[Cell]:
        """Every setting, the smallest size first."""
        return [Cell(size, each, scaled) for size in self.sizes for each in AUGMENTATIONS for scaled in (False, True)]

    @property
    def arms(self) -> list[Arm]:
        """The runs: at the recipe's own batch scaled and unscaled rates are the same, and one run stands for both."""
        return list({self.name(cell): self._arm(cell) for cell in self.cells}.values())

    def name(self, cell: Cell) -> str:
        """Name of the run that a cell is read from."""
        return f"b{cell.size}-{cell.augmentation}-{'unscaled' if self._factor(cell) == 1 else 'scaled'}"

    def _factor(self, cell: Cell) -> float:
        growth = cell.size / self.recipe_batch
        if not cell.scaled:
            return 1.0
        return growth if self.rule == "linear" else math.sqrt(growth)

    def _arm(self, cell: Cell) -> Arm:
        factor = self._factor(cell)
        rates = ("--backbone-lr", f"{factor * self.backbone_lr:.6g}", "--head-lr", f"{factor * self.head_lr:.6g}")
        size = ("--batch-size", str(cell.size), "--accumulate", "1")
        told = f"Batch {cell.size}, {cell.augmentation} augmentation, rates times {factor:.3g}."
        return Arm(self.name(cell), (*size, *rates, *AUGMENTATIONS[cell.augmentation]), told)


def grid_of(recipe: Recipe, sizes: Iterable[int], rule: Rule) -> Grid:
    """The grid around a recipe."""
    schedule = recipe.schedule
    batch = schedule.batch_size * schedule.accumulate
    return Grid(tuple(sorted(sizes)), rule, schedule.backbone_lr, schedule.head_lr, batch)


class Found(msgspec.Struct, frozen=True):
    """What the cells gave."""

    grid: Grid
    equal_epochs: list[ArmResult]
    equal_time: list[ArmResult]
    device: Literal["cuda", "cpu"]
    cpu: ArmResult | None = None
    """The smallest batch on the CPU of a machine with a GPU."""

    def results(self, cell: Cell, *, by_time: bool = False) -> list[ArmResult]:
        """The runs of a cell that did not fail, by seed."""
        name = self.grid.name(cell)
        chosen = [each for each in (self.equal_time if by_time else self.equal_epochs) if each.arm.name == name]
        return sorted((each for each in chosen if each.epochs and not each.error), key=lambda each: each.seed)

    def speeds(self, cell: Cell) -> list[float]:
        """Pictures/s behind the warm-up, by seed."""
        return _known(pictures_per_s, self.results(cell))

    def peaks_gb(self, cell: Cell) -> list[float]:
        """Most GPU memory held, by seed, GB."""
        return _known(memory_gb, self.results(cell))

    def top1(self, cell: Cell, *, by_time: bool = False) -> list[float]:
        """Validation top-1 at the end, by seed, %."""
        return _known(top1_points, self.results(cell, by_time=by_time))

    def difference(self, cell: Cell, against: Cell, *, by_time: bool = False) -> Interval | None:
        """Percentage points of top-1 that a cell has more than another, over the seeds that both have."""
        ours = {each.seed: each for each in self.results(cell, by_time=by_time)}
        theirs = {each.seed: each for each in self.results(against, by_time=by_time)}
        pairs = [(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]
        points = [(a - b) * 100 for a, b in ((x.top1, y.top1) for x, y in pairs) if a is not None and b is not None]
        judged = min((each.epochs[-1].num_pictures or 0 for pair in pairs for each in pair), default=0)
        return points_interval(points, judged) if points else None

    def budget_s(self, augmentation: Augmentation) -> float | None:
        """What the smallest batch at the recipe's rate needed for the equal epochs, median, s."""
        return median_s(self.results(Cell(self.grid.sizes[0], augmentation, scaled=False)))


def median_s(results: Sequence[ArmResult]) -> float | None:
    """Seconds of training, median over the seeds."""
    return statistics.median(each.seconds for each in results) if results else None


def _known(value: Callable[[ArmResult], float | None], results: Sequence[ArmResult]) -> list[float]:
    return [found for found in map(value, results) if found is not None]
