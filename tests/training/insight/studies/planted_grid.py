"""Planted results of the batch-sizes study with known figures."""

from tests.training.insight.studies.planted import SEEDS, epoch
from training.insight.studies.batch_grid import Grid, GridResults
from training.insight.studies.results import ArmResult
from training.recipe import ScheduleRecipe

GRID = Grid((16, 64, 256), ("light", "heavy"), ScheduleRecipe(batch_size=16, backbone_lr=3e-5, head_lr=9e-5))
SPEED = {16: 100.0, 64: 290.0, 256: 295.0}
PICTURES = 1000


def planted(top1, *, by_time=None, speed=SPEED, heavy=1.0, seeds=SEEDS, device="cuda", failing=(), judged=10**6):
    """Four steady epochs of every arm; `top1` returns the top-1 of a cell in percent.

    Each seed adds a tenth of a point. Heavy augmentation multiplies the speed by `heavy`.
    """
    cells = {GRID.name(cell): cell for cell in GRID.cells}

    def epochs(cell, seed, value):
        moved = value(cell) + seed / 10 + (cell.size > 16) * 0.05 * (seed - 1)
        pace, peak = speed[cell.size] * (heavy if cell.augmentation == "heavy" else 1), 1 + cell.size / 10
        return [epoch(n, PICTURES / pace, pace, moved / 100, judged=judged, memory_gb=peak) for n in range(2, 6)]

    def result(arm, seed, value):
        if arm.name in failing:
            return ArmResult(arm, seed, [], "error (out_of_memory): it does not fit.")
        return ArmResult(arm, seed, epochs(cells[arm.name], seed, value))

    def results(value):
        return [result(arm, seed, value) for arm in GRID.arms for seed in seeds]

    return GridResults(GRID, results(top1), results(by_time or top1), device)
