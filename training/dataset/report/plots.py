"""The report's plots, as SVG inside the page, in the page's font and its light or dark colors.

The same numbers give the same bytes. Each color is a CSS variable of the page with a fallback. All numbers are also in
a table of the page or in report.json, so that no information is in the color alone.
"""

import io
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import AutoLocator, FuncFormatter, LogLocator, NullFormatter

from training.dataset.report.schema import Histogram, Report
from training.dataset.sources.record import SPLITS

_WIDTH_IN: Final = 7.4
_INK, _PAPER = "#010203", "#040506"  # placeholders for the page's text and background
# Distinguishable by color-blind people: the first three are from Okabe and Ito (2008), then Paul Tol's and a gray.
_SOURCE_COLORS: Final = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#6b6b6b", "#882255")
# The first three differ in lightness alone; test has another hue.
_SPLIT_COLORS: Final = dict(zip(SPLITS, ("#1d4f2f", "#4d8a57", "#a9d19a", "#6a5acd"), strict=True))
_VARIABLES: Final = (
    {_INK: "currentColor", _PAPER: "var(--card, #fffefa)"}
    | {color: f"var(--source-{number}, {color})" for number, color in enumerate(_SOURCE_COLORS)}
    | {color: f"var(--{split}, {color})" for split, color in _SPLIT_COLORS.items()}
)
_MOST_POINTS: Final = 300  # of a curve; the plot is too narrow to show more
_MARKED: Final = 60  # curves with at most this many classes have a marker for each
_STYLE: Final[Any] = {  # matplotlib's type lists every key
    "axes.edgecolor": _INK,
    "axes.facecolor": "none",
    "axes.labelcolor": _INK,
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "font.family": ["DejaVu Sans"],  # part of matplotlib, so text has the same size everywhere
    "font.size": 9,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "text.color": _INK,
    "text.parse_math": False,  # names may contain $
    "xtick.color": _INK,
    "ytick.color": _INK,
}


def plots(report: Report) -> dict[str, str]:
    """Draws the plots of a report that has pictures.

    Returns:
        Name -> an `<svg>` element: "sources", "splits", "classes", "short_sides", "file_sizes".
    """
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # The font has no glyphs of other scripts. Here it only measures the text; the browser draws it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figures = {
            "sources": _source_plot(report),
            "splits": _split_plot(report),
            "classes": _class_size_plot(report),
            "short_sides": _size_plot(report.short_sides_px, "short side of the upright picture (px)"),
            "file_sizes": _size_plot(report.file_sizes_bytes, "length of the file (kB)", unit=1000),
        }
        return {name: _svg(figure, name) for name, figure in figures.items()}


def _source_plot(report: Report) -> Figure:
    """Pictures of each source by split."""
    figure, axes = _bar_figure(report)
    _stacked_bars(figure, axes, report, scale=dict.fromkeys((source.name for source in report.sources), 1.0))
    axes.set_xlabel("pictures")
    axes.xaxis.set_major_formatter(FuncFormatter(_thousands))
    return figure


def _split_plot(report: Report) -> Figure:
    """Share of each split in each source's pictures."""
    figure, axes = _bar_figure(report)
    _stacked_bars(figure, axes, report, scale={each.name: 100 / max(each.num_pictures, 1) for each in report.sources})
    axes.set_xlabel("share of the source's pictures (%)")
    axes.set_xlim(0, 100)
    return figure


def _class_size_plot(report: Report) -> Figure:
    """Sizes of each source's classes, largest first, on a logarithmic scale; a line marks small classes."""
    figure = Figure(figsize=(_WIDTH_IN, 3.6), layout="constrained")
    axes = figure.subplots()
    shown: dict[str, Artist] = {}
    for color, (name, sizes) in zip(_colors(report.curves), report.curves.items(), strict=True):
        if sizes:
            rank = np.unique(np.linspace(0, len(sizes) - 1, _MOST_POINTS).round().astype(int))
            share, marker = 100 * (rank + 0.5) / len(sizes), "o" if len(sizes) <= _MARKED else ""
            shown[name] = axes.plot(share, np.asarray(sizes)[rank], color=color, marker=marker, markersize=3)[0]
    if report.few_pictures:
        axes.axhline(report.few_pictures, color=_INK, linewidth=0.9, linestyle=(0, (5, 3)))
        text = f"{report.few_pictures:,} pictures"
        axes.annotate(text, (100, report.few_pictures), (0, 2), textcoords="offset points", ha="right", va="bottom")
    axes.set_yscale("log")
    _number_log_axis(axes.yaxis)
    axes.set_xlim(0, 100)
    axes.set_xlabel("classes of the source, largest first (%)")
    axes.set_ylabel("pictures in the class")
    _legend(figure, shown)
    return figure


