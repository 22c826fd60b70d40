"""The plots of a study as SVG files. The same figures give the same bytes."""

import io
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

Point = tuple[float, float]

_SIZE_IN: Final = (7.4, 4.2)
# Okabe and Ito (2008): safe for color-blind readers. Without yellow, which is faint on white.
_COLORS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
_DASHES: Final = ("-", "--", ":", "-.")  # for curves that share a color
_STYLE: Final[Any] = {  # matplotlib types it as a literal of every key
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": ["DejaVu Sans"],  # part of matplotlib, so that the layout is the same everywhere
    "font.size": 9,
    "legend.frameon": False,
    "svg.hashsalt": "study",
    "text.parse_math": False,
}


class Curves(msgspec.Struct, frozen=True, tag="curves"):
    """Lines: the median of the repeats, with a band from the minimum to the maximum."""

    name: str
    """Part of the file name."""
    title: str
    x: str
    """Label of the axis, with the unit."""
    y: str
    series: Mapping[str, Sequence[Sequence[Point]]]
    """Name -> repeats, each a list of points (x, y)."""
    log2: bool = False
    """Whether the x axis is logarithmic, base 2."""


class Bars(msgspec.Struct, frozen=True, tag="bars"):
    """One bar per name: the median of the values, with a line from the minimum to the maximum."""

    name: str
    title: str
    x: str
    """Label of the axis, with the unit."""
    values: Mapping[str, Sequence[float]]
    mark: float | None = None
    """Position of a vertical reference line."""


Plot = Curves | Bars


def draw(plot: Plot) -> bytes:
    """The plot as an SVG file."""
    import matplotlib as mpl  # its import takes a second, and most commands draw nothing
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        height = _SIZE_IN[1] if isinstance(plot, Curves) else 1.2 + 0.3 * len(plot.values)
        figure = Figure(figsize=(_SIZE_IN[0], height), layout="constrained")
        axes = figure.subplots()
        axes.set_title(plot.title)
        axes.set_xlabel(plot.x)
        if isinstance(plot, Curves):
            _curves(axes, plot)
            if plot.series:
                figure.legend(loc="outside right upper")
        else:
            _bars(axes, plot)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Creator": None, "Date": None})
    return file.getvalue()


def _curves(axes: Any, plot: Curves) -> None:
    axes.set_ylabel(plot.y)
    for number, (name, repeats) in enumerate(plot.series.items()):
        color, dash = _COLORS[number % len(_COLORS)], _DASHES[number // len(_COLORS) % len(_DASHES)]
        places, middle, low, high = _band(repeats)
        axes.plot(places, middle, dash, color=color, label=name, marker="o", markersize=3, linewidth=1.3)
        if low != high:
            axes.fill_between(places, low, high, color=color, alpha=0.15, linewidth=0)
    if all(float(x).is_integer() for repeats in plot.series.values() for repeat in repeats for x, _ in repeat):
        axes.xaxis.get_major_locator().set_params(integer=True)  # epochs are whole numbers
    if plot.log2:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _band(repeats: Sequence[Sequence[Point]]) -> tuple[list[float], list[float], list[float], list[float]]:
    """The x values, and for each the median, minimum and maximum of the repeats."""
    at: dict[float, list[float]] = {}
    for repeat in repeats:
        for x, y in repeat:
            at.setdefault(x, []).append(y)
    places = sorted(at)
    middle = [statistics.median(at[x]) for x in places]
    return places, middle, [min(at[x]) for x in places], [max(at[x]) for x in places]


def _bars(axes: Any, plot: Bars) -> None:
    names = [name for name, values in plot.values.items() if values]
    for position, name in enumerate(names):
        values = plot.values[name]
        middle = statistics.median(values)
        axes.barh(position, middle, 0.7, color=_COLORS[0])
        axes.hlines(position, min(values), max(values), color="black", linewidth=1.2)
        axes.annotate(f"{middle:.3g}", (max(values), position), (4, 0), textcoords="offset points", va="center")
    if plot.mark is not None:
        axes.axvline(plot.mark, color="black", linewidth=0.8, linestyle=(0, (5, 3)))
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.margins(x=0.1)
