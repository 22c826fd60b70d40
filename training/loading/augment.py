"""Augmentation: random crops, flips, RandAugment, colors, erasing; mixup and CutMix of batches.

Random choices are a pure function of (seed, epoch, picture) or (seed, step). torchvision's transforms use PyTorch's
global generator, so `seeded` seeds it for the length of a block and restores it afterwards.

RandAugment (Cubuk et al. 2019) has torchvision's operations and strengths, at twice the speed for small 8-bit pictures:
Pillow does the work, several times as fast as PyTorch's kernels. Only sharpness is done by NumPy, since Pillow's filter
would take five times as long as all other operations. A test compares each operation with torchvision's.
"""

import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageEnhance, ImageOps, ImageStat
from torch import Tensor
from torchvision.transforms import v2

from models.preprocess import InputSpec
from training.loading.decode import Crop, CropReader
from training.recipe import AugmentRecipe

MOST_MAGNITUDE: Final = 30
Color = tuple[int, int, int]
_MOST_SHEAR: Final = 0.3  # px of shift for each px of distance
_MOST_TRANSLATION: Final = 150 / 331  # of the side; Cubuk et al.: 150 px at 331 px
_MOST_DEGREES: Final = 30.0
_MOST_CHANGE: Final = 0.9  # of brightness, color, contrast, sharpness; -1 would remove it, 1 double it
_MOST_BITS: Final = 4  # of 8, dropped by posterizing


def rand_augment(square_HW3: Tensor, num_ops: int, magnitude: int, fill: Color) -> Tensor:
    """Applies `num_ops` randomly chosen operations to a uint8 picture; PyTorch's generator chooses.

    `magnitude` is from 0 to `MOST_MAGNITUDE`; operations with a direction go either way, with equal probability. `fill`
    colors what comes from outside the picture.
    """
    image = Image.fromarray(square_HW3.numpy())
    for chosen, sign in zip(torch.randint(len(_NAMES), (num_ops,)).tolist(), torch.rand(num_ops).tolist(), strict=True):
        level = magnitude / MOST_MAGNITUDE
        image = OPERATIONS[_NAMES[chosen]](image, -level if sign < 0.5 else level, fill)
    return torch.from_numpy(np.array(image))


def _affine(image: Image.Image, matrix: tuple[float, ...], fill: Color) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=fill)


def _stretch(image: Image.Image, level: float, middle: float) -> Image.Image:
    """Moves all values away from `middle` or toward it."""
    values = middle + (1 + _MOST_CHANGE * level) * (np.arange(256) - middle)
    return image.point(np.clip(values, 0, 255).astype(int).tolist() * 3)


def _sharpness(image: Image.Image, level: float) -> Image.Image:
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


OPERATIONS: Final[dict[str, Callable[[Image.Image, float, Color], Image.Image]]] = {
    "Identity": lambda image, _level, _fill: image,
    "ShearX": lambda image, level, fill: _affine(image, (1, _MOST_SHEAR * level, 0, 0, 1, 0), fill),
    "ShearY": lambda image, level, fill: _affine(image, (1, 0, 0, _MOST_SHEAR * level, 1, 0), fill),
    "TranslateX": lambda image, level, fill: _affine(
        image, (1, 0, -int(_MOST_TRANSLATION * level * image.width), 0, 1, 0), fill
    ),
    "TranslateY": lambda image, level, fill: _affine(
        image, (1, 0, 0, 0, 1, -int(_MOST_TRANSLATION * level * image.height)), fill
    ),
    "Rotate": lambda image, level, fill: image.rotate(_MOST_DEGREES * level, fillcolor=fill),
    "Brightness": lambda image, level, _fill: _stretch(image, level, 0.0),
    "Color": lambda image, level, _fill: ImageEnhance.Color(image).enhance(1 + _MOST_CHANGE * level),
    "Contrast": lambda image, level, _fill: _stretch(image, level, round(ImageStat.Stat(image.convert("L")).mean[0])),
    "Sharpness": lambda image, level, _fill: _sharpness(image, level),
    "Posterize": lambda image, level, _fill: ImageOps.posterize(image, 8 - round(_MOST_BITS * abs(level))),
    # Pillow accepts a float.
    "Solarize": lambda image, level, _fill: ImageOps.solarize(image, 255 * (1 - abs(level))),  # type: ignore[arg-type]
    "AutoContrast": lambda image, _level, _fill: ImageOps.autocontrast(image),
    "Equalize": lambda image, _level, _fill: ImageOps.equalize(image),
}
"""torchvision's name -> function of an RGB picture, a level from -1 to 1 and the fill color."""
_NAMES: Final = tuple(OPERATIONS)


CROP_RATIO_MAX = 4 / 3  # the largest aspect ratio of a random crop; the smallest is its inverse
FLIPPED = 0.5  # of the pictures
RANDAUGMENT_OPS = 2
_CROP_TRIES = 10  # as torchvision's RandomResizedCrop; after them the center is cropped


@contextmanager
def seeded(*parts: int) -> Iterator[None]:
    """Seeds PyTorch's CPU generator from integers for the length of the block."""
    key = "/".join(map(str, parts)).encode()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(zlib.crc32(key[::-1]))  # the CPU generator takes a seed of 32 bits
        yield