def _size_plot(histogram: Histogram, label: str, unit: float = 1) -> Figure:
    """Histogram of sizes on a logarithmic axis, sources stacked."""
    figure = Figure(figsize=(_WIDTH_IN, 2.7), layout="constrained")
    axes = figure.subplots()
    edges = np.asarray(histogram.edges) / unit
    below = np.zeros(len(edges) - 1)
    shown: dict[str, Artist] = {}
    for color, (name, counts) in zip(_colors(histogram.counts), histogram.counts.items(), strict=True):
        top = below + counts
        shown[name] = axes.stairs(top, edges, baseline=below, fill=True, facecolor=color)
        below = top
    axes.set_xscale("log")
    _number_log_axis(axes.xaxis)
    axes.yaxis.set_major_formatter(FuncFormatter(_thousands))
    axes.set_xlabel(label)
    axes.set_ylabel("pictures")
    _legend(figure, shown)
    return figure


class _NumbersOfLogAxis(LogLocator):
    """Gives 1, 2, 5, 10, ..., or the round numbers of a linear axis where at most one of these is within the limits."""

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        """The numbers; both limits are positive."""
        ticks = super().tick_values(vmin, vmax)
        return ticks if sum(vmin <= tick <= vmax for tick in ticks) > 1 else AutoLocator().tick_values(vmin, vmax)


def _number_log_axis(axis: Axis) -> None:
    axis.set_major_locator(_NumbersOfLogAxis(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(_thousands))
    axis.set_minor_formatter(NullFormatter())


def _bar_figure(report: Report) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH_IN, 1.1 + 0.36 * len(report.sources)), layout="constrained")
    return figure, figure.subplots()


def _stacked_bars(figure: Figure, axes: Axes, report: Report, scale: Mapping[str, float]) -> None:
    """Draws one bar for each source, the first at the top, with one color for each split."""
    positions = np.arange(len(report.sources))
    left = np.zeros(len(positions))
    shown: dict[str, Artist] = {}
    for split, color in _SPLIT_COLORS.items():
        lengths = np.array([source.by_split[split] * scale[source.name] for source in report.sources])
        bars = axes.barh(positions, lengths, 0.7, left, color=color, edgecolor=_PAPER, linewidth=0.7)
        shown[split] = bars.patches[0]
        left += lengths
    axes.set_yticks(positions, [source.name for source in report.sources])
    axes.invert_yaxis()
    _legend(figure, shown)


def _legend(figure: Figure, shown: Mapping[str, Artist]) -> None:
    """Adds a legend above the plot. Names are passed, because matplotlib skips those that begin with an underscore."""
    figure.legend(
        list(shown.values()), list(shown), loc="outside upper left", ncols=4, handlelength=1.2, columnspacing=1.5
    )


def _colors(sources: Collection[str]) -> list[str]:
    return [_SOURCE_COLORS[number % len(_SOURCE_COLORS)] for number in range(len(sources))]


def _thousands(value: float, _position: int | None = None) -> str:
    return f"{value:,.12g}"


def _svg(figure: Figure, name: str) -> str:
    """Returns the figure as an element of the page."""
    file = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata={"Creator": None, "Date": None, "Format": None, "Type": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(
        r"\s*<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL
    )  # these styles would apply to the whole page
    text = re.sub(r"font-family: [^;\"]+;", "", text)
    text = re.sub(r"(?<=: )#[0-9a-f]{6}", lambda color: _VARIABLES.get(color[0], color[0]), text)
    used = set(re.findall(r"#([\w-]+)(?=[\")])", text))
    # Ids must be unique on a page, but matplotlib numbers the groups of every figure in the same way.
    return re.sub(r' id="([\w.-]+)"', lambda found: found[0] if found[1] in used else "", text)
