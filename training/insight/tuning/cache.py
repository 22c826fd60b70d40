"""What was measured before on such a machine, in the user's cache folder.

One JSON file for each device, network, picture size, way of training and set of versions.
"""

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import timm
import torch

from training.atomic_file import replaced
from training.engine.device import describe_device
from training.insight.tuning.launch import Limits, largest_side_px
from training.insight.tuning.setting import Setting, Trial
from training.recipe import KnobRole, Recipe, knobs_with, recipe_to_plain

_FORMAT: Final = 2  # raised when the measurement or this file changes


class _Kept(msgspec.Struct, frozen=True):
    """Content of a file."""

    facts: dict[str, Any]
    trials: list[Trial]


class TrialCache:
    """Remembers trials; a crash or a late trial is forgotten, as another time it may be otherwise.

    Args:
        facts: All that decides how a setting does.
        folder: Where the files lie.
        forget: Start without what was kept.
    """

    def __init__(self, facts: dict[str, Any], folder: Path, *, forget: bool = False) -> None:
        self._facts = facts
        key = hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()[:16]
        self.path = folder / f"{key}.json"
        self._trials = {} if forget else {trial.setting: trial for trial in self._kept()}

    def find(self, setting: Setting) -> Trial | None:
        """The trial of a setting, if there is one."""
        return self._trials.get(setting)

    def keep(self, trial: Trial) -> None:
        """Keeps a trial on the disk; a folder that cannot be written only costs the time of another measurement."""
        if trial.outcome in {"crashed", "too_slow"}:
            return
        self._trials[trial.setting] = trial
        content = msgspec.json.encode(_Kept(self._facts, list(self._trials.values())))
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replaced(self.path) as stream:
                stream.write(msgspec.json.format(content))

    def _kept(self) -> list[Trial]:
        try:
            kept = msgspec.json.decode(self.path.read_bytes(), type=_Kept)
        except (OSError, msgspec.DecodeError):
            return []  # none yet, or damaged: measured anew either way
        return kept.trials if kept.facts == msgspec.to_builtins(self._facts) else []


def cache_folder() -> Path:
    """Where trials are kept: below $XDG_CACHE_HOME, else ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home else Path.home() / ".cache") / "botanify" / "tuning"


def facts_of(recipe: Recipe, num_outputs: int, device: torch.device, num_ranks: int, limits: Limits) -> dict[str, Any]:
    """All that decides the speed and memory of a setting, but the setting: as plain values."""
    plain = recipe_to_plain(recipe)
    on_cuda = device.type == "cuda"
    return {
        "format": _FORMAT,
        "device": describe_device(device),
        "memory_bytes": torch.cuda.get_device_properties(device).total_memory if on_cuda else None,
        "num_ranks": num_ranks,
        "num_outputs": num_outputs,
        "side_px": largest_side_px(recipe),
        "serve_px": recipe.pictures.serve_px,
        "pretrained": recipe.network.weights != "none",
        "moving_average": recipe.schedule.ema_decay > 0,
        "clips": recipe.schedule.clip_norm > 0,
        "knobs": {knob: plain[section][knob] for section, knob in knobs_with(KnobRole.STEP_COST)},
        "limits": msgspec.to_builtins(limits),
        "versions": {
            "torch": str(torch.__version__),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version() if on_cuda else None,  # type: ignore[no-untyped-call]
            "timm": timm.__version__,
        },
    }