def random_input(data: bytes, recipe: AugmentRecipe, spec: InputSpec, side_px: int) -> Tensor:
    """Decodes and augments a picture file; the result is the input of `Normalizer`.

    The crop is chosen first, so that a JPEG is decoded at the smallest sufficient scale. Pixels stay 8-bit until they
    are on the device: collating, sharing between processes and copying then take a quarter of the memory.

    The mean color of `spec` fills erased rectangles and what RandAugment moves in from outside the picture. Returns
    shape (3, side_px, side_px), uint8, channels last in memory.

    Raises:
        PictureError: The bytes do not decode.
    """
    reader = CropReader(data)
    square_HW3 = reader.read(random_crop(reader.width, reader.height, recipe), side_px)
    if _uniform(0.0, 1.0) < FLIPPED:
        square_HW3 = square_HW3.flip(1)
    red, green, blue = (round(255 * mean) for mean in spec.mean)
    if recipe.randaugment_magnitude:
        square_HW3 = rand_augment(square_HW3, RANDAUGMENT_OPS, recipe.randaugment_magnitude, fill=(red, green, blue))
    pixels_3HW = square_HW3.permute(2, 0, 1)
    if recipe.erase:
        pixels_3HW = v2.RandomErasing(recipe.erase, value=[red, green, blue])(pixels_3HW)
    return pixels_3HW


def random_crop(width: int, height: int, recipe: AugmentRecipe) -> Crop:
    """Chooses a crop of random area and aspect ratio (Szegedy et al. 2015), in whole px."""
    log_ratio = math.log(CROP_RATIO_MAX)
    for _ in range(_CROP_TRIES):
        area = width * height * _uniform(recipe.crop_scale_min, 1.0)
        ratio = math.exp(_uniform(-log_ratio, log_ratio))
        crop_width = round(math.sqrt(area * ratio))
        crop_height = round(math.sqrt(area / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            left = int(torch.randint(width - crop_width + 1, ()))
            top = int(torch.randint(height - crop_height + 1, ()))
            return Crop(left, top, crop_width, crop_height)
    side = min(width, height)
    return Crop((width - side) // 2, (height - side) // 2, side, side)


class Normalizer:
    """Turns batches of 8-bit pixels into network input, on the device of the batches."""

    def __init__(self, spec: InputSpec, device: torch.device) -> None:
        mean = torch.tensor(spec.mean)
        std = torch.tensor(spec.std)
        self._factor, self._shift = (1 / (255 * std)).to(device), (-mean / std).to(device)

    def __call__(self, pixels: Tensor) -> Tensor:
        """Takes uint8 of shape (batch, 3, height, width); returns float32, channels last in memory."""
        width = pixels.shape[3]
        # Over whole rows: three channels at a time take a CPU three times as long. In place: allocation costs more than
        # the arithmetic.
        rows_BHC = pixels.permute(0, 2, 3, 1).flatten(2).float()
        torch.addcmul(self._shift.repeat(width), rows_BHC, self._factor.repeat(width), out=rows_BHC)
        return rows_BHC.view(*rows_BHC.shape[:2], width, 3).permute(0, 3, 1, 2)


class BatchMixer:
    """Mixup or CutMix of a whole batch; returns the batch as it is if the recipe has neither.

    All choices follow from the seed and the step. Targets have the width `num_outputs`.
    """

    def __init__(self, recipe: AugmentRecipe, num_outputs: int, seed: int) -> None:
        self._num_outputs = num_outputs
        self._seed = seed
        self._share = recipe.mix_share
        strengths = ((v2.MixUp, recipe.mixup), (v2.CutMix, recipe.cutmix))
        self._kinds = [kind(alpha=alpha, num_classes=num_outputs) for kind, alpha in strengths if alpha > 0]

    def __call__(self, pixels: Tensor, labels: Tensor, step: int, unknown: int = 0) -> tuple[Tensor, Tensor]:
        """Mixes a batch of shape (batch, 3, height, width), the one of a step since the run began.

        Labels have shape (plants,). Of the pictures beyond them `unknown` are plants of no class, and the rest show no
        plant; both are mixed among themselves, so that mixing does not tell them from the others. Returns pixels, and
        the targets: probabilities of shape (plants, num_outputs), or the labels unchanged if the recipe has neither
        mixup nor CutMix.
        """
        if not self._kinds:
            return pixels, labels
        with seeded(self._seed, step):
            if _uniform(0.0, 1.0) < self._share:
                kind = self._kinds[int(torch.randint(len(self._kinds), ()))]
                mixed, targets = kind(pixels[: len(labels)], labels)
                of_no_class = pixels[len(labels) :]
                parts = [part for part in (of_no_class[:unknown], of_no_class[unknown:]) if len(part)]
                if parts:
                    mixed = torch.cat([mixed, *(kind(part, labels.new_zeros(len(part)))[0] for part in parts)])
                return mixed, targets
        return pixels, torch.nn.functional.one_hot(labels, self._num_outputs).to(pixels.dtype)


def _uniform(low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand(()))
