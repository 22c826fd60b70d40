"""The ablation of the 7.9 points between the constrained baseline and the reference recipe.

Every arm starts from one file of weights and trains for equal epochs, then for equal time, with each seed. Every arm of
a seed is run before the next seed begins, so that a machine that slows down slows all arms alike. What is claimed of
speed and memory is claimed of whole pictures, so it is judged by short runs at the recipe's own size.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from models.errors import BotanifyError, CheckpointError, RecipeError
from training.insight.studies.ablation.findings import Ablation, Setting, hardware_arms
from training.insight.studies.ablation.ladder import BASELINE, arms, decided_flags, ladder, memory_arm, rate_arms
from training.insight.studies.ablation.largest_batch import BatchLimit, HoldsAnyBatch, largest_batch
from training.insight.studies.ablation.page import as_study, plots
from training.insight.studies.arms import Slice, run_arm
from training.insight.studies.figures import equal_time_epochs, median_s, of_arm
from training.insight.studies.report import data_in_words, hold_machine, trained_on, without_paths, write_study
from training.insight.studies.results import Arm, ArmResult
from training.insight.studies.rounds import Plan, require_sense, run_and_report
from training.machine import Machine
from training.monitor.memory import OutOfMemory
from training.recipe import HardwareRecipe, read_recipe

_OWN: Final = (*decided_flags(), "--weights", "--step-epochs", "--memory-gb", "--max-steps", "--max-seconds")
_NO_END: Final = 1000  # epochs of a run that its time ends


class Ablate(Plan, frozen=True, kw_only=True):
    """Takes the reference recipe apart: what each of its parts is worth, in points, speed and memory."""

    weights: Path
    """Checkpoint that every arm starts from."""
    recipe: Path = Path("directml_baseline")
    """Recipe of the baseline, from which every arm is changed."""
    epochs: int = 15
    """Epochs of every arm."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of every arm; the sweep of the rates takes the one after the largest."""
    rates: tuple[float, ...] = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
    """Learning rates that the baseline is tried at; a single one is taken untried."""
    only: tuple[str, ...] = ()
    """Names of the arms to train; default: all of them. A step is compared where its parent is trained too."""
    equal_time: bool = True
    """Run every arm for equal time, too."""
    budget_s: float = 0.0
    """Seconds of training at equal time; 0 takes what the baseline needed for the equal epochs."""
    hardware: bool = True
    """On a GPU, judge speed, memory and the largest batches, by short runs of their own."""
    hardware_px: int = 0
    """Side of the pictures in these runs, px; 0 takes the recipe's own."""
    hardware_s: float = 20.0
    """Seconds of training of each of these runs."""
    memory_gb: float = 8.0
    """Card on which the largest batches are looked for, GB."""


def ablate(command: Ablate) -> Ablation:
    """Runs what is not done yet, then writes the report; a study that is paused reports what it has.

    Raises:
        RecipeError: No seed, no rate, a flag that the study decides, or a folder that holds another study.
        DataError: The data cannot be read.
        CheckpointError: The weights are not there.
        StudyPaused: The time is over, or this process was asked to end.
    """
    require_sense(command, _OWN)
    _require_arms(command)
    machine = hold_machine(command.out)
    study = _Running(command)

    def report(missing: str) -> Ablation:
        found = study.found(machine, missing)
        write_study(command.out, as_study(found), plots(found))
        return found

    return run_and_report(command.stop_after_s, study.run, report)


def best_rate(sweep: Sequence[tuple[float, ArmResult]]) -> float:
    """The rate with the best validation top-1; of equal ones that with the lower loss.

    Raises:
        BotanifyError: No rate came to its end.
    """
    ended = [(result.top1, -(result.epochs[-1].loss or 0.0), rate) for rate, result in sweep if result.top1 is not None]
    if not ended:
        raise BotanifyError(f"the baseline fails at every rate; the first error was: {sweep[0][1].error}")
    return max(ended)[2]


