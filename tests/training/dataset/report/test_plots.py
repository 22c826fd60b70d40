"""Every axis of the report's plots has numbers, whatever the sizes are."""

import matplotlib as mpl
import msgspec
import pytest
from matplotlib.figure import Figure

from tests.training.dataset.report.sample_report import make_report
from training.dataset.report import plots
from training.dataset.report.schema import Histogram


def numbers(axis):
    """The distinct numbers that an axis shows within its limits."""
    low, high = sorted(axis.get_view_interval())
    ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return {tick.label1.get_text() for tick in ticks} - {""}


def drawn(figure: Figure):
    figure.draw_without_rendering()
    return figure.axes[0]


@pytest.mark.parametrize("sizes", [(80,), (85, 80, 76), (3, 2), (22, 21), (12, 8), (900, 30, 1), (120_000, 7), (1,)])
@pytest.mark.parametrize("few", [0, 2, 20])
def test_the_sizes_of_classes_can_be_read(sizes, few):
    report = msgspec.structs.replace(make_report(), curves={"garden": sizes}, few_pictures=few)
    assert len(numbers(drawn(plots._class_size_plot(report)).yaxis)) >= 2


@pytest.mark.parametrize("edges", [(608.9, 724.1), (430.5, 512.0, 608.9), (64.0, 4096.0), (0.9, 1.2)])
def test_the_sizes_of_pictures_can_be_read(edges):
    histogram = Histogram(edges=edges, counts={"garden": (5,) * (len(edges) - 1)})
    axes = drawn(plots._size_plot(histogram, "px"))
    assert len(numbers(axes.xaxis)) >= 2
    assert len(numbers(axes.yaxis)) >= 2


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.05, "0.05"), (2.2000000000000002, "2.2"), (640, "640"), (1_200_000, "1,200,000")]
)
def test_numbers_are_written_in_full(value, text):
    assert plots._thousands(value) == text
    assert mpl.rcParams["svg.fonttype"] != "none"  # the report's style stays in the report
