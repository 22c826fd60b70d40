"""The grid of the study of batch sizes: size by augmentation by learning rate, and what its cells gave."""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from training.insight.studies.figures import Figure, known, median_s, of_arm, points_more
from training.insight.studies.intervals import Interval
from training.insight.studies.results import Arm, ArmResult
from training.insight.tuning.rates import rates_for
from training.recipe import Recipe, ScheduleRecipe

Augmentation = Literal["light", "heavy"]

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
    schedule: ScheduleRecipe
    """Of the recipe: its rates are right for its own batch."""

    @property
    def recipe_batch(self) -> int:
        """Pictures that the recipe averages for a step of the optimizer."""
        return self.schedule.batch_size * self.schedule.accumulate

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
        scaled = cell.scaled and cell.size != self.recipe_batch
        return f"b{cell.size}-{cell.augmentation}-{'scaled' if scaled else 'unscaled'}"

    def _arm(self, cell: Cell) -> Arm:
        rates = rates_for(self.schedule, cell.size if cell.scaled else self.recipe_batch)
        size = ("--batch-size", str(cell.size), "--accumulate", "1")
        lrs = ("--backbone-lr", f"{rates.backbone_lr:g}", "--head-lr", f"{rates.head_lr:g}")
        told = (
            f"Batch {cell.size}, {cell.augmentation} augmentation, rates {rates.backbone_lr:g} and {rates.head_lr:g}."
        )
        return Arm(self.name(cell), (*size, *lrs, *AUGMENTATIONS[cell.augmentation]), told)


def grid_of(recipe: Recipe, sizes: Iterable[int]) -> Grid:
    """The grid around a recipe."""
    return Grid(tuple(sorted(sizes)), recipe.schedule)


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
        chosen = of_arm(self.equal_time if by_time else self.equal_epochs, self.grid.name(cell))
        return [each for each in chosen if each.epochs and not each.error]

    def figures(self, figure: Figure, cell: Cell, *, by_time: bool = False) -> list[float]:
        """A figure of a cell, by seed."""
        return known(figure, self.results(cell, by_time=by_time))

    def difference(self, cell: Cell, against: Cell, *, by_time: bool = False) -> Interval | None:
        """Percentage points of top-1 that a cell has more than another, over the seeds that both have."""
        return points_more(self.results(cell, by_time=by_time), self.results(against, by_time=by_time))

    @property
    def budget_s(self) -> float | None:
        """The equal time of all: what the smallest batch needed for the equal epochs, s.

        That with light augmentation and the recipe's rate, median over the seeds.
        """
        return median_s(self.results(Cell(self.grid.sizes[0], "light", scaled=False)))
