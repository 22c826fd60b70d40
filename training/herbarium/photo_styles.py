"""What the photographs of a data set have in common: backdrops, light, how close people go.

A look changes how pictures are taken and never what a plant is like, so a network that learned plants in one look has
to find them again in another.
"""

from typing import Final

import msgspec

from training.herbarium.backdrop import OUTDOORS, Backdrop


class PhotoStyle(msgspec.Struct, frozen=True, kw_only=True):
    """How photographs are taken."""

    backdrops: tuple[Backdrop, ...] = OUTDOORS
    """What may lie behind the plant; each is as likely as it is often in the list."""
    close_ups: float = 0.4
    """Share of pictures that show one flower or inflorescence."""
    zoom: float = 1.0
    """Above 1 crops closer."""
    brightness: tuple[float, float] = (0.8, 1.14)
    """Least and most light; 1 leaves colors as painted."""
    warmth: float = 0.0
    """Mean tint of the light: above 0 is toward the red of a lamp, below toward the blue of shade."""
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
