"""The batch-sizes study: speed, memory and accuracy by batch size, after equal epochs and after equal time.

A size is better or worse than the smallest if the 95 % interval of the paired difference in validation top-1 (see
`points_interval`) lies above or below 0. With one seed, no difference is stated. One comparison in twenty exceeds its
interval by chance.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec

from models.errors import RecipeError
from training.insight.studies.arms import TimeSlice
from training.insight.studies.batch_grid import Augmentation, Cell, Grid, GridResults
from training.insight.studies.figures import equal_time_epochs, median_s, memory_gb, pictures_per_s, top1_percent
from training.insight.studies.intervals import Interval
from training.insight.studies.plots import Bars, Curves, Point
from training.insight.studies.report import Content, Finding, Study, Table, spread
from training.insight.studies.results import Arm
from training.insight.studies.rounds import StudyOptions, run_rounds, run_study, validated_last
from training.insight.tuning.rates import RULE
from training.insight.tuning.search import NEAR
from training.recipe import read_recipe

_OWN_FLAGS: Final = (
    *("--batch-size", "--accumulate", "--backbone-lr", "--head-lr", "--crop-scale-min", "--randaugment-ops"),
    *("--randaugment-magnitude", "--erase", "--mixup", "--cutmix", "--mix-share"),
)
Comparison = Literal["better", "worse", "not significantly different"]


class BatchSizes(StudyOptions, frozen=True, kw_only=True):
    """Compares batch sizes: speed, memory, and accuracy after equal epochs and after equal time."""

    epochs: int = 15
    """Epochs of each run; the time that the smallest batch needs for them is the equal time."""
    sizes: tuple[int, ...] = (16, 32, 64, 128, 256)
    """Batch sizes; the others are compared with the smallest."""
    augmentations: tuple[Augmentation, ...] = ("light", "heavy")
    """Augmentations to train every size with."""
    equal_time: bool = True
    """Also train every arm for equal time."""


def measure_batch_sizes(command: BatchSizes) -> Study:
    """Runs what is missing and writes the result.

    Raises:
        BotanifyError: The options are wrong, or the first run fails.
        StudyPaused: The time is over, or this process received SIGTERM or Ctrl-C.
    """
    _require_sizes(command.sizes)
    grid = Grid(tuple(sorted(command.sizes)), command.augmentations, read_recipe(command.recipe).schedule)
    found = GridResults(grid, [], [], command.device_type)
    return run_study(
        command,
        _OWN_FLAGS,
        run=lambda until: _run(command, found, until),
        describe=lambda: _describe(command, found),
    )


def equal_time_plan(found: GridResults) -> dict[str, tuple[Arm, int]]:
    """The arms that need a run of their own at equal time, with the length of their schedule in epochs.

    If the number of epochs is that of the equal epochs, the run at equal epochs is used.
    """
    needed: dict[str, tuple[Arm, int]] = {}
    for cell in found.grid.cells:
        results = found.results(cell)
        if results and found.budget_s is not None:
            epochs = equal_time_epochs(results, found.budget_s)
            if epochs != len(results[0].epochs):
                needed[results[0].arm.name] = (results[0].arm, epochs)
    return needed


def compare_points(difference: Interval) -> Comparison:
    """Whether a difference of validation top-1 is significant."""
    if difference.low is None or difference.high is None or difference.low <= 0 <= difference.high:
        return "not significantly different"
    return "better" if difference.low > 0 else "worse"


def findings(found: GridResults) -> list[Finding]:
    """The conclusions; the answer first."""
    rules = (_is_bigger_better, _speed, _accuracy, _scaling, _augmentation, _memory, _failed)
    return [finding for rule in rules for finding in rule(found)]


def tables(found: GridResults) -> list[Table]:
    """One table for each augmentation."""
    return [_table(found, augmentation) for augmentation in found.grid.augmentations]


def plots(found: GridResults) -> list[Bars | Curves]:
    """Speed and accuracy by batch size."""
    firsts = found.grid.smallest
    speeds = {f"{each.augmentation} augmentation": _dots(found.by_size(pictures_per_s, each)) for each in firsts[::2]}
    drawn: list[Bars | Curves] = [Curves("speed", "Speed", "batch size", "pictures/s", speeds, log2=True)]
    for basis in ("epochs", "time") if found.equal_time else ("epochs",):
        top1 = {str(each): _dots(found.by_size(top1_percent, each, by_time=basis == "time")) for each in firsts}
        drawn.append(Curves(basis, f"Equal {basis}", "batch size", "validation top-1, %", top1, log2=True))
    return drawn


def _run(command: BatchSizes, found: GridResults, until: TimeSlice) -> None:
    run_rounds(command, found.grid.arms, "equal-epochs", found.equal_epochs, until=until)
    if not command.equal_time:
        return
    plan = equal_time_plan(found)
    found.equal_time.extend(each for each in found.equal_epochs if each.arm.name not in plan and not each.error)
    run_rounds(
        command,
        [arm for arm, _ in plan.values()],
        "equal-time",
        found.equal_time,
        until=until,
        flags=lambda arm: validated_last(command, plan[arm.name][1]),
        max_seconds=found.budget_s,
        first_must_run=False,
    )


def _describe(command: BatchSizes, found: GridResults) -> Content:
    return Content(
        name="batch_sizes",
        title="Effect of the batch size",
        about=_about(command, found),
        arms=found.equal_epochs,
        other_runs={"equal time": found.equal_time},
        tables=tables(found),
        findings=findings(found),
        plots=plots(found),
    )


def _is_bigger_better(found: GridResults) -> Iterator[Finding]:
    for by_time in (True, False):
        differences = [each for first in found.grid.smallest for each in _differences(found, first, by_time).values()]
        if differences:
            text = (
                f"Are larger batches better after {_basis(by_time)}? {_answer(list(map(compare_points, differences)))}"
            )
            yield Finding("bigger_is_better", text)


def _answer(comparisons: list[Comparison]) -> str:
    better, worse, total = comparisons.count("better"), comparisons.count("worse"), len(comparisons)
    if not better and not worse:
        return f"Not shown: none of {total} comparisons with the smallest batch is significant."
    answer = "It depends" if better and worse else "No" if worse else "Yes" if better == total else "Partly"
    return (
        f"{answer}: of {total} comparisons with the smallest batch, {better} are better, {worse} worse and "
        f"{total - better - worse} not significantly different."
    )


def _basis(by_time: bool) -> str:
    return "equal time" if by_time else "equal epochs"


def _differences(found: GridResults, first: Cell, by_time: bool) -> dict[int, Interval]:
    """Top-1 of each larger size minus that of the smallest, with the same augmentation and rate."""
    larger = [msgspec.structs.replace(first, size=size) for size in found.grid.sizes[1:]]
    known = {cell.size: found.difference(cell, first, by_time=by_time) for cell in larger}
    return {size: difference for size, difference in known.items() if difference is not None}


def _speed(found: GridResults) -> Iterator[Finding]:
    for first in found.grid.smallest[::2]:  # with the unscaled rate
        speeds = {size: statistics.median(each) for size, each in found.by_size(pictures_per_s, first).items()}
        if len(speeds) < 2:
            continue
        fastest, smallest = max(speeds, key=lambda size: speeds[size]), min(speeds)
        enough = min(size for size in speeds if speeds[size] >= (1 - NEAR) * speeds[fastest])
        text = f"{first.augmentation.capitalize()} augmentation: batch size {fastest} is fastest with "
        text += (
            f"{speeds[fastest]:,.1f} pictures/s, {speeds[fastest] / speeds[smallest]:.2f} times batch size {smallest}; "
        )
        yield Finding("speed", f"{text}{enough} is the smallest within {100 * NEAR:g} % of it (medians).")


def _accuracy(found: GridResults) -> Iterator[Finding]:
    for by_time in (False, True):
        for first in found.grid.smallest:
            told = [f"{size}: {_points(each)}" for size, each in _differences(found, first, by_time).items()]
            if told:
                text = f"Top-1 relative to batch size {first.size} after {_basis(by_time)}, {first}: "
                yield Finding("accuracy", f"{text}{'; '.join(told)}.")


def _scaling(found: GridResults) -> Iterator[Finding]:
    grid = found.grid
    for augmentation in grid.augmentations:
        cell = Cell(grid.sizes[-1], augmentation, scaled=True)
        unscaled = msgspec.structs.replace(cell, scaled=False)
        difference = found.difference(cell, unscaled)
        if difference is not None and grid.name(cell) != grid.name(unscaled):
            text = f"Scaled rates at batch size {cell.size}, {augmentation} augmentation, equal epochs: "
            yield Finding("scaling", f"{text}{_points(difference)} relative to unscaled rates.")


def _augmentation(found: GridResults) -> Iterator[Finding]:
    for size in (found.grid.sizes[0], found.grid.sizes[-1]):
        for by_time in (False, True):
            heavy, light = (Cell(size, each, scaled=True) for each in ("heavy", "light"))
            difference = found.difference(heavy, light, by_time=by_time)
            if difference is not None:
                text = f"Heavy augmentation at batch size {size}, scaled rate, {_basis(by_time)}: "
                yield Finding("augmentation", f"{text}{_points(difference)} relative to light augmentation.")


def _points(difference: Interval) -> str:
    interval = "" if difference.low is None else f" ({difference.low:+.1f} to {difference.high:+.1f})"
    return f"{difference.mean:+.1f} points{interval}, {compare_points(difference)}"


def _memory(found: GridResults) -> Iterator[Finding]:
    if found.device == "cpu":
        yield Finding("memory", "GPU memory was not measured: this is a CPU.")
        return
    peaks = found.by_size(memory_gb, found.grid.smallest[0])
    if len(peaks) > 1:
        small, large = min(peaks), max(peaks)
        low, high = statistics.median(peaks[small]), statistics.median(peaks[large])
        each = 1000 * (high - low) / (large - small)
        text = f"GPU memory: {low:.2f} GB at batch size {small}, {high:.2f} GB at {large}"
        yield Finding("memory", f"{text}: {each:,.0f} MB for each further picture.")


def _failed(found: GridResults) -> Iterator[Finding]:
    errors = {each.arm.name: each.error for each in (*found.equal_epochs, *found.equal_time) if each.error}
    for name, error in errors.items():
        yield Finding("failed", f"{name} failed: {error}")


def _table(found: GridResults, augmentation: Augmentation) -> Table:
    columns = ["batch size", "rate", "pictures/s", "epoch, s", "GPU memory, GB", "top-1 %, equal epochs"]
    cells = [cell for cell in found.grid.cells if cell.augmentation == augmentation]
    return Table(
        f"{augmentation.capitalize()} augmentation; median [range] over the seeds",
        [*columns, "top-1 %, equal time", "that time, s"],
        [_row(found, cell) for cell in cells],
    )


def _row(found: GridResults, cell: Cell) -> list[str]:
    return [
        str(cell.size),
        "scaled" if cell.scaled else "unscaled",
        spread(found.figures(pictures_per_s, cell)),
        spread(epoch.seconds for result in found.results(cell) for epoch in result.steady_epochs),
        spread(found.figures(memory_gb, cell), digits=2),
        spread(found.figures(top1_percent, cell)),
        spread(found.figures(top1_percent, cell, by_time=True)),
        spread([median_s(found.results(cell, by_time=True))]),
    ]


def _dots(values: Mapping[int, Sequence[float]]) -> list[list[Point]]:
    return [[(float(size), value)] for size, measured in values.items() for value in measured]


def _about(command: BatchSizes, found: GridResults) -> str:
    grid = found.grid
    text = (
        f"Batch sizes {', '.join(map(str, grid.sizes))}, with {' and '.join(grid.augmentations)} augmentation, with "
        f"the recipe's rates ({grid.schedule.backbone_lr:g} and {grid.schedule.head_lr:g} for batch size "
        f"{grid.recipe_batch}) and with rates that scale with {RULE}. Each arm trains for {command.epochs} "
        f"epochs with the seeds {', '.join(map(str, command.seeds))}. "
    )
    if command.equal_time and found.budget_s is not None:
        text += (
            f"At equal time, it trains for the {found.budget_s:,.1f} s that the smallest batch took, with a schedule "
            "of as many epochs as fit. "
        )
    return text + (
        "Top-1 is that of the last epoch on the validation pictures. Differences are paired by seed; their 95 % "
        "intervals cover other seeds and other pictures. One comparison in twenty exceeds its interval by chance."
    )


def _require_sizes(sizes: Sequence[int]) -> None:
    if len(set(sizes)) < 2 or len(set(sizes)) < len(sizes) or min(sizes) < 1:
        raise RecipeError(
            "batch sizes are compared with one another",
            value=" ".join(map(str, sizes)) or "none",
            limit="at least two different ones, each once, from 1 on",
            remedy="correct --sizes",
        )
