"""The ablation study: what each part of the reference recipe contributes, from a constrained baseline upward.

Every arm starts from the same weights and trains for equal epochs, then for equal time, with each seed.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from models.errors import BotanifyError, CheckpointError, RecipeError
from training.dataset.manifest import Manifest
from training.insight.studies.ablation_page import Ablation, describe
from training.insight.studies.arms import TimeSlice
from training.insight.studies.figures import equal_time_epochs, median_s, of_arm
from training.insight.studies.ladder import BASELINE, arms, decided_flags, ladder, rate_arms
from training.insight.studies.report import Study
from training.insight.studies.results import Arm, ArmResult
from training.insight.studies.rounds import StudyOptions, require_known, run_rounds, run_study
from training.recipe import read_recipe

_OWN_FLAGS: Final = (*decided_flags(), "--weights", "--step-epochs", "--max-steps", "--max-seconds")


class Ablate(StudyOptions, frozen=True, kw_only=True):
    """Measures what each part of the reference recipe contributes, in points, speed and memory."""

    weights: Path
    """Checkpoint that every arm starts from."""
    recipe: Path = Path("directml_baseline")
    """Recipe of the baseline; the arms change it step by step."""
    epochs: int = 15
    """Epochs of each arm."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of each arm; the search of the learning rate uses the one after the largest."""
    rates: tuple[float, ...] = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
    """Learning rates that the baseline is tried with; a single one is used without a search."""
    only: tuple[str, ...] = ()
    """Names of the arms to train; default: all. A step is compared only if its parent is trained too."""
    equal_time: bool = True
    """Also train every arm for equal time."""
    budget_s: float = 0.0
    """Seconds of training at equal time; 0: what the baseline needed for the equal epochs."""


def ablate(command: Ablate) -> Study:
    """Runs what is missing and writes the result.

    Raises:
        BotanifyError: The options are wrong, or the baseline fails with every learning rate.
        StudyPaused: The time is over, or this process received SIGTERM or Ctrl-C.
    """
    _check(command)
    steps, recipe = ladder(command.device_type), read_recipe(command.recipe)
    chance = 1 / len(Manifest(command.data).taxonomy.outputs)
    found = Ablation(command.device_type, steps, recipe.pictures.picture_px, chance)
    return run_study(
        command,
        _OWN_FLAGS,
        run=lambda until: _run(command, found, until),
        describe=lambda: describe(found, command.weights.name, _about_schedule(command)),
    )


def best_rate(sweep: Sequence[tuple[float, ArmResult]]) -> float:
    """The learning rate with the best validation top-1; of equal ones, that with the lower loss.

    Raises:
        BotanifyError: Every run failed.
    """
    ended = [(result.top1, -(result.epochs[-1].loss or 0.0), rate) for rate, result in sweep if result.top1 is not None]
    if not ended:
        raise BotanifyError(f"the baseline fails with every learning rate; the first error: {sweep[0][1].error}")
    return max(ended)[2]


def _run(command: Ablate, found: Ablation, until: TimeSlice) -> None:
    found.best_rate = _search_rate(command, found, until)
    recipe_rate = read_recipe(command.recipe).schedule.backbone_lr
    every = arms(found.steps, recipe_rate, found.best_rate)
    chosen = [arm for arm in every if not command.only or arm.name in command.only]
    run_rounds(
        command,
        chosen,
        "equal-epochs",
        found.equal_epochs,
        until=until,
        flags=lambda _: _flags(command, command.epochs),
        first_must_run=False,
    )
    if command.equal_time:
        _run_for_equal_time(command, found, chosen, until)


def _search_rate(command: Ablate, found: Ablation, until: TimeSlice) -> float:
    """Tries the rates with a seed that no arm has; otherwise the choice would favor the baseline."""
    if len(command.rates) == 1:
        return command.rates[0]
    sweep = rate_arms(found.steps, command.rates)
    seeds = [max(command.seeds) + 1]
    run_rounds(
        command,
        sweep,
        "rates",
        found.sweep,
        until=until,
        flags=lambda _: _flags(command, command.epochs),
        seeds=seeds,
        first_must_run=False,
    )
    rates = {arm.name: rate for arm, rate in zip(sweep, command.rates, strict=True)}
    found.sweep.sort(key=lambda result: rates[result.arm.name])
    return best_rate([(rates[result.arm.name], result) for result in found.sweep])


def _run_for_equal_time(command: Ablate, found: Ablation, chosen: Sequence[Arm], until: TimeSlice) -> None:
    ended = [result for result in found.equal_epochs if not result.error]
    budget = found.budget_s = command.budget_s or median_s(of_arm(ended, BASELINE))
    if budget is None:
        return
    epochs = {arm.name: equal_time_epochs(of_arm(ended, arm.name), budget) for arm in chosen if of_arm(ended, arm.name)}
    if not command.budget_s:  # the baseline defines the time
        epochs.pop(BASELINE, None)
        found.equal_time.extend(of_arm(ended, BASELINE))
    run_rounds(
        command,
        [arm for arm in chosen if arm.name in epochs],
        "equal-time",
        found.equal_time,
        until=until,
        flags=lambda arm: _flags(command, epochs[arm.name]),
        max_seconds=budget,
        first_must_run=False,
    )


def _flags(command: Ablate, epochs: int) -> tuple[str, ...]:
    """Flags of a run with a schedule of another length; the steps of the decay keep their shares of it."""
    return (
        *command.common_flags(epochs),
        "--weights",
        str(command.weights),
    )


def _about_schedule(command: Ablate) -> str:
    schedule = read_recipe(command.recipe).schedule
    return (
        f"trains for {command.epochs} epochs with each of the seeds {', '.join(map(str, command.seeds))}. The "
        f"baseline's rate ({schedule.backbone_lr:g}) and its decay (to a tenth after each third of "
        f"the epochs) are assumed"
    )


def _check(command: Ablate) -> None:
    if not command.rates or min(command.rates) <= 0:
        raise RecipeError(
            "the baseline needs learning rates", value=command.rates, limit="above 0", remedy="correct --rates"
        )
    require_known(command.only, [step.name for step in ladder(command.device_type)], command.device_type)
    if command.equal_time and not command.budget_s and command.only and BASELINE not in command.only:
        raise RecipeError(
            "the equal time is that of the baseline, which is not trained",
            value="--only without it",
            remedy=f"add {BASELINE} to --only, or pass --budget-s or --no-equal-time",
        )
    if not command.weights.is_file():
        raise CheckpointError(
            "no such weights; the arms must not start from random weights",
            value=command.weights,
            limit="a checkpoint of training/train.py",
            remedy="train one on drawn plants first",
        )
