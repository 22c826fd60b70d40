"""Draws an augmented batch with its names: the quickest way to see whether data and augmentation are sane."""

import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from models.preprocess import InputSpec
from training.augment import BatchMixer
from training.data import input_spec, label_names, training_loader
from training.manifest import Manifest
from training.recipe import Recipe
from training.sampler import side_at_epoch

_CAPTION_PX = 16
_MOST_PICTURES = 64


def show_batch(manifest: Manifest, recipe: Recipe, path: Path) -> None:
    """Writes the first batch of the first epoch, just as the network would see it, to a picture file."""
    loader, batches = training_loader(manifest, recipe, pin=False)
    batches.side_px = side_at_epoch(recipe.pictures.progressive, recipe.pictures.picture_px, epoch=0)
    pixels, labels = next(iter(loader))
    mixed, _ = BatchMixer(recipe.augment, len(manifest.taxonomy.outputs), recipe.run.seed)(pixels, labels, step=0)
    names = label_names(manifest, labels.tolist()[:_MOST_PICTURES])
    path.parent.mkdir(parents=True, exist_ok=True)
    _grid(to_pictures(mixed[:_MOST_PICTURES], input_spec(recipe)), names).save(path)


def to_pictures(pixels: Tensor, spec: InputSpec) -> list[Image.Image]:
    """Turns normalized network input of shape (batch, 3, height, width) back into pictures."""
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (spec.mean, spec.std))
    hw3 = ((pixels * std + mean).clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return [Image.fromarray(np.ascontiguousarray(picture)) for picture in hw3]


def _grid(pictures: list[Image.Image], names: list[str]) -> Image.Image:
    columns = math.ceil(math.sqrt(len(pictures)))
    width, height = pictures[0].width, pictures[0].height + _CAPTION_PX
    sheet = Image.new("RGB", (columns * width, math.ceil(len(pictures) / columns) * height), "white")
    pen = ImageDraw.Draw(sheet)
    for position, (picture, name) in enumerate(zip(pictures, names, strict=True)):
        left, top = position % columns * width, position // columns * height
        sheet.paste(picture, (left, top + _CAPTION_PX))
        pen.text((left + 2, top + 2), name[: width // 6], fill="black")
    return sheet
