"""Random crops, colors and mixtures. Randomness is a pure function of (seed, epoch, picture) or (seed, step).

torchvision's transforms draw from torch's global generator; `seeded` lends them one that is seeded for the occasion and
leaves the global one as it was.
"""

import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from models.preprocess import InputSpec, read_picture, upright_size
from training.recipe import AugmentRecipe

_CROP_TRIES = 10  # as torchvision's RandomResizedCrop; then the center is taken


@contextmanager
def seeded(*parts: int) -> Iterator[None]:
    """Seeds torch's CPU generator from whole numbers for the length of the block."""
    key = "/".join(map(str, parts)).encode()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed((zlib.crc32(key) << 32) | zlib.crc32(key[::-1]))
        yield


def random_input(data: bytes, recipe: AugmentRecipe, spec: InputSpec, side_px: int) -> Tensor:
    """Makes a randomly changed network input from the bytes of a picture.

    The crop is chosen first, so that a JPEG is decoded at the smallest scale that still covers it.

    Args:
        data: A picture file.
        recipe: How much may change.
        spec: Mean and standard deviation.
        side_px: Side of the result, px.

    Returns:
        Shape (3, side_px, side_px), float32, normalized.

    Raises:
        PictureError: The bytes do not decode.
    """
    width, height = upright_size(data)
    left, top, crop_width, crop_height = random_crop(width, height, recipe)
    image = read_picture(data, math.ceil(side_px * min(width, height) / min(crop_width, crop_height))).image
    scale_x, scale_y = image.width / width, image.height / height
    box = (left * scale_x, top * scale_y, (left + crop_width) * scale_x, (top + crop_height) * scale_y)
    resized = image.resize((side_px, side_px), Image.Resampling.BICUBIC, box=box)
    changed: Tensor = _transforms(recipe, spec)(resized)
    return changed


def random_crop(width: int, height: int, recipe: AugmentRecipe) -> tuple[int, int, int, int]:
    """Draws a crop of random area and proportions (Szegedy et al. 2015), in whole px: left, top, width, height."""
    log_ratio = math.log(recipe.crop_ratio_max)
    for _ in range(_CROP_TRIES):
        area = width * height * _uniform(recipe.crop_scale_min, 1.0)
        ratio = math.exp(_uniform(-log_ratio, log_ratio))
        crop_width, crop_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            left = int(torch.randint(width - crop_width + 1, ()))
            top = int(torch.randint(height - crop_height + 1, ()))
            return left, top, crop_width, crop_height
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


class BatchMixer:
    """Mixup or CutMix over a whole batch; without either, targets only become shares.

    Args:
        recipe: Alphas and how often.
        num_outputs: Width of the targets.
        seed: Decides every draw, together with the step.
    """

    def __init__(self, recipe: AugmentRecipe, num_outputs: int, seed: int) -> None:
        self._num_outputs, self._seed, self._share = num_outputs, seed, recipe.mix_share
        self._kinds: list[Any] = []
        if recipe.mixup > 0:
            self._kinds.append(v2.MixUp(alpha=recipe.mixup, num_classes=num_outputs))
        if recipe.cutmix > 0:
            self._kinds.append(v2.CutMix(alpha=recipe.cutmix, num_classes=num_outputs))

    def __call__(self, pixels: Tensor, labels: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Mixes the batch of one step.

        Args:
            pixels: Shape (batch, 3, height, width).
            labels: Shape (batch,), whole numbers.
            step: Optimizer step since the run began.

        Returns:
            Pixels of the same shape, and labels as they were or, where the recipe mixes at all, shares of shape
            (batch, num_outputs).
        """
        if not self._kinds:
            return pixels, labels
        with seeded(self._seed, step):
            if _uniform(0.0, 1.0) < self._share:
                kind = self._kinds[int(torch.randint(len(self._kinds), ()))]
                mixed: tuple[Tensor, Tensor] = kind(pixels, labels)
                return mixed
        return pixels, torch.nn.functional.one_hot(labels, self._num_outputs).to(pixels.dtype)


@lru_cache(maxsize=4)
def _transforms(recipe: AugmentRecipe, spec: InputSpec) -> v2.Compose:
    """What follows the crop, on the small picture."""
    steps: list[Any] = [v2.RandomHorizontalFlip(recipe.flip)]
    if recipe.randaugment_ops:
        gray = [round(255 * mean) for mean in spec.mean]
        steps.append(v2.RandAugment(recipe.randaugment_ops, recipe.randaugment_magnitude, fill=gray))
    steps += [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(list(spec.mean), list(spec.std))]
    if recipe.erase:
        steps.append(v2.RandomErasing(recipe.erase))
    return v2.Compose(steps)


def _uniform(low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand(()))
