"""Genera that harm people who touch them: no verdict leaves one out while it is likely (`models/ranking.py`)."""

from typing import Final, Literal

import msgspec

Harm = Literal["touch"]
"""How a plant harms: who touches it."""


class HarmfulGenus(msgspec.Struct, frozen=True):
    """A genus that a verdict must not pass over."""

    name: str
    harm: Harm
    effect: str
    """What its plants do, after "which" in a sentence."""
    source: str


HARMFUL_GENERA: Final = (
    HarmfulGenus(
        "Toxicodendron",
        "touch",
        "causes contact dermatitis",
        'Gladman 2006, "Toxicodendron dermatitis: poison ivy, oak, and sumac", Wilderness and Environmental Medicine '
        "17(2):120-128, doi:10.1580/PR31-05.1",
    ),
)
LARGEST_LEFT_OUT: Final = 0.02
"""Probability up to which a verdict may leave out a harmful genus: at most one plant in fifty. It was chosen and not
fitted, for calibration splits have few plants of one genus."""
