"""Tunes a recipe to a machine: batch size, arithmetic and learning rates, as flags of train.py."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import torch
from rich.console import Console

from models.network import PlantNetwork
from training.atomic_file import replace_together
from training.dataset.manifest import Manifest
from training.engine.device import describe_device
from training.engine.distributed import Ranks
from training.engine.losses import training_classes
from training.insight.tuning.cache import TrialCache, cache_folder, facts_of
from training.insight.tuning.launch import Limits, TrialLauncher
from training.insight.tuning.noise import NoiseScale, measure_noise, noise_sentence
from training.insight.tuning.options import Option, available_options, try_options
from training.insight.tuning.rates import rates_for
from training.insight.tuning.report import arithmetic, remark, trial_plot, trial_table
from training.insight.tuning.search import NEAR, BatchSearch
from training.insight.tuning.setting import Outcome, Setting, Trial, setting_of, with_setting
from training.recipe import Precision, Recipe

RESULT_FILE: Final = "tuning.json"
PLOT_FILE: Final = "tuning.png"
_LEAST_STEPS: Final = 8  # of an epoch: a larger batch would learn from data this small in too few steps
_CPU_LIMITS: Final = Limits(budget_s=4.0, most_compiling_s=180.0)
_NOISE_S: Final = 60.0
_BY_SEVERITY: Final[tuple[Outcome, ...]] = ("ran", "crashed", "too_slow", "does_not_fit")


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """What is proposed, and on which grounds."""

    device: str
    num_ranks: int
    batch_size: int
    """Pictures a step, on each rank."""
    accumulate: int
    """Steps whose gradients are averaged, so that no fewer pictures move the optimizer than in the recipe."""
    amp: Precision
    channels_last: bool
    compile: bool
    backbone_lr: float
    head_lr: float
    pictures_per_s: float
    """Of the proposed setting, on each rank, without the exchange of gradients between ranks."""
    trials: list[Trial]
    """All that were made; the proposed setting is among them."""
    noise: NoiseScale | None
    sentences: list[str]
    """Why."""

    @property
    def flags(self) -> str:
        """What to give to train.py."""
        layout = "--channels-last" if self.channels_last else "--no-channels-last"
        compiled = "--compile" if self.compile else "--no-compile"
        return (
            f"--batch-size {self.batch_size} --accumulate {self.accumulate} --amp {self.amp} {layout} {compiled} "
            f"--backbone-lr {self.backbone_lr:g} --head-lr {self.head_lr:g}"
        )


def tune(
    recipe: Recipe,
    manifest: Manifest,
    network: PlantNetwork,
    device: torch.device,
    ranks: Ranks | None = None,
    *,
    again: bool = False,
    limits: Limits | None = None,
) -> Tuned:
    """Measures settings, prints what it found, and writes `tuning.json` and `tuning.png` into the run's folder.

    It trains nothing. Trials run in processes of their own; this one touches the device only after the last of them.

    Args:
        recipe: What to tune; its rates are taken to be right for its own batch.
        manifest: The data.
        network: Holds the first weights, at which the gradient's noise is measured; the norms become the recipe's.
        device: What to tune for.
        ranks: Who trains together: the slowest rank and the fullest card decide.
        again: Measure even what was measured before.
        limits: How long trials may take.

    Raises:
        NothingRan: No setting could be run.
    """
    ranks = ranks or Ranks()
    limits = limits or (Limits() if device.type == "cuda" else _CPU_LIMITS)
    console = Console(quiet=not ranks.is_main)
    classes = training_classes(manifest, recipe)
    launch = TrialLauncher(recipe, classes, ranks.local_rank, limits)
    facts = facts_of(recipe, len(classes.taxon_of_output), device, ranks.num_ranks, limits)
    cache = TrialCache(facts, cache_folder(), forget=again)
    measure = _Measure(launch, cache, ranks, console)
    num_pictures = len(manifest.rows_of("train")) // ranks.num_ranks

    # Ranks must ask for the same trials, whatever each one's card could do.
    options = ranks.broadcast(available_options(recipe, device))
    chosen = _search(measure, recipe, options, num_pictures)
    tuned_recipe = with_setting(recipe, chosen.setting)
    noise = None
    if ranks.is_main:
        noise = measure_noise(tuned_recipe, manifest, network, classes, device=device, budget_s=_NOISE_S)
    noise = ranks.broadcast(noise)
    words = describe_device(device)
    tuned = propose(recipe, chosen, measure.trials, noise, device=words, num_ranks=ranks.num_ranks)
    if ranks.is_main:
        _tell(tuned, console)
        _write(tuned, recipe.run.run)
    return tuned


def propose(
    recipe: Recipe, chosen: Trial, trials: Sequence[Trial], noise: NoiseScale | None, *, device: str, num_ranks: int
) -> Tuned:
    """Turns the best trial into a proposal.

    No fewer pictures move the optimizer than in the recipe: what one batch does not hold, several do.
    """
    setting, schedule = chosen.setting, recipe.schedule
    accumulate = max(-(-schedule.batch_size * schedule.accumulate // (setting.batch_size * num_ranks)), 1)
    pictures_per_step = setting.batch_size * num_ranks * accumulate
    rates = rates_for(schedule, pictures_per_step)
    return Tuned(
        device=device,
        num_ranks=num_ranks,
        batch_size=setting.batch_size,
        accumulate=accumulate,
        amp=setting.amp,
        channels_last=setting.channels_last,
        compile=setting.compile,
        backbone_lr=rates.backbone_lr,
        head_lr=rates.head_lr,
        pictures_per_s=chosen.pictures_per_s,
        trials=list(trials),
        noise=noise,
        sentences=[_why(chosen, trials), rates.sentence, noise_sentence(noise, pictures_per_step)],
    )


class _Measure:
    """Trials that all ranks agree on: each rank runs a setting, and what the slowest finds holds for all."""

    def __init__(self, launch: Callable[[Setting], Trial], cache: TrialCache, ranks: Ranks, console: Console) -> None:
        self._launch, self._cache, self._ranks, self._console = launch, cache, ranks, console
        self.trials: list[Trial] = []

    def __call__(self, setting: Setting) -> Trial:
        kept = self._ranks.broadcast(self._cache.find(setting))
        trial = kept or agreed(self._launch(setting), self._ranks)
        if kept is None and self._ranks.is_main:
            self._cache.keep(trial)
        self.trials.append(trial)
        self._say(trial, " (measured before)" if kept else "")
        return trial

    def _say(self, trial: Trial, note: str) -> None:
        setting = trial.setting
        found = remark(trial) or f"{trial.pictures_per_s:.4g} pictures/s"
        self._console.print(f"batch {setting.batch_size}, {arithmetic(setting)}: {found}{note}", highlight=False)


def agreed(trial: Trial, ranks: Ranks) -> Trial:
    """The trial as it went on the worst rank: slowest, fullest, and failed if it failed anywhere."""
    if not ranks.is_distributed:
        return trial
    worst = _BY_SEVERITY[round(_largest(float(_BY_SEVERITY.index(trial.outcome)), ranks))]
    if worst != "ran":
        return Trial(setting=trial.setting, outcome=worst, note=trial.note or "on another rank")
    return msgspec.structs.replace(
        trial,
        pictures_per_s=ranks.minimum(trial.pictures_per_s),
        warmup_s=_largest(trial.warmup_s, ranks),
        memory_gb=None if trial.memory_gb is None else _largest(trial.memory_gb, ranks),
        memory_share=None if trial.memory_share is None else _largest(trial.memory_share, ranks),
    )


def _largest(value: float, ranks: Ranks) -> float:
    return -ranks.minimum(-value)


def _search(measure: _Measure, recipe: Recipe, options: Sequence[Option], num_pictures: int) -> Trial:
    """The batch size first, then the rest at that size; `num_pictures` is of an epoch, on each rank."""
    start = setting_of(recipe)
    largest = max(num_pictures // _LEAST_STEPS, min(start.batch_size, num_pictures))
    chosen = BatchSearch(lambda size: measure(msgspec.structs.replace(start, batch_size=size)), largest).run()
    best, _ = try_options(measure, chosen, options, num_pictures * recipe.schedule.epochs)
    return best


def _why(chosen: Trial, trials: Sequence[Trial]) -> str:
    alike = [t for t in trials if t.fits and arithmetic(t.setting) == arithmetic(trials[0].setting)]
    fastest = max(alike, key=lambda trial: trial.pictures_per_s)
    size = chosen.setting.batch_size
    return (
        f"{size} pictures a step is the smallest batch within {NEAR:.0%} of the fastest ({fastest.setting.batch_size}: "
        f"{fastest.pictures_per_s:.4g} pictures/s in {arithmetic(fastest.setting)}); proposed is "
        f"{arithmetic(chosen.setting)}, {chosen.pictures_per_s:.4g} pictures/s."
    )


def _tell(tuned: Tuned, console: Console) -> None:
    console.print(trial_table(tuned.trials, _setting(tuned)))
    for sentence in tuned.sentences:
        console.print(sentence, highlight=False)
    console.print(f"Next: train.py with {tuned.flags}", highlight=False, soft_wrap=True)


def _write(tuned: Tuned, folder: Path) -> None:
    result = msgspec.json.format(msgspec.json.encode(tuned))
    replace_together(folder, {RESULT_FILE: result, PLOT_FILE: trial_plot(tuned.trials, _setting(tuned), tuned.device)})


def _setting(tuned: Tuned) -> Setting:
    return Setting(
        batch_size=tuned.batch_size,
        amp=tuned.amp,
        channels_last=tuned.channels_last,
        compile=tuned.compile,
    )
