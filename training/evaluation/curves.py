"""Learning curves: draws the logs of one or several runs as one PNG."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import msgspec
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from scipy.signal import lfilter

from training.monitor.log import Event, rates, read_log, without_repeats

Floats = npt.NDArray[np.float64]
_MAX_POINTS: Final = 4000  # more points are not visible in a picture 1,500 px wide
_SMOOTHED_SHARE: Final = 0.03  # share of the losses that a smoothed one averages
_DASHES: Final = ("-", "--", ":", "-.")
# Okabe and Ito (2008): safe for color-blind readers.
_COLORS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_STYLE: Final[Any] = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": ["DejaVu Sans"],  # part of matplotlib
    "font.size": 9,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "text.parse_math": False,  # a run may be called a$b$
}


class Run(msgspec.Struct, frozen=True):
    """The curves of a run. L losses, R readings, E epochs, V validations."""

    name: str
    loss_steps: Floats
    """Position of each micro-batch in optimizer steps, shape (L,)."""
    losses: Floats
    """Shape (L,); NaN if a loss was not finite."""
    lr_steps: Floats
    """Shape (R,)."""
    lr: Mapping[str, Floats]
    """Learning rates by parameter group, each of shape (R,)."""
    epoch_steps: Floats
    """Shape (E,)."""
    pictures_per_s: Floats
    """Shape (E,)."""
    validation_steps: Floats
    """Shape (V,)."""
    top1: Floats
    """Validation top-1 and the bounds of its 95 % interval, shape (3, V)."""


def read_run(folder: Path) -> Run:
    """Reads a run's log without the steps that were repeated after a restart.

    Raises:
        DataError: The folder holds no log.
    """
    events = without_repeats(read_log(folder))
    readings = [event for event in events if event["event"] == "losses"]
    epochs = [event for event in events if event["event"] == "epoch"]
    validated = [event for event in events if "validation" in event]
    shares = [event["validation"]["top1"] for event in validated]
    return Run(
        name=folder.resolve().name,
        loss_steps=_loss_positions(readings),
        losses=_floats(loss for event in readings for loss in event["losses"]),
        lr_steps=_steps(readings),
        lr=_rates(readings),
        epoch_steps=_steps(epochs),
        pictures_per_s=_floats(event["pictures_per_s"] for event in epochs),
        validation_steps=_steps(validated),
        top1=np.array([[share["value"], *share["interval_95"]] for share in shares], float).reshape(-1, 3).T,
    )


def learning_curves(folders: Sequence[Path]) -> bytes:
    """Draws loss, validation top-1, learning rates and speed of runs over their optimizer steps.

    Args:
        folders: The runs' folders.

    Returns:
        A PNG file.

    Raises:
        DataError: A folder holds no log.
    """
    runs = [read_run(folder) for folder in folders]
    panels = {
        "training loss (thin: as read; thick: smoothed)": _draw_losses,
        "validation top-1 with its 95 % interval": _draw_top1,
        "learning rate": _draw_rates,
        "pictures/s": _draw_speed,
    }
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(11, 7), layout="constrained")
        for axes, (title, draw) in zip(figure.subplots(2, 2, sharex=True).flat, panels.items(), strict=True):
            _draw_panel(axes, title, draw, runs)
        for axes in figure.axes[2:]:
            axes.set_xlabel("optimizer step")
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=140)
    return file.getvalue()


def smoothed(values: Floats, over: float) -> Floats:
    """An exponential moving average without bias toward its start.

    Args:
        values: Finite values.
        over: Approximate number of averaged values, at least 1.
    """
    keep = 1 - 1 / max(over, 1.0)
    weighed = lfilter([1 - keep], [1, -keep], values)
    return np.asarray(weighed / (1 - keep ** np.arange(1, len(values) + 1)))


def _draw_panel(axes: Axes, title: str, draw: Callable[[Axes, Run, str], None], runs: Sequence[Run]) -> None:
    for number, run in enumerate(runs):
        draw(axes, run, _COLORS[number % len(_COLORS)])
    axes.set_title(title, loc="left")
    if axes.get_legend_handles_labels()[0]:
        axes.legend()


def _draw_losses(axes: Axes, run: Run, color: str) -> None:
    """Draws losses that are not finite as crosses at the bottom of the panel."""
    finite = np.isfinite(run.losses)
    steps, losses = run.loss_steps[finite], run.losses[finite]
    thin = slice(None, None, -(-len(losses) // _MAX_POINTS) or 1)
    axes.plot(steps[thin], losses[thin], color=color, alpha=0.3, linewidth=0.6)
    line = smoothed(losses, _SMOOTHED_SHARE * len(losses))
    axes.plot(steps[thin], line[thin], color=color, linewidth=1.8, label=run.name)
    if not finite.all():
        bad = run.loss_steps[~finite]
        foot = axes.get_xaxis_transform()
        axes.plot(bad, np.full(len(bad), 0.02), "x", color=color, transform=foot, label=f"{run.name}: not finite")


def _draw_top1(axes: Axes, run: Run, color: str) -> None:
    value, low, high = run.top1
    axes.fill_between(run.validation_steps, low, high, color=color, alpha=0.2, linewidth=0)
    axes.plot(run.validation_steps, value, color=color, marker="o", markersize=3)
    axes.yaxis.set_major_formatter(PercentFormatter(1))


def _draw_rates(axes: Axes, run: Run, color: str) -> None:
    for dash, (name, values) in zip(_DASHES, run.lr.items(), strict=False):
        axes.plot(run.lr_steps, values, color=color, linestyle=dash, label=f"{run.name}: {name}")


def _draw_speed(axes: Axes, run: Run, color: str) -> None:
    axes.plot(run.epoch_steps, run.pictures_per_s, color=color, marker="o", markersize=3)
    axes.set_ylim(bottom=0)


def _loss_positions(readings: Sequence[Event]) -> Floats:
    """Spreads the losses of each reading over the steps since the previous reading."""
    places, before = [np.empty(0)], 0
    for event in readings:
        number = len(event["losses"])
        places.append(before + (event["step"] - before) * np.arange(1, number + 1) / max(number, 1))
        before = event["step"]
    return np.concatenate(places)


def _rates(readings: Sequence[Event]) -> dict[str, Floats]:
    named = [rates(event["lr"]) for event in readings]
    names = dict.fromkeys(name for lr in named for name in lr)
    return {name: _floats(lr.get(name) for lr in named) for name in names}


def _steps(events: Sequence[Event]) -> Floats:
    return _floats(event["step"] for event in events)


def _floats(values: Any) -> Floats:
    """Converts to an array; the log has null for a value that is not finite."""
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
