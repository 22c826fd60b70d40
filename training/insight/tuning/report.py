"""The table of trials."""

from collections.abc import Sequence
from typing import Final

from rich.table import Table

from training.insight.tuning.setting import MAX_MEMORY_SHARE, Trial, TrialSetting

_OUTCOMES: Final = {"does_not_fit": "does not fit", "too_slow": "too slow", "crashed": "crashed"}


def trial_table(trials: Sequence[Trial], chosen: TrialSetting) -> Table:
    """One row per trial; `*` marks the chosen setting."""
    table = Table(title="Settings, each measured in its own process; * is proposed")
    table.add_column("batch", justify="right")
    table.add_column("mode")
    for name in ("pictures/s", "memory", "warm-up"):
        table.add_column(name, justify="right")
    table.add_column("")
    for trial in trials:
        star = "*" if trial.setting == chosen else ""
        table.add_row(f"{star}{trial.setting.batch_size}", mode(trial.setting), *_figures(trial), failure(trial))
    return table


def mode(setting: TrialSetting) -> str:
    """A setting without its batch size, such as "fp16, NHWC, compiled"."""
    precision = "fp32" if setting.amp == "off" else setting.amp
    layout = "NHWC" if setting.channels_last else "NCHW"
    return f"{precision}, {layout}{', compiled' if setting.compile else ''}"


def failure(trial: Trial) -> str:
    """Why a trial cannot be chosen; empty if it can."""
    if trial.outcome == "ran":
        return "" if trial.fits else f"above {MAX_MEMORY_SHARE:.0%} of the memory"
    outcome = _OUTCOMES[trial.outcome]
    return f"{outcome}: {trial.note}" if trial.note else outcome


def _figures(trial: Trial) -> list[str]:
    if trial.outcome != "ran":
        return ["", "", ""]
    memory = "" if trial.memory_gb is None else f"{trial.memory_gb:.1f} GB"
    if trial.memory_share is not None:
        memory += f" ({trial.memory_share:.0%})"
    return [f"{trial.pictures_per_s:.4g}", memory, f"{trial.warmup_s:.0f} s"]
