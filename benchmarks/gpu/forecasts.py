"""Forecasts for two cards, made before anything ran on one, and what was measured beside them.

What differs from its forecast by more than a fifth is explained in `benchmarks/LOG.md` or mended.
"""

from typing import Final

import msgspec

from benchmarks.result import table
from training.machine import Machine

# Pictures a second, at least and at most. How each was made:
# * Steps at 380 px and 5,337 outputs: a step moves 2.2 GB a picture (1.6 GB at best if compiled) at 4.3 TB/s (H200) or
#   3.0 TB/s (H100; a copy reaches these on such cards), and gets to 60 to 75 % of that. A batch of 16 waits for the
#   host, which starts its kernels in 31 to 38 ms.
# * Full width: compiled at 320 px, where a picture moves 0.71 times as much; 16 cores load four to eight times as many
#   as the two of results/amd-epyc-2-cores/loader.json with RandAugment.
# * Plants: a batch of 128, which 16 cores load at 6,000 to 7,500 a second with the strangers among them.
# * Network of the service: 0.55 GB a picture in fp16, at a third to half of the bandwidth.
# * Service: 16 cores decode and answer, and the load generator takes one or two of them.
FORECASTS: Final[dict[str, dict[str, tuple[float, float]]]] = {
    "H200": {
        "fp16, batch 16": (420, 520),
        "fp16, batch 128": (1200, 1400),
        "fp16, batch 128, compiled default": (1600, 2000),
        "full width": (1400, 2800),
        "plants": (2500, 4500),
        "network of the service": (2300, 4000),
        "service, network size": (500, 1100),
        "service, 1 MP": (400, 900),
    },
    "H100": {
        "fp16, batch 16": (420, 520),
        "fp16, batch 128": (840, 980),
        "fp16, batch 128, compiled default": (1110, 1400),
        "full width": (1400, 1970),
        "plants": (2500, 4500),
        "network of the service": (1600, 2800),
        "service, network size": (500, 1100),
        "service, 1 MP": (400, 900),
    },
}
_NOTABLE: Final = 0.2  # of the nearest bound


class Compared(msgspec.Struct, frozen=True):
    """A measured figure and its forecast."""

    figure: str
    per_s: float
    """Pictures a second."""
    forecast: tuple[float, float]
    """At least and at most."""
    off: float
    """Distance from the nearest bound, as a share of it; 0 within the bounds, negative if it was slower."""


def compare(measured: dict[str, float], machine: Machine) -> list[Compared]:
    """Compares the figures (name -> pictures a second) that have a forecast for the first card of the machine."""
    card = machine.gpus[0].name if machine.gpus else ""
    bounds = next((known for name, known in FORECASTS.items() if name in card), {})
    return [
        Compared(name, per_s, bounds[name], round(_off(per_s, *bounds[name]), 3))
        for name, per_s in measured.items()
        if name in bounds
    ]


def _off(value: float, least: float, most: float) -> float:
    if least <= value <= most:
        return 0.0
    bound = least if value < least else most
    return value / bound - 1


def markdown(compared: list[Compared]) -> str:
    """The figures as a table that marks what must be explained; empty without forecasts."""
    if not compared:
        return ""
    rows = [
        [
            each.figure,
            f"{each.per_s:,.0f}",
            " to ".join(f"{bound:,.0f}" for bound in each.forecast),
            f"{each.off:+.0%}, to be explained" if abs(each.off) > _NOTABLE else "as forecast",
        ]
        for each in compared
    ]
    return f"\n\n{table(['figure', 'pictures/s', 'forecast', 'difference'], rows)}"
