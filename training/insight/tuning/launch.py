"""Starts a trial in a process of its own, and makes an outcome of whatever becomes of it."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from training.engine.losses import TrainingClasses
from training.insight.tuning.setting import Outcome, Setting, Trial, with_setting
from training.recipe import Recipe, recipe_to_plain

PROGRAM: Final = (sys.executable, "-m", "training.insight.tuning.trial")
_ROOT: Final = Path(__file__).resolve().parents[3]
# Names that torchrun gives its ranks: a trial is alone.
_OF_RANKS: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


class Limits(msgspec.Struct, frozen=True):
    """How long a trial may take, s."""

    budget_s: float = 10.0
    """For the windows that are timed; a step that takes longer is timed once."""
    most_s: float = 180.0
    """In all; a trial that takes longer is ended, and its setting is too slow."""
    most_compiling_s: float = 600.0
    """The same where the network is compiled first."""


class Order(msgspec.Struct, frozen=True):
    """What a trial is to measure."""

    recipe: dict[str, Any]
    """With the setting in place."""
    classes: TrainingClasses
    side_px: int
    """Side of the pictures, px."""
    threads: int
    """Of torch on the CPU."""
    local_rank: int
    """Number of the GPU."""
    budget_s: float
    """For the windows that are timed, s."""
    parent: int
    """Number of the process that waits for the trial."""


class TrialLauncher:
    """Measures settings of one recipe, each in a fresh process.

    Args:
        recipe: What is not in a setting.
        classes: What the outputs mean.
        local_rank: Number of the GPU to measure on.
        limits: How long a trial may take.
        program: What is started; it reads an order and writes a trial.
    """

    def __init__(
        self,
        recipe: Recipe,
        classes: TrainingClasses,
        local_rank: int,
        limits: Limits,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self._recipe, self._classes, self._local_rank, self._limits = recipe, classes, local_rank, limits
        self._program = program

    def __call__(self, setting: Setting) -> Trial:
        """Gives the trial of a setting; a process that dies or takes too long is an outcome, too."""
        limits = self._limits
        most_s = limits.most_compiling_s if setting.compile else limits.most_s
        try:
            ended = subprocess.run(
                self._program,
                input=msgspec.json.encode(self._order(setting)),
                cwd=_ROOT,
                env={name: value for name, value in os.environ.items() if not _tells_of_ranks(name)},
                capture_output=True,
                timeout=most_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return _failed(setting, "too_slow", f"not done after {most_s:.0f} s")
        if ended.returncode:
            return _failed(setting, "crashed", _last_words(ended))
        # Compilers and libraries may have written before it.
        return msgspec.json.decode(ended.stdout.splitlines()[-1], type=Trial)

    def _order(self, setting: Setting) -> Order:
        return Order(
            recipe=recipe_to_plain(with_setting(self._recipe, setting)),
            classes=self._classes,
            side_px=largest_side_px(self._recipe),
            threads=torch.get_num_threads(),
            local_rank=self._local_rank,
            budget_s=self._limits.budget_s,
            parent=os.getpid(),
        )


def largest_side_px(recipe: Recipe) -> int:
    """The largest side that training pictures ever have, px: what must fit."""
    return max(recipe.pictures.picture_px, *(side_px for _, side_px in recipe.pictures.progressive), 0)


def _tells_of_ranks(name: str) -> bool:
    return name in _OF_RANKS or name.startswith("TORCHELASTIC_")


def _last_words(ended: subprocess.CompletedProcess[bytes]) -> str:
    if ended.returncode < 0:
        by = signal.Signals(-ended.returncode).name
        return f"ended by {by}" + ("; the machine's memory may have run out" if by == "SIGKILL" else "")
    lines = ended.stderr.decode(errors="replace").split("\n")
    told = [line.strip() for line in lines if line.strip()] or [f"exit code {ended.returncode}"]
    return told[-1][:200]


def _failed(setting: Setting, outcome: Outcome, note: str) -> Trial:
    return Trial(setting=setting, outcome=outcome, note=note)
