"""Whether bigger batches are better: size by augmentation by learning rate, after equal epochs and after equal time."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from models.errors import RecipeError
from training.recipe import HardwareRecipe, read_recipe
from training.studies.ablation import equal_time_epochs
from training.studies.arms import Arm, ArmResult, run_arm
from training.studies.batch_sizes_findings import findings
from training.studies.batch_sizes_grid import (
    AUGMENTATIONS,
    RULES,
    Augmentation,
    Cell,
    Found,
    Grid,
    Rule,
    grid_of,
    median_s,
)
from training.studies.plots import Curves, Plot, Point
from training.studies.report import (
    Study,
    Table,
    data_in_words,
    hold_machine,
    spread,
    trained_on,
    without_paths,
    write_study,
)
from training.studies.rounds import Plan, deadline_of, require_sense, run_rounds

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
    rule: Rule = "square_root"
    """How scaled rates grow from the recipe's own batch: with its square root or linearly."""
    equal_time: bool = True
    """Also train every setting for the time of the smallest batch."""
    cpu_s: float = 60.0
    """With a GPU: seconds of training on the CPU beside it; 0 trains none."""


def measure_batch_sizes(command: BatchSizes) -> Study:
    """Runs what is not done yet, and writes the report.

    Raises:
        BotanifyError: Something that the user can mend, or the first run fails.
        StudyPaused: The time is over, or this process was asked to end.
    """
    require_sense(command, _OWN)
    _require_sizes(command.sizes)
    machine, recipe = hold_machine(command.out), read_recipe(command.recipe)
    found = _run(command, grid_of(recipe, command.sizes, command.rule))
    study = Study(
        name=_NAME,
        title="Is a bigger batch better?",
        about=_about(command, found.grid),
        machine=machine,
        measured_on=trained_on(HardwareRecipe(device=command.on)),
        recipe=recipe.name,
        data=data_in_words(command.data),
        flags=without_paths(command.flags),
        arms=found.equal_epochs,
        tables=tables(found),
        findings=findings(found),
        details={"equal_time": msgspec.to_builtins(found.equal_time), "cpu": msgspec.to_builtins(found.cpu)},
    )
    write_study(command.out, study, plots(found))
    return study


def equal_time_plan(found: Found) -> list[tuple[Arm, int]]:
    """Which runs equal time needs beside those of equal epochs, and of how many epochs.

    The schedule is laid out for the epochs that come nearest to the time that the smallest batch took, so that the
    rates have fallen when it is over. Where that is the number of the equal epochs, their runs stand for both.
    """
    needed: dict[str, tuple[Arm, int]] = {}
    for cell in found.grid.cells:
        results, budget = found.results(cell), found.budget_s(cell.augmentation)
        if results and budget is not None:
            epochs = equal_time_epochs(results, budget)
            if epochs != len(results[0].epochs):
                needed[results[0].arm.name] = (results[0].arm, epochs)
    return list(needed.values())


def tables(found: Found) -> list[Table]:
    """One table an augmentation: every size with unscaled and scaled rates."""
    return [_table(found, augmentation) for augmentation in AUGMENTATIONS]


def plots(found: Found) -> list[Plot]:
    """Speed and accuracy over the size."""
    speeds = {
        f"{each} augmentation": _dots({size: found.speeds(Cell(size, each, scaled=False)) for size in found.grid.sizes})
        for each in AUGMENTATIONS
    }
    drawn: list[Plot] = [Curves("speed", "Speed", "pictures a step", "pictures/s", speeds, log2=True)]
    for basis in ("epochs", "time") if found.equal_time else ("epochs",):
        series = _top1(found, by_time=basis == "time")
        drawn.append(Curves(basis, f"Equal {basis}", "pictures a step", "validation top-1, %", series, log2=True))
    return drawn


