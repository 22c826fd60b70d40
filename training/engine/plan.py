"""Says where and how a run trains before it starts: three lines, and notes on what the recipe does not say."""

from collections.abc import Iterator

import torch

from training.dataset.manifest import Manifest
from training.engine.device import cpu_warnings, describe_device
from training.engine.step import Engine
from training.loading.negatives import Negatives
from training.recipe import NEGATIVES_SHARE, Recipe, sides_of_epochs

_GB = 1e9


def describe_run(engine: Engine, manifest: Manifest, *, steps_per_epoch: int, global_batch: int) -> list[str]:
    """The device, the data and the steps of a run, a line each.

    Args:
        engine: Trains the network.
        manifest: The data.
        steps_per_epoch: Optimizer steps of an epoch.
        global_batch: Pictures of a micro-batch on all ranks together.
    """
    schedule, classes = engine.recipe.schedule, len(manifest.taxonomy.outputs)
    train, validation = (len(manifest.rows_of(split)) for split in ("train", "validation"))
    pictures, all_steps = global_batch * schedule.accumulate, schedule.epochs * steps_per_epoch
    return [
        f"device: {_device(engine)}",
        f"data: {train:,} training and {validation:,} validation pictures of {classes:,} classes",
        f"steps: {schedule.epochs:,} epochs of {steps_per_epoch:,} steps, {all_steps:,} in all; "
        f"a step takes {pictures:,} pictures of {_sides(engine.recipe)} px",
    ]


def notes_of_run(engine: Engine, negatives: Negatives) -> Iterator[str]:
    """Yields what a user may not expect of a run: its device, BatchNorm, pictures without a plant, slow first steps.

    Args:
        engine: Trains the network.
        negatives: The pictures without a plant.
    """
    recipe, device = engine.recipe, engine.device
    for warning in cpu_warnings(recipe.hardware, device):
        yield f"warning: {warning}"
    yield engine.norms.explanation
    if negatives.paths:
        added = negatives.of_batch(NEGATIVES_SHARE, recipe.schedule.batch_size)
        yield f"{negatives.description}: {added} are added to each batch of plants"
    if recipe.hardware.cudnn_benchmark and len(set(sides_of_epochs(recipe))) > 1 and device.type == "cuda":
        yield "cuDNN times its kernels for each picture size: the first steps at a new size are slow"


def _device(engine: Engine) -> str:
    names = {None: "float32", torch.float16: "fp16", torch.bfloat16: "bf16"}
    ranks = f"{engine.ranks.num_ranks} ranks, each on " if engine.ranks.is_distributed else ""
    memory = f"; {_memory(engine)}" if engine.device.type == "cuda" else ""
    return f"{ranks}{describe_device(engine.device)}, {names[engine.amp_dtype]}{memory}"


def _memory(engine: Engine) -> str:
    free, total = torch.cuda.mem_get_info(engine.device)
    return f"{free / _GB:.1f} of {total / _GB:.1f} GB of its memory are free"


def _sides(recipe: Recipe) -> str:
    sides = set(sides_of_epochs(recipe))
    return str(min(sides)) if len(sides) == 1 else f"{min(sides)} to {max(sides)}"