class _Running:
    """The ablation while it runs: what was found so far."""

    def __init__(self, command: Ablate) -> None:
        self._command, self._recipe = command, read_recipe(command.recipe)
        self._device: Literal["cuda", "cpu"] = command.on
        self._steps = ladder(self._device)
        self._hardware_px = command.hardware_px or self._recipe.pictures.picture_px
        self._sweep: list[ArmResult] = []
        self._best_rate: float | None = None
        self._equal_epochs: list[ArmResult] = []
        self._budget_s: float | None = None
        self._equal_time: list[ArmResult] = []
        self._hardware: list[ArmResult] = []
        self._largest_batches: dict[Literal["off", "fp16"], BatchLimit] = {}
        self._largest_batch_error = ""

    def run(self, until: Slice) -> None:
        """Runs what is not done yet, in the order in which one part needs the other."""
        command = self._command
        self._choose_rate(until)
        every = arms(self._steps, self._recipe.schedule.backbone_lr, self._best_rate or 0.0)
        tried = [arm for arm in every if not command.only or arm.name in command.only]
        for seed in command.seeds:
            for arm in tried:
                schedule = self._schedule(command.epochs)
                self._equal_epochs.append(self._run_arm(arm, seed, "equal-epochs", schedule, until=until))
        if self._device == "cuda" and command.hardware:
            self._run_on_hardware([arm for arm in every if arm.name in hardware_arms(self._steps)], until)
        if command.equal_time:
            self._run_for_equal_time(tried, until)

    def found(self, machine: Machine, unfinished: str) -> Ablation:
        """What was found so far, and why runs are missing."""
        return Ablation(
            setting=self._describe(machine),
            device=self._device,
            steps=self._steps,
            sweep=self._sweep,
            best_rate=self._best_rate,
            equal_epochs=self._equal_epochs,
            budget_s=self._budget_s,
            equal_time=self._equal_time,
            hardware=self._hardware,
            memory_limit_gb=self._command.memory_gb,
            largest_batches=self._largest_batches,
            largest_batch_error=self._largest_batch_error,
            unfinished=unfinished,
        )

    def _choose_rate(self, until: Slice) -> None:
        command = self._command
        if len(command.rates) == 1:
            self._best_rate = command.rates[0]
            return
        seed = max(command.seeds) + 1  # a rate picked on a seed that is counted later would flatter the baseline
        for arm in rate_arms(self._steps, command.rates):
            self._sweep.append(self._run_arm(arm, seed, "rates", self._schedule(command.epochs), until=until))
        self._best_rate = best_rate(list(zip(command.rates, self._sweep, strict=True)))

    def _run_on_hardware(self, compared: Sequence[Arm], until: Slice) -> None:
        size = ("--picture-px", str(self._hardware_px))
        alone = (*size, "--validate-every-epochs", str(_NO_END), "--log-every-steps", "10")  # nothing else is timed
        flags, seconds = (*self._schedule(_NO_END), *alone), self._command.hardware_s
        for seed in self._command.seeds:
            for arm in compared:
                self._hardware.append(self._run_arm(arm, seed, "hardware", flags, until=until, seconds=seconds))
        try:
            for precision in ("off", "fp16"):
                self._find_largest_batch(precision, size, until)
        except (_NotForMemory, HoldsAnyBatch) as error:
            self._largest_batch_error = str(error)

    def _find_largest_batch(self, precision: Literal["off", "fp16"], size: Sequence[str], until: Slice) -> None:
        seed, flags = self._command.seeds[0], (*self._schedule(1), *size)

        def fits(batch_size: int) -> bool:
            arm = memory_arm(precision, batch_size, self._command.memory_gb)
            error = self._run_arm(arm, seed, "memory", flags, until=until).error
            if error and OutOfMemory.code not in error:
                raise _NotForMemory(f"A step of {batch_size} pictures fails, and not for lack of memory: {error}")
            return not error

        self._largest_batches[precision] = largest_batch(fits)

    def _run_for_equal_time(self, tried: Sequence[Arm], until: Slice) -> None:
        baseline = [result for result in of_arm(self._equal_epochs, BASELINE) if not result.error]
        budget = self._budget_s = self._command.budget_s or median_s(baseline)
        if budget is None:
            return
        for seed in self._command.seeds:
            for arm in tried:
                timed = [result for result in of_arm(self._equal_epochs, arm.name) if not result.error]
                if arm.name == BASELINE and not self._command.budget_s:
                    self._equal_time += [result for result in timed if result.seed == seed]
                elif timed:
                    schedule = self._schedule(equal_time_epochs(timed, budget))
                    ended = self._run_arm(arm, seed, "equal-time", schedule, until=until, seconds=budget)
                    self._equal_time.append(ended)

    def _run_arm(
        self, arm: Arm, seed: int, part: str, flags: Sequence[str], *, until: Slice, seconds: float | None = None
    ) -> ArmResult:
        command = self._command
        common = ("--data", str(command.data), "--weights", str(command.weights), "--device", self._device)
        flags = (*common, "--expect-outputs", "0", *command.flags, *flags)
        folder = command.out / "runs" / part
        return run_arm(command.recipe, arm, seed, folder, flags, until=until, seconds=seconds)

    def _schedule(self, epochs: int) -> tuple[str, ...]:
        """Flags for a schedule of another length, whose steps of decay lie at the same shares of it."""
        schedule = self._recipe.schedule
        step_epochs = max(1, round(epochs * schedule.step_epochs / schedule.epochs))
        return ("--epochs", str(epochs), "--step-epochs", str(step_epochs))

    def _describe(self, machine: Machine) -> Setting:
        command, schedule = self._command, self._recipe.schedule
        return Setting(
            machine=machine,
            measured_on=trained_on(HardwareRecipe(device=command.device)),
            recipe=self._recipe.name,
            data=data_in_words(command.data),
            flags=without_paths(command.flags),
            weights=command.weights.name,
            epochs=command.epochs,
            seeds=command.seeds,
            assumed_rate=schedule.backbone_lr,
            step_decay=f"times {schedule.step_factor:g} every {self._schedule(command.epochs)[-1]} epochs",
            hardware_px=self._hardware_px,
            hardware_s=command.hardware_s,
        )


class _NotForMemory(BotanifyError):
    """A run that only asks whether memory suffices failed for another reason."""


def _require_arms(command: Ablate) -> None:
    if not command.rates or min(command.rates) <= 0:
        raise RecipeError(
            "the baseline needs rates to be tried at", value=command.rates, limit="above 0", remedy="correct --rates"
        )
    for flag, value in (("--memory-gb", command.memory_gb), ("--hardware-s", command.hardware_s)):
        if value <= 0:
            raise RecipeError("that is nothing to measure with", value=f"{flag} {value:g}", limit="above 0")
    known = [step.name for step in ladder(command.on)]
    unknown = [name for name in command.only if name not in known]
    if unknown:
        limit = ", ".join(known)
        raise RecipeError(
            f"no such arm on {command.on}", value=", ".join(unknown), limit=limit, remedy="correct --only"
        )
    if command.equal_time and not command.budget_s and command.only and BASELINE not in command.only:
        raise RecipeError(
            "the equal time is that of the baseline, which is not trained",
            value="--only without it",
            remedy=f"add {BASELINE} to --only, or pass --budget-s or --no-equal-time",
        )
    if not command.weights.is_file():
        raise CheckpointError(
            "no such weights, and arms from random weights would only show noise",
            value=command.weights,
            limit="a checkpoint of training/train.py",
            remedy="train one on the herbarium first",
        )
