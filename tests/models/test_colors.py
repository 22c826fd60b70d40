"""Converting colors tile by tile gives the same picture as converting all at once."""

import numpy as np
import pytest
from PIL import Image

from models.preprocess import to_rgb
from tests.models.pictures import difference, foliage

LARGE = (1_300, 700)  # several tiles, the last ones smaller


def on_white(image):
    """The whole picture at once, by the formula of alpha compositing."""
    *colors, alpha = np.moveaxis(np.asarray(image.convert("RGBA"), dtype=np.float64), 2, 0)
    share = alpha / 255
    return np.stack([color * share + 255 * (1 - share) for color in colors], axis=2)


@pytest.mark.parametrize("size", [LARGE, (600_000, 3), (3, 300_000), (1, 1)], ids=str)
@pytest.mark.parametrize("mode", ["RGBA", "LA", "L", "CMYK"])
def test_every_pixel_is_converted_whatever_the_proportions(mode, size):
    image = foliage(LARGE).resize(size).convert("RGBA")
    image.putalpha(foliage(LARGE, seed=2).convert("L").resize(size))
    image = image.convert("RGB").convert("CMYK") if mode == "CMYK" else image.convert(mode)
    rgb = to_rgb(image)
    assert (rgb.mode, rgb.size) == ("RGB", size)
    if mode in {"RGBA", "LA"}:
        assert np.abs(np.asarray(rgb) - on_white(image)).max() <= 1
    else:
        np.testing.assert_array_equal(np.asarray(rgb), np.asarray(image.convert("RGB")))


def test_transparent_entries_of_a_palette_are_white_in_every_tile():
    image = Image.new("P", LARGE, 1)
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.paste(0, (0, 0, LARGE[0] // 2, LARGE[1]))
    image.info["transparency"] = 0
    colors = np.asarray(to_rgb(image))
    assert (colors[:, : LARGE[0] // 2] == 255).all()
    assert (colors[:, LARGE[0] // 2 :] == (200, 100, 50)).all()


def test_sixteen_bits_are_scaled_in_every_tile():
    grey = np.linspace(0, 65_535, LARGE[0] * LARGE[1]).astype(np.uint16).reshape(LARGE[::-1])
    assert difference(np.asarray(to_rgb(Image.fromarray(grey)))[..., 1], grey // 257) == 0


def test_plain_rgb_is_returned_without_a_copy():
    image = foliage((64, 48))
    assert to_rgb(image) is image
