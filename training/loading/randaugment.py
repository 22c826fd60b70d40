"""RandAugment (Cubuk et al. 2019) for small 8-bit pictures: torchvision's operations and strengths, twice as fast.

Pillow does the work: for single pictures it is several times as fast as PyTorch's kernels. Only sharpness is done by
NumPy, since Pillow's filter would take five times as long as all other operations. A test compares each operation with
torchvision's.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageEnhance, ImageOps, ImageStat
from torch import Tensor

MOST_MAGNITUDE: Final = 30
Color = tuple[int, int, int]
_MOST_SHEAR: Final = 0.3  # px of shift for each px of distance
_MOST_TRANSLATION: Final = 150 / 331  # of the side; Cubuk et al.: 150 px at 331 px
_MOST_DEGREES: Final = 30.0
_MOST_CHANGE: Final = 0.9  # of brightness, color, contrast, sharpness; -1 would remove it, 1 double it
_MOST_BITS: Final = 4  # of 8, dropped by posterizing


def rand_augment(square_HW3: Tensor, num_ops: int, magnitude: int, fill: Color) -> Tensor:
    """Applies randomly chosen operations one after another; PyTorch's generator chooses.

    Args:
        square_HW3: uint8.
        num_ops: Number of operations.
        magnitude: Strength, 0 to `MOST_MAGNITUDE`; operations with a direction go either way, with equal probability.
        fill: Color of pixels that come from outside the picture.

    Returns:
        Same shape and dtype.
    """
    image = Image.fromarray(square_HW3.numpy())
    for chosen, sign in zip(torch.randint(len(_NAMES), (num_ops,)).tolist(), torch.rand(num_ops).tolist(), strict=True):
        level = magnitude / MOST_MAGNITUDE
        image = OPERATIONS[_NAMES[chosen]](image, -level if sign < 0.5 else level, fill)
    return torch.from_numpy(np.array(image))


def _affine(image: Image.Image, matrix: tuple[float, ...], fill: Color) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=fill)


def _shear_x(image: Image.Image, level: float, fill: Color) -> Image.Image:
    return _affine(image, (1, _MOST_SHEAR * level, 0, 0, 1, 0), fill)


def _shear_y(image: Image.Image, level: float, fill: Color) -> Image.Image:
    return _affine(image, (1, 0, 0, _MOST_SHEAR * level, 1, 0), fill)


def _translate_x(image: Image.Image, level: float, fill: Color) -> Image.Image:
    return _affine(image, (1, 0, -int(_MOST_TRANSLATION * level * image.width), 0, 1, 0), fill)


def _translate_y(image: Image.Image, level: float, fill: Color) -> Image.Image:
    return _affine(image, (1, 0, 0, 0, 1, -int(_MOST_TRANSLATION * level * image.height)), fill)


def _rotate(image: Image.Image, level: float, fill: Color) -> Image.Image:
    return image.rotate(_MOST_DEGREES * level, fillcolor=fill)


def _stretch(image: Image.Image, level: float, middle: float) -> Image.Image:
    """Moves all values away from `middle` or toward it."""
    values = middle + (1 + _MOST_CHANGE * level) * (np.arange(256) - middle)
    return image.point(np.clip(values, 0, 255).astype(int).tolist() * 3)


def _brightness(image: Image.Image, level: float, _fill: Color) -> Image.Image:
    return _stretch(image, level, 0.0)


def _contrast(image: Image.Image, level: float, _fill: Color) -> Image.Image:
    return _stretch(image, level, round(ImageStat.Stat(image.convert("L")).mean[0]))


def _color(image: Image.Image, level: float, _fill: Color) -> Image.Image:
    return ImageEnhance.Color(image).enhance(1 + _MOST_CHANGE * level)


def _sharpness(image: Image.Image, level: float, _fill: Color) -> Image.Image:
    """Moves away from the picture smoothed by (1 1 1; 1 5 1; 1 1 1) / 13, or toward it; border pixels are unchanged."""
    if min(image.size) < 3:
        return image
    pixels_HW3: npt.NDArray[np.uint8] = np.array(image)
    wide = pixels_HW3.astype(np.int16)
    center = wide[1:-1, 1:-1]
    rows = wide[:-2] + wide[1:-1]
    rows += wide[2:]
    box = rows[:, :-2] + rows[:, 1:-1]
    box += rows[:, 2:]
    smooth_share = -_MOST_CHANGE * level
    changed = center * np.float32(1 - smooth_share * 9 / 13)  # the smoothed value is (4 * center + box) / 13
    changed += box * np.float32(smooth_share / 13)
    pixels_HW3[1:-1, 1:-1] = np.clip(changed, 0, 255, out=changed)
    return Image.fromarray(pixels_HW3)


def _posterize(image: Image.Image, level: float, _fill: Color) -> Image.Image:
    return ImageOps.posterize(image, 8 - round(_MOST_BITS * abs(level)))


def _solarize(image: Image.Image, level: float, _fill: Color) -> Image.Image:
    return ImageOps.solarize(image, 255 * (1 - abs(level)))  # type: ignore[arg-type]  # Pillow accepts a float


def _without_level(
    change: Callable[[Image.Image], Image.Image], image: Image.Image, _level: float, _fill: Color
) -> Image.Image:
    return change(image)


OPERATIONS: Final[dict[str, Callable[[Image.Image, float, Color], Image.Image]]] = {
    "Identity": partial(_without_level, lambda image: image),
    "ShearX": _shear_x,
    "ShearY": _shear_y,
    "TranslateX": _translate_x,
    "TranslateY": _translate_y,
    "Rotate": _rotate,
    "Brightness": _brightness,
    "Color": _color,
    "Contrast": _contrast,
    "Sharpness": _sharpness,
    "Posterize": _posterize,
    "Solarize": _solarize,
    "AutoContrast": partial(_without_level, ImageOps.autocontrast),
    "Equalize": partial(_without_level, ImageOps.equalize),
}
"""torchvision's name -> function of an RGB picture, a level from -1 to 1 and the fill color."""
_NAMES: Final = tuple(OPERATIONS)
