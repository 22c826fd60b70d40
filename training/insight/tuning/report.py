"""What the trials found, for people: a table and a plot."""

import io
from collections.abc import Sequence
from typing import Final

from matplotlib.figure import Figure
from rich.table import Table

from training.insight.tuning.setting import MOST_MEMORY, Setting, Trial

_BLUE, _ORANGE, _GRAY = "#0072b2", "#d55e00", "#6b6b6b"  # Okabe and Ito, which the color-blind tell apart
_OUTCOMES: Final = {
    "ran": "",
    "does_not_fit": "does not fit",
    "too_slow": "too slow",
    "crashed": "crashed",
}


def trial_table(trials: Sequence[Trial], chosen: Setting) -> Table:
    """One row a trial: batch, arithmetic, pictures a second, memory, how busy the device was."""
    table = Table(title="Settings, each run in a process of its own; * is proposed")
    table.add_column("batch", justify="right")
    table.add_column("arithmetic")
    for name in ("pictures/s", "memory", "busy", "warm-up"):
        table.add_column(name, justify="right")
    table.add_column("")
    for trial in trials:
        star = "*" if trial.setting == chosen else ""
        table.add_row(f"{star}{trial.setting.batch_size}", arithmetic(trial.setting), *_figures(trial), remark(trial))
    return table


def arithmetic(setting: Setting) -> str:
    """A setting but its batch size, in words: "fp16, NHWC, compiled"."""
    words = [
        "fp32" if setting.amp == "off" else setting.amp,
        "NHWC" if setting.channels_last else "NCHW",
        "compiled" if setting.compile else "",
    ]
    return ", ".join(word for word in words if word)


def remark(trial: Trial) -> str:
    """Why a trial cannot be chosen, or nothing."""
    if trial.outcome == "ran":
        return "" if trial.fits else f"above {MOST_MEMORY:.0%} of the memory"
    told = _OUTCOMES[trial.outcome]
    return f"{told}: {trial.note}" if trial.note else told


def trial_plot(trials: Sequence[Trial], chosen: Setting, device: str) -> bytes:
    """Draws speed and memory by batch size, with one curve for each arithmetic, as PNG."""
    figure = Figure(figsize=(7.0, 4.2), dpi=120, layout="constrained")
    axes = figure.subplots()
    ran = [trial for trial in trials if trial.outcome == "ran"]
    sized = [trial for trial in ran if arithmetic(trial.setting) == arithmetic(trials[0].setting)]
    axes.plot(*_curve(sized), marker="o", color=_BLUE, label=arithmetic(trials[0].setting))
    for trial, marker in zip([trial for trial in ran if trial not in sized], "sD^vP*X" * len(ran), strict=False):
        axes.plot(*_curve([trial]), marker=marker, linestyle="", color=_BLUE, label=arithmetic(trial.setting))
    axes.axvline(chosen.batch_size, color=_GRAY, linestyle=":", label=f"proposed: {chosen.batch_size}")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("batch size, pictures a step and rank")
    axes.set_ylabel("pictures/s", color=_BLUE)
    axes.set_title(device)
    if any(trial.memory_gb is not None for trial in sized):
        _add_memory(figure, sized)
    axes.legend(loc="lower right", frameon=False)
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()


def _add_memory(figure: Figure, trials: Sequence[Trial]) -> None:
    beside = figure.axes[0].twinx()
    points = [(trial.setting.batch_size, trial.memory_gb or 0.0) for trial in trials]
    beside.plot(*zip(*points, strict=True), marker=".", color=_ORANGE)
    beside.set_ylim(bottom=0)
    beside.set_ylabel("memory, GB", color=_ORANGE)


def _curve(trials: Sequence[Trial]) -> tuple[list[int], list[float]]:
    ordered = sorted(trials, key=lambda trial: trial.setting.batch_size)
    return [trial.setting.batch_size for trial in ordered], [trial.pictures_per_s for trial in ordered]


def _figures(trial: Trial) -> list[str]:
    if trial.outcome != "ran":
        return ["", "", "", ""]
    memory = "" if trial.memory_gb is None else f"{trial.memory_gb:.1f} GB"
    if trial.memory_share is not None:
        memory += f" ({trial.memory_share:.0%})"
    busy = "" if trial.use is None else f"{trial.use:.0%}"
    return [f"{trial.pictures_per_s:.4g}", memory, busy, f"{trial.warmup_s:.0f} s"]
