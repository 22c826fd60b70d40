"""Trains every recipe of the project to its end, with its own learning rates, loss, norms and augmentation.

Replaced are pretrained weights, GPU and precision, data, and the sizes of network, pictures, batch and run.
"""

import math

import pytest

from tests.training.small import command, events
from training.engine.checkpoint import LAST, read_checkpoint
from training.recipe import read_recipe, recipe_files, side_at_epoch
from training.train import train

SMALLEST_PX, LARGER_PX, LARGEST_BATCH = 32, 8, 16


def tiny_flags(recipe, weights):
    """Flags for one epoch per picture size, each a little larger than the one before."""
    sides = [SMALLEST_PX + LARGER_PX * place for place in range(max(len(recipe.pictures.progressive), 1))]
    flags = ["--architecture", "test_efficientnet", "--weights", weights, "--drawn-species", 0]
    flags += ["--device", "cpu", "--amp", "off", "--compile", "off", "--workers", 0]
    flags += ["--epochs", len(sides), "--picture-px", sides[-1], "--serve-px", sides[-1]]
    flags += ["--batch-size", min(recipe.schedule.batch_size, LARGEST_BATCH)]
    flags += ["--log-every-steps", 1, "--warmup-epochs", min(recipe.schedule.warmup_epochs, 1)]
    if recipe.pictures.progressive:
        flags += ["--progressive", *(number for pair in enumerate(sides) for number in pair)]
    return flags


@pytest.mark.parametrize("path", recipe_files(), ids=lambda path: path.stem)
@pytest.mark.slow
def test_a_recipe_trains_to_its_end(path, data, finished_run, tmp_path):
    recipe = read_recipe(path)
    weights = finished_run / LAST if recipe.network.frozen_stages == "all" else "none"
    tiny = command(data, tmp_path / "run", *tiny_flags(recipe, weights), recipe=path)
    train(tiny)
    pictures, epochs = tiny.recipe.pictures, tiny.recipe.schedule.epochs
    losses = [loss for event in events(tmp_path / "run", "losses") for loss in event["losses"]]
    assert len(losses) >= epochs
    assert all(math.isfinite(loss) for loss in losses)
    done = events(tmp_path / "run", "epoch")
    sides = [side_at_epoch(pictures, epoch) for epoch in range(epochs)]
    assert [event["side_px"] for event in done] == sides
    assert done[-1]["validation"]["top1"]["num_pictures"] == 3
    (ended,) = events(tmp_path / "run", "end")
    assert ended["epoch"] == epochs
    checkpoint = read_checkpoint(tmp_path / "run" / LAST)
    rates = {group["name"].partition(",")[0]: group["initial_lr"] for group in checkpoint.optimizer["param_groups"]}
    assert rates == {"backbone": recipe.schedule.backbone_lr, "head": recipe.schedule.head_lr}
    assert (checkpoint.ema is not None) == (recipe.schedule.ema_decay > 0)
