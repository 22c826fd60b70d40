"""timm's training loader with the augmentation of a recipe: what both benchmarks compare themselves with."""

from pathlib import Path
from typing import Any

import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.data.dataset_factory import create_dataset
from timm.data.loader import create_loader

from training.recipe import AugmentRecipe


def timm_training_loader(
    folder: Path,
    augment: AugmentRecipe,
    *,
    side_px: int,
    batch_size: int,
    workers: int,
    device: torch.device,
    always: bool = False,
) -> Any:
    """Gives batches of (pixels, labels), normalized, of the pictures in a folder with one folder a class.

    Args:
        folder: Holds a folder "train".
        augment: Crop, flip and RandAugment.
        side_px: Side of the pictures, px.
        batch_size: Pictures a batch.
        workers: Loader processes.
        device: Where the batches go.
        always: Take every operation of RandAugment; by itself timm leaves each out half of the time.
    """
    randaugment = f"rand-m{augment.randaugment_magnitude}-n{augment.randaugment_ops}" + ("-p1.0" if always else "")
    return create_loader(
        create_dataset("", root=str(folder), split="train", is_training=True),
        input_size=(3, side_px, side_px),
        batch_size=batch_size,
        is_training=True,
        scale=(augment.crop_scale_min, 1.0),
        ratio=(1 / augment.crop_ratio_max, augment.crop_ratio_max),
        hflip=augment.flip,
        color_jitter=None,  # type: ignore[arg-type]  # None is none, whatever the signature says
        auto_augment=randaugment if augment.randaugment_ops else None,
        interpolation="bicubic",
        mean=IMAGENET_DEFAULT_MEAN,
        std=IMAGENET_DEFAULT_STD,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        device=device,
    )
