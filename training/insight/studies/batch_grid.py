"""The grid of the batch-sizes study: size by augmentation by learning rate, and its results."""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from training.insight.studies.figures import Figure, known, median_s, of_arm, points_more
from training.insight.studies.intervals import Interval
from training.insight.studies.results import Arm, ArmResult
from training.insight.tuning.rates import rates_for
from training.recipe import ScheduleRecipe

Augmentation = Literal["light", "heavy"]
FLAGS: Final[Mapping[Augmentation, tuple[str, ...]]] = {
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
    """One combination of the grid."""

    size: int
    """Batch size."""
    augmentation: Augmentation
    scaled: bool
    """Whether the learning rates are scaled to the batch size."""

    def __str__(self) -> str:
        return f"{self.augmentation} augmentation, {'scaled' if self.scaled else 'unscaled'} rate"


class Grid(msgspec.Struct, frozen=True):
    """All combinations."""

    sizes: tuple[int, ...]
    """Ascending; the first is the one that the others are compared with."""
    augmentations: tuple[Augmentation, ...]
    schedule: ScheduleRecipe
    """The recipe's; its rates are right for its own batch size."""

    @property
    def recipe_batch(self) -> int:
        """Pictures per optimizer step in the recipe."""
        return self.schedule.batch_size * self.schedule.accumulate

    @property
    def cells(self) -> list[Cell]:
        """Every combination, the smallest size first."""
        return [
            Cell(size, each, scaled) for size in self.sizes for each in self.augmentations for scaled in (False, True)
        ]

    @property
    def smallest(self) -> list[Cell]:
        """The smallest size with each augmentation and rate."""
        return [cell for cell in self.cells if cell.size == self.sizes[0]]

    @property
    def arms(self) -> list[Arm]:
        """The runs. At the recipe's batch size, scaled and unscaled rates are equal and share one run."""
        return list({self.name(cell): self._arm(cell) for cell in self.cells}.values())

    def name(self, cell: Cell) -> str:
        """Name of a cell's arm."""
        scaled = cell.scaled and cell.size != self.recipe_batch
        return f"b{cell.size}-{cell.augmentation}-{'scaled' if scaled else 'unscaled'}"

    def _arm(self, cell: Cell) -> Arm:
        rates = rates_for(self.schedule, cell.size if cell.scaled else self.recipe_batch)
        size = ("--batch-size", str(cell.size), "--accumulate", "1")
        lrs = ("--backbone-lr", f"{rates.backbone_lr:g}", "--head-lr", f"{rates.head_lr:g}")
        explains = f"Batch size {cell.size}, {cell.augmentation} augmentation, rates {lrs[1]} and {lrs[3]}."
        return Arm(self.name(cell), (*size, *lrs, *FLAGS[cell.augmentation]), explains)


class GridResults(msgspec.Struct, frozen=True):
    """The results of the grid."""

    grid: Grid
    equal_epochs: list[ArmResult]
    equal_time: list[ArmResult]
    device: Literal["cuda", "cpu"]

    def results(self, cell: Cell, *, by_time: bool = False) -> list[ArmResult]:
        """The runs of a cell that did not fail, by seed."""
        chosen = of_arm(self.equal_time if by_time else self.equal_epochs, self.grid.name(cell))
        return [each for each in chosen if each.epochs and not each.error]

    def figures(self, figure: Figure, cell: Cell, *, by_time: bool = False) -> list[float]:
        """A figure of a cell, by seed."""
        return known(figure, self.results(cell, by_time=by_time))

    def by_size(self, figure: Figure, cell: Cell, *, by_time: bool = False) -> dict[int, list[float]]:
        """A figure of each batch size with a cell's augmentation and rate; sizes without results are left out."""
        cells = [msgspec.structs.replace(cell, size=size) for size in self.grid.sizes]
        found = {each.size: self.figures(figure, each, by_time=by_time) for each in cells}
        return {size: values for size, values in found.items() if values}

    def difference(self, cell: Cell, against: Cell, *, by_time: bool = False) -> Interval | None:
        """Top-1 of a cell minus that of another, percentage points, over the seeds that both have."""
        return points_more(self.results(cell, by_time=by_time), self.results(against, by_time=by_time))

    @property
    def budget_s(self) -> float | None:
        """Training time of the runs at equal time, s.

        It is what the smallest batch needed for the equal epochs with the first augmentation and the unscaled rate,
        median over the seeds.
        """
        return median_s(self.results(self.grid.smallest[0]))
