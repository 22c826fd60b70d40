"""Runs a trial in a subprocess; a crash or a timeout is an outcome, not an error."""

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
from training.insight.tuning.setting import Outcome, Trial, TrialSetting, with_setting
from training.recipe import Recipe, recipe_to_plain

PROGRAM: Final = (sys.executable, "-m", "training.insight.tuning.trial")
_ROOT: Final = Path(__file__).resolve().parents[3]
# Environment variables of torchrun. A trial runs without ranks.
_RANK_VARIABLES: Final = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)


class TimeLimits(msgspec.Struct, frozen=True):
    """How long a trial may take."""

    budget_s: float = 10.0
    """Seconds of timed windows; a step that takes longer is timed once."""
    max_s: float = 180.0
    """Seconds after which a trial is killed and counts as too slow."""
    max_compiling_s: float = 600.0
    """The same for a compiled network."""


class TrialRequest(msgspec.Struct, frozen=True):
    """What a trial shall measure."""

    recipe: dict[str, Any]
    """Includes the setting."""
    classes: TrainingClasses
    side_px: int
    """Side of the pictures, px."""
    threads: int
    """CPU threads of torch."""
    local_rank: int
    """Index of the GPU."""
    budget_s: float
    """Seconds of timed windows."""
    parent_pid: int
    """The process that waits for the trial."""


class TrialLauncher:
    """Measures settings of one recipe, each in a new process.

    Args:
        recipe: Everything that a setting does not hold.
        classes: What the outputs mean.
        local_rank: Index of the GPU to measure on.
        limits: How long a trial may take.
        program: The command; it reads a `TrialRequest` and writes a `Trial`, both as JSON.
    """

    def __init__(
        self,
        recipe: Recipe,
        classes: TrainingClasses,
        local_rank: int,
        limits: TimeLimits,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self._recipe, self._classes, self._local_rank, self._limits = recipe, classes, local_rank, limits
        self._program = program

    def __call__(self, setting: TrialSetting) -> Trial:
        """Measures a setting."""
        limits = self._limits
        max_s = limits.max_compiling_s if setting.compile else limits.max_s
        try:
            ended = subprocess.run(
                self._program,
                input=msgspec.json.encode(self._request(setting)),
                cwd=_ROOT,
                env={name: value for name, value in os.environ.items() if not _is_rank_variable(name)},
                capture_output=True,
                timeout=max_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return _failed(setting, "too_slow", f"not done after {max_s:.0f} s")
        if ended.returncode:
            return _failed(setting, "crashed", _reason(ended))
        # Compilers and libraries may print lines before it.
        return msgspec.json.decode(ended.stdout.splitlines()[-1], type=Trial)

    def _request(self, setting: TrialSetting) -> TrialRequest:
        return TrialRequest(
            recipe=recipe_to_plain(with_setting(self._recipe, setting)),
            classes=self._classes,
            side_px=_largest_side_px(self._recipe),
            threads=torch.get_num_threads(),
            local_rank=self._local_rank,
            budget_s=self._limits.budget_s,
            parent_pid=os.getpid(),
        )


def _largest_side_px(recipe: Recipe) -> int:
    """Largest side of the training pictures during the run, px."""
    return max(recipe.pictures.picture_px, *(side_px for _, side_px in recipe.pictures.progressive), 0)


def _is_rank_variable(name: str) -> bool:
    return name in _RANK_VARIABLES or name.startswith("TORCHELASTIC_")


def _reason(ended: subprocess.CompletedProcess[bytes]) -> str:
    if ended.returncode < 0:
        name = signal.Signals(-ended.returncode).name
        return f"ended by {name}" + ("; the machine's memory may have run out" if name == "SIGKILL" else "")
    lines = ended.stderr.decode(errors="replace").split("\n")
    reasons = [line.strip() for line in lines if line.strip()] or [f"exit code {ended.returncode}"]
    return reasons[-1][:200]


def _failed(setting: TrialSetting, outcome: Outcome, note: str) -> Trial:
    return Trial(setting=setting, outcome=outcome, note=note)
