"""Whether bigger batches are better: size by augmentation by learning rate, after equal epochs and after equal time."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from models.errors import RecipeError
from training.insight.studies.arms import Slice, run_arm
from training.insight.studies.batch_sizes.findings import findings
from training.insight.studies.batch_sizes.grid import AUGMENTATIONS, Augmentation, Cell, Found, grid_of
from training.insight.studies.figures import equal_time_epochs, median_s, memory_gb, pictures_per_s, top1_points
from training.insight.studies.plots import Curves, Plot, Point
from training.insight.studies.report import (
    Study,
    Table,
    data_in_words,
    hold_machine,
    spread,
    trained_on,
    unfinished,
    without_paths,
    write_study,
)
from training.insight.studies.results import Arm, ArmResult
from training.insight.studies.rounds import Plan, require_sense, run_and_report, run_rounds
from training.insight.tuning.rates import RULE
from training.machine import Machine
from training.recipe import HardwareRecipe, read_recipe

_NAME: Final = "batch_sizes"
_OWN: Final = (
    *("--batch-size", "--accumulate", "--backbone-lr", "--head-lr", "--crop-scale-min", "--randaugment-ops"),
    *("--randaugment-magnitude", "--erase", "--mixup", "--cutmix", "--mix-share"),
)


class BatchSizes(Plan, frozen=True, kw_only=True):
    """Measures batch sizes: speed, memory, and accuracy after equal epochs and after equal time."""

    epochs: int = 15
    """Epochs of every run at equal epochs; the time that the smallest batch needs for them is the equal time."""
    sizes: tuple[int, ...] = (16, 32, 64, 128, 256)
    """Batch sizes; the smallest is what the others are compared with."""
    equal_time: bool = True
    """Also train every setting for the time of the smallest batch."""
    cpu_s: float = 60.0
    """With a GPU: seconds of training on the CPU beside it; 0 trains none."""


def measure_batch_sizes(command: BatchSizes) -> Study:
    """Runs what is not done yet, and writes the report; a study that is paused reports what it has.

    Raises:
        BotanifyError: Something that the user can mend, or the first run fails.
        StudyPaused: The time is over, or this process was asked to end.
    """
    require_sense(command, _OWN)
    _require_sizes(command.sizes)
    machine = hold_machine(command.out)
    study = _Running(command)
    return run_and_report(
        command.stop_after_s, study.run, lambda missing: _report(command, machine, study.found, missing)
    )


def equal_time_plan(found: Found) -> list[tuple[Arm, int]]:
    """Which runs equal time needs beside those of equal epochs, and of how many epochs.

    The schedule is laid out for the epochs that come nearest to the time that the smallest batch took, so that the
    rates have fallen when it is over. Where that is the number of the equal epochs, their runs stand for both.
    """
    needed: dict[str, tuple[Arm, int]] = {}
    for cell in found.grid.cells:
        results = found.results(cell)
        if results and found.budget_s is not None:
            epochs = equal_time_epochs(results, found.budget_s)
            if epochs != len(results[0].epochs):
                needed[results[0].arm.name] = (results[0].arm, epochs)
    return list(needed.values())


def tables(found: Found) -> list[Table]:
    """One table an augmentation: every size with unscaled and scaled rates."""
    return [_table(found, augmentation) for augmentation in AUGMENTATIONS]


def plots(found: Found) -> list[Plot]:
    """Speed and accuracy over the size."""
    sizes = found.grid.sizes
    speeds = {
        f"{each} augmentation": _dots({n: found.figures(pictures_per_s, Cell(n, each, scaled=False)) for n in sizes})
        for each in AUGMENTATIONS
    }
    drawn: list[Plot] = [Curves("speed", "Speed", "pictures a step", "pictures/s", speeds, log2=True)]
    for basis in ("epochs", "time") if found.equal_time else ("epochs",):
        series = _top1(found, by_time=basis == "time")
        drawn.append(Curves(basis, f"Equal {basis}", "pictures a step", "validation top-1, %", series, log2=True))
    return drawn


class _Running:
    """The study while it runs: what was found so far."""

    def __init__(self, command: BatchSizes) -> None:
        self._command = command
        self.found = Found(grid_of(read_recipe(command.recipe), command.sizes), [], [], command.on)

    def run(self, until: Slice) -> None:
        """Runs what is not done yet, in the order in which one part needs the other."""
        command, found = self._command, self.found
        run_rounds(command, found.grid.arms, "equal-epochs", found.equal_epochs, until=until)
        if command.equal_time:
            self._run_for_equal_time(until)
        if command.on == "cuda" and command.cpu_s > 0:
            self.found = msgspec.structs.replace(found, cpu=self._on_cpu(until))

    def _run_for_equal_time(self, until: Slice) -> None:
        found = self.found
        plan = equal_time_plan(found)
        arms, epochs = [arm for arm, _ in plan], [length for _, length in plan]
        names = {arm.name for arm in arms}
        found.equal_time.extend(each for each in found.equal_epochs if each.arm.name not in names and not each.error)
        run_rounds(
            self._command,
            arms,
            "equal-time",
            found.equal_time,
            until=until,
            epochs=epochs,
            seconds=found.budget_s,
            first_must_run=False,
        )

    def _on_cpu(self, until: Slice) -> ArmResult:
        """The smallest batch, for a short while, on the CPU of the same machine."""
        command, first = self._command, self.found.grid.arms[0]
        flags = (*first.flags, "--device", "cpu", "--amp", "off", "--no-compile", "--log-every-steps", "1")
        arm = Arm("cpu", flags, "What the same machine trains without its GPU.")
        folder, common = command.out / "runs" / "cpu", command.common()
        return run_arm(command.recipe, arm, command.seeds[0], folder, common, until=until, seconds=command.cpu_s)


def _report(command: BatchSizes, machine: Machine, found: Found, missing: str) -> Study:
    study = Study(
        name=_NAME,
        title="Is a bigger batch better?",
        about=_about(command, found),
        machine=machine,
        measured_on=trained_on(HardwareRecipe(device=command.on)),
        recipe=read_recipe(command.recipe).name,
        data=data_in_words(command.data),
        flags=without_paths(command.flags),
        arms=found.equal_epochs,
        tables=tables(found),
        findings=[*unfinished(missing), *findings(found)],
        details={
            "budget_s": found.budget_s,
            "equal_time": msgspec.to_builtins(found.equal_time),
            "cpu": msgspec.to_builtins(found.cpu),
        },
    )
    if found.equal_epochs:
        write_study(command.out, study, plots(found))
    return study


def _table(found: Found, augmentation: Augmentation) -> Table:
    columns = ["batch", "rate", "pictures/s", "epoch, s", "GPU memory, GB", "top-1 %, equal epochs"]
    cells = [cell for cell in found.grid.cells if cell.augmentation == augmentation]
    return Table(
        f"{augmentation.capitalize()} augmentation; median [least to most] over the seeds",
        [*columns, "top-1 %, equal time", "that time, s"],
        [_row(found, cell) for cell in cells],
    )


def _row(found: Found, cell: Cell) -> list[str]:
    return [
        str(cell.size),
        "scaled" if cell.scaled else "unscaled",
        spread(found.figures(pictures_per_s, cell)),
        spread(epoch.seconds for result in found.results(cell) for epoch in result.steady_epochs),
        spread(found.figures(memory_gb, cell), digits=2),
        spread(found.figures(top1_points, cell)),
        spread(found.figures(top1_points, cell, by_time=True)),
        spread([median_s(found.results(cell, by_time=True))]),
    ]


def _dots(values: Mapping[int, Sequence[float]]) -> list[list[Point]]:
    return [[(float(size), value)] for size, measured in values.items() for value in measured]


def _top1(found: Found, *, by_time: bool) -> dict[str, list[list[Point]]]:
    series = {}
    for first in (cell for cell in found.grid.cells if cell.size == found.grid.sizes[0]):
        cells = [msgspec.structs.replace(first, size=size) for size in found.grid.sizes]
        name = f"{first.augmentation}, {'scaled' if first.scaled else 'unscaled'} rate"
        series[name] = _dots({cell.size: found.figures(top1_points, cell, by_time=by_time) for cell in cells})
    return series


def _about(command: BatchSizes, found: Found) -> str:
    grid = found.grid
    budget = "" if found.budget_s is None else f" ({found.budget_s:,.1f} s)"
    return (
        f"Batches of {', '.join(map(str, grid.sizes))}, with light and heavy augmentation, with the recipe's rates "
        f"({grid.schedule.backbone_lr:g} and {grid.schedule.head_lr:g} at batch {grid.recipe_batch}) and with rates "
        f"that scale with {RULE}. {command.epochs} epochs each, seeds "
        f"{', '.join(map(str, command.seeds))}; then as many epochs as come nearest to the time that the smallest "
        f"batch took with light augmentation{budget}; where that is another number, a run ends when the time is over. "
        "Top-1 is that of the last epoch on the validation pictures. Better and worse are told by 95 % intervals of "
        "paired differences, for other seeds and other pictures; one comparison in twenty strays that far by chance."
    )


def _require_sizes(sizes: Sequence[int]) -> None:
    if len(set(sizes)) < 2 or len(set(sizes)) < len(sizes) or min(sizes) < 1:
        raise RecipeError(
            "sizes are compared with one another",
            value=" ".join(map(str, sizes)) or "none",
            limit="at least two different ones, each once, from 1 on",
            remedy="correct --sizes",
        )
