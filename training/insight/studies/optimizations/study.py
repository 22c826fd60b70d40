"""What each optimization is worth: every one alone, some together, all of them, beside a baseline without any."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from models.errors import RecipeError
from training.insight.studies.optimizations.figures import AGAIN, CUDA_ONLY, PARTS, Measured
from training.insight.studies.optimizations.findings import findings
from training.insight.studies.plots import Bars, Curves, Plot
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
from training.machine import Machine
from training.recipe import HardwareRecipe, read_recipe

_NAME: Final = "optimizations"
_ON: Final[Mapping[str, str]] = {
    "workers": "--persistent-workers",
    "cudnn": "--cudnn-benchmark",
    "channels_last": "--channels-last",
    "compile": "--compile",
    "tf32": "--tf32",
}
_WORDS: Final[Mapping[str, str]] = {
    "amp": "mixed precision",
    "workers": "persistent workers",
    "cudnn": "cudnn.benchmark",
    "channels_last": "channels_last",
    "compile": "torch.compile",
    "tf32": "TF32 in the place of FP32",
}


class Optimizations(Plan, frozen=True, kw_only=True):
    """Measures what each optimization is worth, alone and together."""

    amp: Literal["auto", "fp16", "bf16"] = "auto"
    """Mixed precision of the arms that have it; auto takes fp16 on a GPU and bf16 on a CPU."""
    only: tuple[str, ...] = ()
    """Names of arms to run beside the baseline; default: all of them."""

    @property
    def precision(self) -> Literal["fp16", "bf16"]:
        """Mixed precision of the arms that have it."""
        if self.amp == "auto":
            return "fp16" if self.on == "cuda" else "bf16"
        return self.amp


def measure_optimizations(command: Optimizations) -> Study:
    """Runs what is not done yet, and writes the report; a study that is paused reports what it has.

    Raises:
        BotanifyError: Something that the user can mend, or the baseline fails.
        StudyPaused: The time is over, or this process was asked to end.
    """
    require_sense(command, ["--amp", *_ON.values()])
    chosen = arms(command.on, command.precision, command.only)
    machine = hold_machine(command.out)
    results: list[ArmResult] = []

    return run_and_report(
        command.stop_after_s,
        run=lambda until: run_rounds(command, chosen, _NAME, results, until=until),
        report=lambda missing: _report(command, machine, results, missing),
    )


def arms(device: Literal["cuda", "cpu"], precision: str, only: Sequence[str] = ()) -> list[Arm]:
    """The arms of a device, the baseline first; each sets all six switches, so that a recipe's own do not matter.

    Raises:
        RecipeError: There is no arm of such a name.
    """
    known = [name for name in PARTS if device == "cuda" or name not in CUDA_ONLY]
    unknown = set(only) - set(known)
    if unknown:
        raise RecipeError(
            f"no such arm on {device}",
            value=", ".join(sorted(unknown)),
            limit=", ".join(known),
            remedy="correct --only",
        )
    names = [name for name in known if not only or name in only or name == known[0]]
    return [Arm(name, _flags(PARTS[name], precision), _explained(name)) for name in names]


def tables(measured: Measured) -> list[Table]:
    """Speed and memory of every arm, and each epoch by itself."""
    return [_speed_table(measured), _epoch_table(measured)]


def plots(measured: Measured) -> list[Plot]:
    """Speed-ups as bars, and the seconds of each epoch as curves."""
    seconds = {
        name: [[(float(epoch.epoch), epoch.seconds) for epoch in result.epochs] for result in measured.of(name)]
        for name in measured.names
    }
    speedups = {name: list(measured.speedups(name).values()) for name in measured.names}
    return [
        Bars("speed", "Speed beside the baseline", "times", speedups, mark=1.0),
        Curves("epochs", "Each epoch by itself; the first warms up", "epoch", "seconds", seconds),
    ]


def _report(command: Optimizations, machine: Machine, results: list[ArmResult], missing: str) -> Study:
    measured = Measured(results, command.on)
    study = Study(
        name=_NAME,
        title="What each optimization is worth",
        about=_about(command),
        machine=machine,
        measured_on=trained_on(HardwareRecipe(device=command.on)),
        recipe=read_recipe(command.recipe).name,
        data=data_in_words(command.data),
        flags=without_paths(command.flags),
        arms=results,
        tables=tables(measured),
        findings=[*unfinished(missing), *findings(measured)],
    )
    if results:
        write_study(command.out, study, plots(measured))
    return study


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
        spread([measured.epoch_s(name)]),
        spread(measured.speedups(name).values(), digits=2),
        f"{statistics.median(parts):.2f}" if parts else "–",
        spread([measured.memory_gb(name)], digits=2),
        spread([measured.warm_up_s(name)]),
        spread(result.seconds_to_first_step for result in measured.of(name)),
    ]


def _epoch_table(measured: Measured) -> Table:
    longest = max((len(result.epochs) for name in measured.names for result in measured.of(name)), default=0)
    rows = []
    for name in measured.names:
        taken = [[epoch.seconds for epoch in result.epochs] for result in measured.of(name)]
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
    if name == AGAIN:
        return "The baseline once more: what the two differ by has no cause."
    if not PARTS[name]:
        return "FP32 without TF32, NCHW, loader processes started for every epoch, kernels as cuDNN guesses them."
    return f"The baseline with {', '.join(_WORDS[part] for part in PARTS[name])}."


def _about(command: Optimizations) -> str:
    told = (
        f"Every arm runs {command.epochs} epochs in a process of its own, {len(command.seeds)} rounds, each in another "
        f"order. Mixed precision is {command.precision}. Speeds are medians over the epochs behind the first; "
        "speed-ups are taken within a round. Memory is the most that PyTorch reserved. What parts multiply to leaves "
        "TF32 out where there is mixed precision, which leaves next to nothing for it."
    )
    if command.on == "cpu":
        told += " On a CPU the arms with cudnn.benchmark change nothing, and no GPU memory is measured."
    return told
