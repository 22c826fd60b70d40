"""Converts any color mode of Pillow to 8-bit RGB; transparent pixels are blended with white."""

from collections.abc import Iterator
from typing import Final

import numpy as np
from PIL import Image

# 1 MB, since Pillow takes four bytes for a pixel. This is small compared with a picture, and large enough that tiling
# costs no measurable time.
_TILE_PIXELS: Final = 2**18


def to_rgb(image: Image.Image) -> Image.Image:
    """Converts a decoded picture to 8-bit RGB.

    It works tile by tile, since blending needs three temporary copies, together 24 bytes a pixel.

    Args:
        image: Any mode; RGB without transparency is returned unchanged.
    """
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    rgb = Image.new("RGB", image.size)
    for box in _tiles(*image.size):
        rgb.paste(_tile_to_rgb(image.crop(box)), box)
    return rgb


def _tiles(width: int, height: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields boxes that cover a picture: as many whole rows as fit into a tile, or a part of one very long row."""
    num_rows = max(1, _TILE_PIXELS // width)
    num_columns = _TILE_PIXELS // num_rows
    for top in range(0, height, num_rows):
        for left in range(0, width, num_columns):
            yield left, top, min(left + num_columns, width), min(top + num_rows, height)


def _tile_to_rgb(tile: Image.Image) -> Image.Image:
    if tile.mode in {"I;16", "I;16L", "I;16B", "I;16N", "I"}:
        grey = np.asarray(tile).astype(np.int64)  # mode I also holds 16-bit PNG samples, hence the same scale
        grey[grey == tile.info.get("transparency")] = 65535
        return Image.fromarray((np.clip(grey, 0, 65535) // 257).astype(np.uint8)).convert("RGB")
    if tile.has_transparency_data:
        rgba = tile.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    return tile.convert("RGB")
