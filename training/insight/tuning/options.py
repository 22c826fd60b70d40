"""Layout, precision and compilation: each is timed at the chosen batch size and kept if it shortens the run."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import torch

from training.insight.tuning.search import NEAR
from training.insight.tuning.setting import Trial, TrialSetting
from training.recipe import Recipe

COMPILING_S: Final = 60.0
"""Least time that compiling takes, s; it is not tried in shorter runs."""
Option = tuple[str, tuple[Any, ...]]
"""A knob of `TrialSetting` and its possible values."""


def available_options(recipe: Recipe, device: torch.device) -> list[Option]:
    """The options that a device supports.

    A recipe with amp "off" keeps it, since precision affects accuracy. A CPU keeps the recipe's precision: it computes
    fp16 in fp32, and most have no bf16 unit.
    """
    options: list[Option] = [("channels_last", (True, False))]
    if device.type == "cuda" and recipe.hardware.amp != "off":
        # Emulated bf16 is slower than fp16.
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        options.append(("amp", ("fp16", "bf16") if bf16 else ("fp16",)))
    options.append(("compile", (False, True)))
    return options


def try_options(
    measure: Callable[[TrialSetting], Trial], chosen: Trial, options: Sequence[Option], num_pictures: int
) -> Trial:
    """Changes one knob after another; keeps a change if it shortens the whole run, warm-up included, by more than 3 %.

    Args:
        measure: Measures a setting.
        chosen: The trial to start from.
        options: Knobs and their values.
        num_pictures: Pictures of the whole run on each rank.

    Returns:
        The trial of the best setting.
    """
    best = chosen
    for knob, values in options:
        for value in values:
            too_short = knob == "compile" and _run_s(best, num_pictures) < COMPILING_S
            if too_short or value == getattr(chosen.setting, knob):
                continue
            trial = measure(msgspec.structs.replace(best.setting, **{knob: value}))
            if trial.fits and _run_s(trial, num_pictures) < _run_s(best, num_pictures) * (1 - NEAR):
                best = trial
    return best


def _run_s(trial: Trial, num_pictures: int) -> float:
    """Expected duration of a run, warm-up included, s."""
    return trial.warmup_s + num_pictures / trial.pictures_per_s
