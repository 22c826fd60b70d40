"""Tunes a recipe to a machine and proposes flags for train.py."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import torch
from rich.console import Console

from training.atomic_file import replaced
from training.dataset.manifest import Manifest
from training.engine.device import Ranks, describe_device
from training.engine.losses import training_classes
from training.insight.tuning.launch import TimeLimits, TrialLauncher
from training.insight.tuning.options import Option, available_options, try_options
from training.insight.tuning.rates import rates_for
from training.insight.tuning.report import failure, mode, trial_table
from training.insight.tuning.search import NEAR, BatchSearch
from training.insight.tuning.setting import Outcome, Trial, TrialSetting, setting_of
from training.recipe import Recipe

RESULT_FILE: Final = "tuning.json"
_MIN_STEPS: Final = 8  # per epoch; a larger batch would learn in too few steps from so little data
_CPU_LIMITS: Final = TimeLimits(budget_s=4.0, max_compiling_s=180.0)
_BY_SEVERITY: Final[tuple[Outcome, ...]] = ("ran", "crashed", "too_slow", "does_not_fit")
_LIMITS: Final = "Only speed and memory were measured: a larger batch may need more epochs for the same accuracy."


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """A proposal and its reasons."""

    device: str
    num_ranks: int
    setting: TrialSetting
    accumulate: int
    """Batches per optimizer step, so that a step averages at least as many pictures as in the recipe."""
    backbone_lr: float
    head_lr: float
    trials: list[Trial]
    reasons: list[str]

    @property
    def flags(self) -> str:
        """The proposal as flags of train.py."""
        setting = self.setting
        layout = "--channels-last" if setting.channels_last else "--no-channels-last"
        compiled = "--compile" if setting.compile else "--no-compile"
        return (
            f"--batch-size {setting.batch_size} --accumulate {self.accumulate} --amp {setting.amp} {layout} {compiled} "
            f"--backbone-lr {self.backbone_lr:g} --head-lr {self.head_lr:g}"
        )


def tune(
    recipe: Recipe,
    manifest: Manifest,
    device: torch.device,
    ranks: Ranks | None = None,
    *,
    limits: TimeLimits | None = None,
) -> Tuned:
    """Measures settings, prints the result, and writes `tuning.json` into the run's folder; trains nothing.

    Args:
        recipe: The recipe to tune; its learning rates are taken to be right for its own batch size.
        manifest: The data.
        device: The device to tune for.
        ranks: The ranks that train together; the slowest decides.
        limits: How long trials may take.

    Raises:
        NothingRan: No setting could be measured.
    """
    ranks = ranks or Ranks()
    limits = limits or (TimeLimits() if device.type == "cuda" else _CPU_LIMITS)
    console = Console(quiet=not ranks.is_main)
    launch = TrialLauncher(recipe, training_classes(manifest, recipe), ranks.local_rank, limits)
    measure = _Measure(launch, ranks, console)
    # All ranks must run the same trials.
    options = ranks.broadcast(available_options(recipe, device))
    chosen = _search(measure, recipe, options, len(manifest.rows_of("train")) // ranks.num_ranks)
    tuned = propose(recipe, chosen, measure.trials, device=describe_device(device), num_ranks=ranks.num_ranks)
    if ranks.is_main:
        _print(tuned, console)
        recipe.run.run.mkdir(parents=True, exist_ok=True)
        with replaced(recipe.run.run / RESULT_FILE) as stream:
            stream.write(msgspec.json.format(msgspec.json.encode(tuned)))
    return tuned


def propose(recipe: Recipe, chosen: Trial, trials: Sequence[Trial], *, device: str, num_ranks: int) -> Tuned:
    """Turns the best trial into a proposal.

    An optimizer step averages at least as many pictures as in the recipe: smaller batches are accumulated.
    """
    setting, schedule = chosen.setting, recipe.schedule
    accumulate = max(-(-schedule.batch_size * schedule.accumulate // (setting.batch_size * num_ranks)), 1)
    rates = rates_for(schedule, setting.batch_size * num_ranks * accumulate)
    return Tuned(
        device=device,
        num_ranks=num_ranks,
        setting=setting,
        accumulate=accumulate,
        backbone_lr=rates.backbone_lr,
        head_lr=rates.head_lr,
        trials=list(trials),
        reasons=[_reason(chosen, trials), rates.reason, _LIMITS],
    )


class _Measure:
    """Measures settings on all ranks; the slowest rank's result counts."""

    def __init__(self, launch: Callable[[TrialSetting], Trial], ranks: Ranks, console: Console) -> None:
        self._launch, self._ranks, self._console = launch, ranks, console
        self.trials: list[Trial] = []

    def __call__(self, setting: TrialSetting) -> Trial:
        trial = worst_of_ranks(self._launch(setting), self._ranks)
        self.trials.append(trial)
        result = failure(trial) or f"{trial.pictures_per_s:.4g} pictures/s"
        self._console.print(f"batch {setting.batch_size}, {mode(setting)}: {result}", highlight=False)
        return trial


def worst_of_ranks(trial: Trial, ranks: Ranks) -> Trial:
    """The least speed and the most memory of all ranks; failed if it failed on any rank."""
    if not ranks.is_distributed:
        return trial
    worst = _BY_SEVERITY[round(ranks.maximum(float(_BY_SEVERITY.index(trial.outcome))))]
    if worst != "ran":
        return Trial(setting=trial.setting, outcome=worst, note=trial.note or "on another rank")
    return msgspec.structs.replace(
        trial,
        pictures_per_s=ranks.minimum(trial.pictures_per_s),
        warmup_s=ranks.maximum(trial.warmup_s),
        memory_gb=None if trial.memory_gb is None else ranks.maximum(trial.memory_gb),
        memory_share=None if trial.memory_share is None else ranks.maximum(trial.memory_share),
    )


def _search(measure: _Measure, recipe: Recipe, options: Sequence[Option], num_pictures: int) -> Trial:
    """Searches the batch size, then the other knobs; `num_pictures` is per epoch and rank."""
    start = setting_of(recipe)
    largest = max(num_pictures // _MIN_STEPS, min(start.batch_size, num_pictures))
    chosen = BatchSearch(lambda size: measure(msgspec.structs.replace(start, batch_size=size)), largest).run()
    return try_options(measure, chosen, options, num_pictures * recipe.schedule.epochs)


def _reason(chosen: Trial, trials: Sequence[Trial]) -> str:
    alike = [t for t in trials if t.fits and mode(t.setting) == mode(trials[0].setting)]
    fastest = max(alike, key=lambda trial: trial.pictures_per_s)
    return (
        f"{chosen.setting.batch_size} is the smallest batch size within {NEAR:.0%} of the fastest "
        f"({fastest.setting.batch_size}: {fastest.pictures_per_s:.4g} pictures/s in {mode(fastest.setting)}). "
        f"Proposed is {mode(chosen.setting)}: {chosen.pictures_per_s:.4g} pictures/s."
    )


def _print(tuned: Tuned, console: Console) -> None:
    console.print(trial_table(tuned.trials, tuned.setting))
    for reason in tuned.reasons:
        console.print(reason, highlight=False)
    console.print(f"Next: train.py with {tuned.flags}", highlight=False, soft_wrap=True)
