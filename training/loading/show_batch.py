"""Writes one augmented batch with its names to a picture file, to check data and augmentation by eye."""

import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torch.nn.functional import one_hot

from models.preprocess import InputSpec
from training.atomic_file import replaced
from training.dataset.manifest import Manifest
from training.loading.augment import BatchMixer, Normalizer
from training.loading.data import label_names, training_loader
from training.loading.negatives import num_plants
from training.network_input import input_spec
from training.recipe import Recipe, side_at_epoch

_CAPTION_PX = 14
_CAPTION_LINES = 2  # a mixed picture has two names
_MIN_WIDTH_PX = 180  # for a long name above a small picture
_MOST_PICTURES = 64
_WHOLE = 0.995  # a share that rounds to 100 %


def show_batch(manifest: Manifest, recipe: Recipe, path: Path) -> None:
    """Writes the first batch of the first epoch, as the network would get it, to a PNG file."""
    loader, batches = training_loader(manifest, recipe, pin=False)
    batches.side_px = side_at_epoch(recipe.pictures, epoch=0)
    pixels, labels = next(iter(loader))
    plants = num_plants(labels)
    spec = input_spec(recipe)
    num_outputs = len(manifest.taxonomy.outputs)
    mixed, targets = BatchMixer(recipe.augment, num_outputs, recipe.run.seed)(
        Normalizer(spec, pixels.device)(pixels), labels[:plants], step=0
    )
    shares = targets if targets.ndim == 2 else one_hot(targets, num_outputs)
    captions = [caption(manifest, row) for row in shares] + ["not a plant"] * (len(labels) - plants)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as stream:
        _grid(to_pictures(mixed[:_MOST_PICTURES], spec), captions[:_MOST_PICTURES]).save(stream, "PNG")


def caption(manifest: Manifest, shares: Tensor) -> str:
    """The names of a picture's classes, the larger share first: "60% Iris germanica, 40% Viola tricolor"."""
    best = shares.float().topk(min(2, len(shares)))
    names = label_names(manifest, best.indices.tolist())
    if best.values[0] > _WHOLE:
        return names[0]
    return ", ".join(
        f"{value:.0%} {name}" for name, value in zip(names, best.values.tolist(), strict=True) if value > 0
    )


def to_pictures(pixels: Tensor, spec: InputSpec) -> list[Image.Image]:
    """Converts normalized network input of shape (batch, 3, height, width) back to pictures."""
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (spec.mean, spec.std))
    hw3 = ((pixels * std + mean).clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return [Image.fromarray(np.ascontiguousarray(picture)) for picture in hw3]


def _grid(pictures: list[Image.Image], captions: list[str]) -> Image.Image:
    columns = math.ceil(math.sqrt(len(pictures)))
    width, height = max(pictures[0].width, _MIN_WIDTH_PX), pictures[0].height + _CAPTION_PX * _CAPTION_LINES
    sheet = Image.new("RGB", (columns * width, math.ceil(len(pictures) / columns) * height), "white")
    pen = ImageDraw.Draw(sheet)
    for position, (picture, text) in enumerate(zip(pictures, captions, strict=True)):
        left, top = position % columns * width, position // columns * height
        pen.text((left + 2, top + 1), text.replace(", ", "\n"), fill="black", font_size=_CAPTION_PX - 3)
        sheet.paste(picture, (left, top + _CAPTION_PX * _CAPTION_LINES))
    return sheet