def _run(command: BatchSizes, grid: Grid) -> Found:
    deadline = deadline_of(command)
    results = run_rounds(command, grid.arms, [command.epochs] * len(grid.arms), "equal-epochs", deadline)
    found = Found(grid, results, [], command.on)
    if command.equal_time:
        found = msgspec.structs.replace(found, equal_time=_for_equal_time(command, found, deadline))
    if command.on == "cuda" and command.cpu_s > 0:
        found = msgspec.structs.replace(found, cpu=_on_cpu(command, grid, deadline))
    return found


def _for_equal_time(command: BatchSizes, found: Found, deadline: float) -> list[ArmResult]:
    plan = equal_time_plan(found)
    arms, epochs = [arm for arm, _ in plan], [length for _, length in plan]
    names = {arm.name for arm in arms}
    standing = [each for each in found.equal_epochs if each.arm.name not in names and not each.error]
    return standing + (run_rounds(command, arms, epochs, "equal-time", deadline) if arms else [])


def _on_cpu(command: BatchSizes, grid: Grid, deadline: float) -> ArmResult:
    """The smallest batch, for a short while, on the CPU of the same machine."""
    first = grid.arms[0]
    flags = (*first.flags, "--device", "cpu", "--amp", "off", "--no-compile")
    arm = Arm("cpu", flags, "What the same machine trains without its GPU.")
    folder, common = command.out / "runs" / "cpu", command.common()
    seed = command.seeds[0]
    return run_arm(command.recipe, arm, seed, folder, common, seconds=command.cpu_s, deadline=deadline)


def _table(found: Found, augmentation: Augmentation) -> Table:
    columns = ["batch", "rate", "pictures/s", "epoch, s", "GPU memory, GB", "top-1 %, equal epochs"]
    cells = [cell for cell in found.grid.cells if cell.augmentation == augmentation]
    return Table(
        f"{augmentation.capitalize()} augmentation; median [least to most] over the seeds",
        [*columns, "top-1 %, equal time", "that time, s"],
        [_row(found, cell) for cell in cells],
    )


def _row(found: Found, cell: Cell) -> list[str]:
    timed = median_s(found.results(cell, by_time=True))
    return [
        str(cell.size),
        "scaled" if cell.scaled else "unscaled",
        spread(found.speeds(cell)),
        spread(epoch.seconds for result in found.results(cell) for epoch in result.steady_epochs),
        spread(found.peaks_gb(cell), digits=2),
        spread(found.top1(cell)),
        spread(found.top1(cell, by_time=True)),
        spread([timed]),
    ]


def _dots(values: Mapping[int, Sequence[float]]) -> list[list[Point]]:
    return [[(float(size), value)] for size, measured in values.items() for value in measured]


def _top1(found: Found, *, by_time: bool) -> dict[str, list[list[Point]]]:
    series = {}
    for first in (cell for cell in found.grid.cells if cell.size == found.grid.sizes[0]):
        cells = [msgspec.structs.replace(first, size=size) for size in found.grid.sizes]
        name = f"{first.augmentation}, {'scaled' if first.scaled else 'unscaled'} rate"
        series[name] = _dots({cell.size: found.top1(cell, by_time=by_time) for cell in cells})
    return series


def _about(command: BatchSizes, grid: Grid) -> str:
    return (
        f"Batches of {', '.join(map(str, grid.sizes))}, with light and heavy augmentation, with the recipe's rates "
        f"({grid.backbone_lr:g} and {grid.head_lr:g} at batch {grid.recipe_batch}) and with rates that grow with "
        f"{RULES[grid.rule]}. {command.epochs} epochs each, seeds {', '.join(map(str, command.seeds))}; then as many "
        "epochs as come nearest to the time that the smallest batch took. Top-1 is that of the last epoch on the "
        "validation pictures. Better and worse are told by 95 % intervals of paired differences, for other seeds and "
        "other pictures; one comparison in twenty strays that far by chance."
    )


def _require_sizes(sizes: Sequence[int]) -> None:
    if len(set(sizes)) < 2 or len(set(sizes)) < len(sizes) or min(sizes) < 1:
        raise RecipeError(
            "sizes are compared with one another",
            value=" ".join(map(str, sizes)) or "none",
            limit="at least two different ones, each once, from 1 on",
            remedy="correct --sizes",
        )
