"""The ablation of the 7.9 points between the constrained baseline and the reference recipe.

Every arm starts from one file of weights and trains for equal epochs, then for equal time, with each seed. Every arm of
a seed is run before the next seed begins, so that a machine that slows down slows all arms alike.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import tyro
from msgspec import Meta

from models.errors import BotanifyError, CheckpointError, RecipeError
from training.device import choose_device
from training.manifest import Manifest
from training.memory import OutOfMemory
from training.recipe import HardwareRecipe, read_recipe
from training.studies.ablation_findings import Ablation, BatchLimit, Setting, of_arm
from training.studies.ablation_report import as_study, plots
from training.studies.arms import Arm, ArmResult, StudyPaused, run_arm
from training.studies.ladder import BASELINE, arms, ladder, memory_arm, rate_arms
from training.studies.report import data_in_words, hold_machine, trained_on, without_paths, write_study

_MOST_PICTURES: Final = 512  # a step; a card of 8 GB holds a tenth of them at 380 px


class Ablate(msgspec.Struct, frozen=True, kw_only=True):
    """Takes the reference recipe apart: what each of its parts is worth, in points, speed and memory."""

    data: Path
    """Folder written by training/prepare.py."""
    weights: Path
    """Checkpoint that every arm starts from."""
    out: Path
    """Folder for runs, ablation.json, ablation.md and the plot."""
    recipe: Path = Path("directml_baseline")
    """Recipe of the baseline, from which every arm is changed."""
    epochs: Annotated[int, Meta(ge=1)] = 15
    """Epochs of every arm."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of every arm; the sweep of the rates takes the one after the largest."""
    rates: tuple[float, ...] = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
    """Learning rates that the baseline is tried at."""
    equal_time: bool = True
    """Run every arm for equal time, too."""
    budget_s: Annotated[float, Meta(ge=0.0)] = 0.0
    """Seconds of training at equal time; 0 takes what the baseline needed for the equal epochs."""
    memory_gb: Annotated[float, Meta(gt=0.0)] = 8.0
    """Card on which the largest batches are looked for, GB."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """Where to train; auto takes CUDA if there is any."""
    stop_after_s: Annotated[float, Meta(ge=0.0)] = 0.0
    """Pause after so many seconds; the same command goes on. 0 runs to the end."""
    flags: tyro.conf.Suppress[tuple[str, ...]] = ()
    """Flags of train.py for all arms."""


def ablate(command: Ablate) -> Ablation:
    """Runs what is not done yet, then writes the report; a study that is paused reports what it has.

    Raises:
        RecipeError: No seed, no rate, or a folder that holds another study.
        DataError: The data cannot be read.
        CheckpointError: The weights are not there.
        StudyPaused: The time is over, or this process was asked to end.
    """
    _require_sense(command)
    study = _Study(command)
    try:
        study.run()
    except StudyPaused as paused:
        _write(command.out, study.found(unfinished=str(paused)))
        raise
    found = study.found()
    _write(command.out, found)
    return found


def best_rate(sweep: Sequence[tuple[float, ArmResult]]) -> float:
    """The rate with the best validation top-1; of equal ones that with the lower loss.

    Raises:
        BotanifyError: No rate came to its end.
    """
    ended = [(result.top1, -(result.epochs[-1].loss or 0.0), rate) for rate, result in sweep if result.top1 is not None]
    if not ended:
        raise BotanifyError(f"the baseline fails at every rate; the first error was: {sweep[0][1].error}")
    return max(ended)[2]


def equal_time_epochs(results: Sequence[ArmResult], budget_s: float) -> int:
    """How many epochs of an arm come nearest to a budget, at the pace of its epochs behind the warm-up; at least one.

    The schedule is laid out for them, so that the rates have fallen when the time is over.
    """
    pace = statistics.median(epoch.seconds for result in results for epoch in result.steady_epochs)
    return max(1, round(budget_s / pace))


def largest_batch(fits: Callable[[int], bool], first: int = 4, step: int = 2, most: int = _MOST_PICTURES) -> BatchLimit:
    """Finds where memory ends, by doubling and then halving the gap; every size it names was tried.

    Args:
        fits: Whether a step of so many pictures runs.
        first: The smallest size tried.
        step: The largest gap between the two sizes at the end.
        most: Where doubling ends; memory that holds more is none that is looked for.

    Raises:
        RecipeError: Even `most` fits.
    """
    size, fitting = first, 0
    while fits(size):
        if size >= most:
            raise RecipeError(
                "the imitated card holds any batch", value=f"{size} pictures a step fit", remedy="lower --memory-gb"
            )
        size, fitting = 2 * size, size
    failing = size
    while fitting and failing - fitting > step:
        size = (fitting + failing) // 2
        fitting, failing = (size, failing) if fits(size) else (fitting, size)
    return BatchLimit(fitting, failing)


class _Study:
    """The ablation while it runs: what was found so far."""

    def __init__(self, command: Ablate) -> None:
        self._command, self._recipe = command, read_recipe(command.recipe)
        self._hardware = HardwareRecipe(device=command.device)
        self._device: Literal["cuda", "cpu"] = "cuda" if choose_device(self._hardware).type == "cuda" else "cpu"
        self._deadline = time.monotonic() + command.stop_after_s if command.stop_after_s else None
        self._setting = self._describe()
        self._steps = ladder(self._device)
        self._runs = command.out / "runs"
        self._sweep: list[ArmResult] = []
        self._best_rate: float | None = None
        self._equal_epochs: list[ArmResult] = []
        self._budget_s: float | None = None
        self._equal_time: list[ArmResult] = []
        self._largest_batches: dict[Literal["off", "fp16"], BatchLimit] = {}

    def run(self) -> None:
        """Runs what is not done yet, in the order in which one part needs the other."""
        command = self._command
        self._sweep_rates()
        tried = arms(self._steps, self._recipe.schedule.backbone_lr, self._best_rate or 0.0)
        for seed in command.seeds:
            for arm in tried:
                self._equal_epochs.append(self._run_arm(arm, seed, "equal-epochs", self._schedule(command.epochs)))
        if self._device == "cuda":
            for precision in ("off", "fp16"):
                self._find_largest_batch(precision)
        _require_final(self._equal_epochs)
        if command.equal_time:
            self._run_for_equal_time(tried)
            _require_final(self._equal_time)

    def found(self, unfinished: str = "") -> Ablation:
        """What was found so far."""
        return Ablation(
            setting=self._setting,
            device=self._device,
            steps=self._steps,
            sweep=self._sweep,
            best_rate=self._best_rate,
            equal_epochs=self._equal_epochs,
            budget_s=self._budget_s,
            equal_time=self._equal_time,
            memory_limit_gb=self._command.memory_gb,
            largest_batches=self._largest_batches,
            unfinished=unfinished,
        )

    def _sweep_rates(self) -> None:
        command = self._command
        seed = max(command.seeds) + 1  # a rate picked on a seed that is counted later would flatter the baseline
        for arm in rate_arms(self._steps, command.rates):
            self._sweep.append(self._run_arm(arm, seed, "rates", self._schedule(command.epochs)))
        _require_final(self._sweep)
        self._best_rate = best_rate(list(zip(command.rates, self._sweep, strict=True)))

    def _run_for_equal_time(self, tried: Sequence[Arm]) -> None:
        baseline = [result for result in of_arm(self._equal_epochs, BASELINE) if not result.error]
        if not (self._command.budget_s or baseline):
            return
        budget = self._command.budget_s or statistics.median(result.seconds for result in baseline)
        self._budget_s = budget
        for seed in self._command.seeds:
            for arm in tried:
                timed = [result for result in of_arm(self._equal_epochs, arm.name) if not result.error]
                if arm.name == BASELINE and not self._command.budget_s:
                    self._equal_time += [result for result in timed if result.seed == seed]
                elif timed:
                    schedule = self._schedule(equal_time_epochs(timed, budget))
                    self._equal_time.append(self._run_arm(arm, seed, "equal-time", schedule, seconds=budget))

    def _find_largest_batch(self, precision: Literal["off", "fp16"]) -> None:
        def fits(size: int) -> bool:
            arm = memory_arm(precision, size, self._command.memory_gb)
            error = self._run_arm(arm, self._command.seeds[0], "memory", self._schedule(1)).error
            if error and OutOfMemory.code not in error:
                raise BotanifyError(f"a step of {size} pictures fails, and not for lack of memory: {error}")
            return not error

        self._largest_batches[precision] = largest_batch(fits)

    def _run_arm(
        self, arm: Arm, seed: int, part: str, schedule: Sequence[str], seconds: float | None = None
    ) -> ArmResult:
        command = self._command
        common = ("--data", str(command.data), "--weights", str(command.weights), "--device", self._device)
        return run_arm(
            command.recipe,
            arm,
            seed,
            self._runs / part,
            (*common, "--expect-outputs", "0", *command.flags, *schedule),
            seconds=seconds,
            deadline=self._deadline,
        )

    def _schedule(self, epochs: int) -> tuple[str, ...]:
        """Flags for a schedule of another length, whose steps of decay lie at the same shares of it."""
        schedule = self._recipe.schedule
        step_epochs = max(1, round(epochs * schedule.step_epochs / schedule.epochs))
        return ("--epochs", str(epochs), "--step-epochs", str(step_epochs))

    def _describe(self) -> Setting:
        command, schedule = self._command, self._recipe.schedule
        return Setting(
            machine=hold_machine(command.out),
            measured_on=trained_on(self._hardware),
            recipe=self._recipe.name,
            data=data_in_words(command.data),
            flags=without_paths(command.flags),
            weights=command.weights.name,
            epochs=command.epochs,
            seeds=command.seeds,
            assumed_rate=schedule.backbone_lr,
            step_decay=f"times {schedule.step_factor:g} every {self._schedule(command.epochs)[-1]} epochs",
        )


def _write(folder: Path, found: Ablation) -> None:
    write_study(folder, as_study(found), plots(found))


def _require_final(results: Sequence[ArmResult]) -> None:
    """What follows is laid out by these results, and would not fit them any more if one still came.

    Raises:
        StudyPaused: A run crashed or was killed.
    """
    for result in results:
        if not result.is_final:
            what = f"{result.arm.name} with seed {result.seed} crashed ({result.error})"
            raise StudyPaused(f"{what}; start the same command again to go on.")


def _require_sense(command: Ablate) -> None:
    if not command.seeds or len(set(command.seeds)) < len(command.seeds):
        raise RecipeError("an ablation needs seeds, each once", value=command.seeds, remedy="pass --seeds 0 1 2")
    if not command.rates or min(command.rates) <= 0:
        raise RecipeError(
            "the baseline needs rates to be tried at", value=command.rates, limit="above 0", remedy="correct --rates"
        )
    if not command.weights.is_file():
        raise CheckpointError(
            "no such weights, and arms from random weights would only show noise",
            value=command.weights,
            limit="a checkpoint of training/train.py",
            remedy="train one on the herbarium first",
        )
    Manifest(command.data).rows_of("validation")
