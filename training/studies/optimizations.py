"""What each optimization is worth: every one alone, some together, all of them, beside a baseline without any."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from models.errors import RecipeError
from training.recipe import HardwareRecipe, read_recipe
from training.studies.arms import Arm
from training.studies.optimizations_figures import BASELINE, PARTS, Measured
from training.studies.optimizations_findings import findings
from training.studies.plots import Bars, Curves, Plot
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

_NAME: Final = "optimizations"
_ON: Final[Mapping[str, str]] = {
    "workers": "--persistent-workers",
    "cudnn": "--cudnn-benchmark",
    "channels_last": "--channels-last",
    "compile": "--compile",
}
_WORDS: Final[Mapping[str, str]] = {
    "amp": "mixed precision",
    "workers": "persistent workers",
    "cudnn": "cudnn.benchmark",
    "channels_last": "channels_last",
    "compile": "torch.compile",
}


class Optimizations(Plan, frozen=True, kw_only=True):
    """Measures what each optimization is worth, alone and together."""

    amp: Literal["auto", "fp16", "bf16"] = "auto"
    """Mixed precision of the arms that have it; auto takes fp16 on a GPU and bf16 on a CPU."""
    only: tuple[str, ...] = ()
    """Names of arms to run beside the baseline; default: all of them."""


def measure_optimizations(command: Optimizations) -> Study:
    """Runs what is not done yet, and writes the report.

    Raises:
        BotanifyError: Something that the user can mend, or the baseline fails.
        StudyPaused: The time is over, or this process was asked to end.
    """
    require_sense(command, ["--amp", *_ON.values()])
    machine = hold_machine(command.out)
    precision = ("fp16" if command.on == "cuda" else "bf16") if command.amp == "auto" else command.amp
    chosen = arms(precision, command.only)
    results = run_rounds(command, chosen, [command.epochs] * len(chosen), _NAME, deadline_of(command))
    measured = Measured(results, command.on)
    study = Study(
        name=_NAME,
        title="What each optimization is worth",
        about=_about(command, precision),
        machine=machine,
        measured_on=trained_on(HardwareRecipe(device=command.on)),
        recipe=read_recipe(command.recipe).name,
        data=data_in_words(command.data),
        flags=without_paths(command.flags),
        arms=results,
        tables=tables(measured),
        findings=findings(measured),
    )
    write_study(command.out, study, plots(measured))
    return study


def arms(precision: str, only: Sequence[str] = ()) -> list[Arm]:
    """The arms, the baseline first; each sets all five switches, so that a recipe's own do not matter.

    Raises:
        RecipeError: There is no arm of such a name.
    """
    unknown = set(only) - PARTS.keys()
    if unknown:
        raise RecipeError(
            "no such arm", value=", ".join(sorted(unknown)), limit=", ".join(PARTS), remedy="correct --only"
        )
    names = [name for name in PARTS if not only or name in only or name == BASELINE]
    return [Arm(name, _flags(PARTS[name], precision), _explained(name)) for name in names]


def tables(measured: Measured) -> list[Table]:
    """Speed and memory of every arm, and each epoch by itself."""
    return [_speed_table(measured), _epoch_table(measured)]


def plots(measured: Measured) -> list[Plot]:
    """Speed-ups as bars, and the seconds of each epoch as curves."""
    seconds = {
        name: [list(enumerate(measured.epoch_s(result), start=1)) for result in measured.of(name)]
        for name in measured.names
    }
    speedups = {name: measured.speedups(name) for name in measured.names}
    return [
        Bars("speed", "Speed beside the baseline", "times", speedups, mark=1.0),
        Curves("epochs", "Each epoch by itself; the first warms up", "epoch", "seconds", seconds),
    ]


def _speed_table(measured: Measured) -> Table:
    columns = ["arm", "pictures/s", "epoch, s", "speed-up", "its parts multiplied", "GPU memory, GB"]
    columns += ["first epoch longer by, s", "to the first step, s"]
    return Table(
        "Speed and memory; median [least to most] over the rounds, without the first epoch",
        columns,
        [_speed_row(measured, name) for name in measured.names],
    )


def _speed_row(measured: Measured, name: str) -> list[str]:
    parts = measured.product_of_parts(name).values() if len(PARTS[name]) > 1 else []
    return [
        name,
        spread(measured.speeds(name)),
        f"{measured.steady_epoch_s(name):,.1f}",
        spread(measured.speedups(name), digits=2),
        f"{statistics.median(parts):.2f}" if parts else "–",
        spread([measured.memory_gb(name)], digits=2),
        f"{measured.warm_up_s(name):,.1f}",
        spread(result.seconds_to_first_step for result in measured.of(name)),
    ]


def _epoch_table(measured: Measured) -> Table:
    longest = max((len(result.epochs) for name in measured.names for result in measured.of(name)), default=0)
    rows = []
    for name in measured.names:
        taken = [measured.epoch_s(result) for result in measured.of(name)]
        rows.append([name, *(spread(epochs[at] for epochs in taken if at < len(epochs)) for at in range(longest))])
    return Table(
        "Each epoch by itself, s; median [least to most] over the rounds",
        ["arm", *(f"epoch {number + 1}" for number in range(longest))],
        rows,
    )


def _flags(parts: Sequence[str], precision: str) -> tuple[str, ...]:
    switches = [flag if part in parts else flag.replace("--", "--no-", 1) for part, flag in _ON.items()]
    return ("--amp", precision if "amp" in parts else "off", *switches)


def _explained(name: str) -> str:
    if not PARTS[name]:
        return "FP32, NCHW, loader processes started for every epoch, kernels as cuDNN guesses them."
    return f"The baseline with {', '.join(_WORDS[part] for part in PARTS[name])}."


def _about(command: Optimizations, precision: str) -> str:
    told = (
        f"Every arm runs {command.epochs} epochs in a process of its own, {len(command.seeds)} rounds, arms in turn. "
        f"Mixed precision is {precision}. Speeds are medians over the epochs behind the first, speed-ups are taken "
        "within a round. Memory is the most that PyTorch reserved."
    )
    if command.on == "cpu":
        told += " On a CPU the arms with cudnn.benchmark change nothing, and no GPU memory is measured."
    return told
