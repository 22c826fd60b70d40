"""The photo style of each data set: backdrops, light and distance.

A style changes how pictures are taken, not what plants look like. A network trained on one style can thus be tested on
the same plants in another.
"""

from typing import Final

import msgspec

from training.herbarium.backdrop import OUTDOORS, Backdrop


class PhotoStyle(msgspec.Struct, frozen=True, kw_only=True):
    """How pictures are taken."""

    backdrops: tuple[Backdrop, ...] = OUTDOORS
    """Possible backdrops; repeated entries are more likely."""
    close_ups: float = 0.4
    """Share of pictures that show one flower or inflorescence."""
    zoom: float = 1.0
    """Above 1 crops closer."""
    brightness: tuple[float, float] = (0.8, 1.14)
    """Range of the light; 1 leaves colors unchanged."""
    warmth: float = 0.0
    """Mean tint of the light: positive is redder, as under a lamp, negative bluer, as in shade."""
    warmth_spread: float = 0.06
    """Standard deviation of that tint."""


PLAIN_STYLE: Final = PhotoStyle()
INATURALIST_STYLE: Final = PhotoStyle(zoom=0.92, brightness=(0.62, 1.24), warmth_spread=0.1)
PLANTNET_STYLE: Final = PhotoStyle(
    backdrops=("plain", "plain", "bokeh", "soil"), close_ups=0.6, zoom=1.15, brightness=(0.75, 1.15), warmth=-0.03
)
HOUSE_STYLE: Final = PhotoStyle(
    backdrops=("room", "room", "wall"), close_ups=0.2, zoom=0.95, brightness=(0.66, 1.06), warmth=0.12
)
