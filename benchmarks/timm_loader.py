"""timm's training loader with the augmentation of a recipe; both benchmarks compare with it."""

from pathlib import Path
from typing import Any

import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.data.dataset_factory import create_dataset
from timm.data.loader import create_loader

from training.loading.augment import CROP_RATIO_MAX, FLIPPED, RANDAUGMENT_OPS
from training.recipe import AugmentRecipe


def timm_training_loader(
    folder: Path,
    augment: AugmentRecipe,
    *,
    side_px: int,
    batch_size: int,
    workers: int,
    device: torch.device,
    all_operations: bool = False,
) -> Any:
    """Yields batches of (pixels, labels), normalized, from a folder with one subfolder for each class.

    Args:
        folder: Parent of the folder "train".
        augment: Crop, flip and RandAugment.
        side_px: Side of the pictures, px.
        batch_size: Pictures in a batch.
        workers: Loader processes.
        device: Device of the batches.
        all_operations: Apply every operation of RandAugment; by default timm skips each with probability 0.5.
    """
    randaugment = f"rand-m{augment.randaugment_magnitude}-n{RANDAUGMENT_OPS}" + ("-p1.0" if all_operations else "")
    return create_loader(
        create_dataset("", root=str(folder), split="train", is_training=True),
        input_size=(3, side_px, side_px),
        batch_size=batch_size,
        is_training=True,
        scale=(augment.crop_scale_min, 1.0),
        ratio=(1 / CROP_RATIO_MAX, CROP_RATIO_MAX),
        hflip=FLIPPED,
        color_jitter=None,  # type: ignore[arg-type]  # None switches it off; timm's signature lacks it
        auto_augment=randaugment if augment.randaugment_magnitude else None,
        interpolation="bicubic",
        mean=IMAGENET_DEFAULT_MEAN,
        std=IMAGENET_DEFAULT_STD,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        device=device,
    )
