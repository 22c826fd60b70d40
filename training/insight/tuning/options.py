"""Layout, precision and compilation: each timed at the chosen batch size, and changed only where that is worth it."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import torch

from training.insight.tuning.search import NEAR
from training.insight.tuning.setting import Setting, Trial
from training.recipe import Recipe

COMPILING_S: Final = 60.0
"""Compiling takes at least about this long, so that in a shorter run it is not even tried, s."""
Option = tuple[str, tuple[Any, ...]]
"""A knob of `Setting` and the values that it may take."""


def available_options(recipe: Recipe, device: torch.device) -> list[Option]:
    """What can be tried on a device.

    Full precision is a choice about accuracy, so a recipe that asks for it keeps it. A CPU computes fp16 in full
    precision anyway, and most have no unit for bf16, so there the precision stays too.
    """
    options: list[Option] = [("channels_last", (True, False))]
    if device.type == "cuda" and recipe.hardware.amp != "off":
        # Emulated bf16 would be slower than any other choice.
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        options.append(("amp", ("fp16", "bf16") if bf16 else ("fp16",)))
    options.append(("compile", (False, True)))
    return options


def try_options(
    measure: Callable[[Setting], Trial], chosen: Trial, options: Sequence[Option], num_pictures: int
) -> tuple[Trial, list[Trial]]:
    """Changes one knob after another and keeps each change that makes the whole run more than 3 % shorter.

    Minutes of compiling are worth it for days of training, and not for a short run.

    Args:
        measure: Runs one setting.
        chosen: The trial to start from.
        options: Knobs and their values.
        num_pictures: Pictures of the whole run, on each rank.

    Returns:
        The trial of the best setting, and every trial made.
    """
    best, trials = chosen, []
    for knob, values in options:
        for value in values:
            if value == getattr(chosen.setting, knob) or (
                knob == "compile" and _run_s(best, num_pictures) < COMPILING_S
            ):
                continue
            trial = measure(msgspec.structs.replace(best.setting, **{knob: value}))
            trials.append(trial)
            if trial.fits and _run_s(trial, num_pictures) < _run_s(best, num_pictures) * (1 - NEAR):
                best = trial
    return best, trials


def _run_s(trial: Trial, num_pictures: int) -> float:
    """How long a run would take, warm-up included, s."""
    return trial.warmup_s + num_pictures / trial.pictures_per_s
