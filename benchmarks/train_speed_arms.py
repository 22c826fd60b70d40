"""The training loops that `benchmarks/train_speed.py` compares: ours and timm's, on generated pictures.

Both train the same network with AdamW, label smoothing, dropout and drop path, in the same precision and memory format.
Ours is the engine of `training/train.py`. timm's follows `train_one_epoch` of the train.py in timm's repository
(version 1.0.29, August 2026) step by step: its prefetcher normalizes the pictures, and the host waits for each loss. In
favor of timm, memory is pinned, which its train.py does only with --pin-mem.
"""

import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Literal, Protocol

import msgspec
import timm
import torch
from timm.data.loader import PrefetchLoader
from timm.loss.cross_entropy import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2  # type: ignore[attr-defined]  # timm re-exports it without __all__
from timm.scheduler.scheduler_factory import create_scheduler_v2
from timm.utils.cuda import NativeScaler
from timm.utils.metrics import AverageMeter
from torch import Tensor

from models.network import PlantNetwork
from training.engine.device import amp_dtype
from training.engine.losses import TrainingClasses
from training.engine.step import Engine
from training.loading.augment import seeded
from training.loading.negatives import RunInput
from training.recipe import Recipe

ArmName = Literal["ours", "timm", "ours-compiled", "timm-compiled"]
_SYNTHETIC_BATCHES: Final = 4
_STEPS_PER_EPOCH: Final = 10_000  # so that the rates hardly change during a measurement
_Batch = tuple[Tensor, Tensor]


class Arm(Protocol):
    """A training loop that runs some steps at a time."""

    def take(self, steps: int) -> None:
        """Takes the steps, and returns when the last loss is known."""


def open_arm(name: ArmName, recipe: Recipe, num_outputs: int, device: torch.device, *, timm_fused: bool = False) -> Arm:
    """Creates a training loop.

    Args:
        name: Which loop; with `-compiled` in it torch.compile is on.
        recipe: Recipe of both loops.
        num_outputs: Width of the classifier.
        device: Where to train.
        timm_fused: Whether timm's optimizer uses fused kernels.
    """
    hardware = msgspec.structs.replace(recipe.hardware, compile="default" if "-compiled" in name else "off")
    chosen = msgspec.structs.replace(recipe, hardware=hardware)
    with seeded(recipe.run.seed):
        if name.startswith("ours"):
            return _Ours(chosen, num_outputs, device)
        return _Timm(chosen, num_outputs, device, fused=timm_fused)


def open_engine(recipe: Recipe, num_outputs: int, device: torch.device) -> Engine:
    """Creates our engine for a new network, with as many pictures of each class."""
    shape = recipe.network
    network = PlantNetwork(shape.architecture, num_outputs, dropout=shape.dropout, drop_path=shape.dropout / 2)
    classes = TrainingClasses(tuple(range(num_outputs)), num_outputs, (1.0,) * num_outputs)
    return Engine(RunInput.of(recipe), network, device, classes, steps_per_epoch=_STEPS_PER_EPOCH)


class _Ours:
    """Our loop: `training/engine/step.py`, called as in `training/engine/loop.py`."""

    def __init__(self, recipe: Recipe, num_outputs: int, device: torch.device) -> None:
        self._engine = open_engine(recipe, num_outputs, device)
        self._batches = generated_batches(recipe, num_outputs, device, torch.channels_last)
        self._read_every, self._step = recipe.run.log_every_steps, 0

    def take(self, steps: int) -> None:
        """Takes the steps; losses are read as often as the recipe says, and once at the end."""
        for pixels, labels in itertools.islice(self._batches, steps):
            self._engine.micro_step(pixels, labels, step=self._step)
            self._step += 1
            if self._step % self._read_every == 0:
                self._engine.read()
        self._engine.read()


class _Timm:
    """timm's loop: its model, optimizer, scaler, schedule, loader and step."""

    def __init__(self, recipe: Recipe, num_outputs: int, device: torch.device, *, fused: bool) -> None:
        shape, schedule, hardware = recipe.network, recipe.schedule, recipe.hardware
        torch.backends.cudnn.benchmark = hardware.cudnn_benchmark
        model = timm.create_model(
            shape.architecture, num_classes=num_outputs, drop_rate=shape.dropout, drop_path_rate=shape.dropout / 2
        ).to(device)
        self._format = torch.channels_last if hardware.channels_last else torch.contiguous_format
        model = model.to(memory_format=self._format)
        self._optimizer = create_optimizer_v2(
            model,
            opt="adamw",
            lr=schedule.backbone_lr,
            weight_decay=schedule.weight_decay,
            fused=fused or None,
        )
        self._dtype = amp_dtype(hardware, device)
        self._scaler: Any = NativeScaler(device.type) if self._dtype == torch.float16 else None  # type: ignore[no-untyped-call]
        self._loss = LabelSmoothingCrossEntropy(recipe.loss.label_smoothing)  # type: ignore[no-untyped-call]
        self._scheduler, _ = create_scheduler_v2(
            self._optimizer, sched="cosine", num_epochs=schedule.epochs, updates_per_epoch=_STEPS_PER_EPOCH
        )
        self._model: Any = torch.compile(model.train()) if hardware.compile != "off" else model.train()
        self._losses: Any = AverageMeter()  # type: ignore[no-untyped-call]
        self._device, self._updates = device, 0
        batches: Any = generated_batches(recipe, num_outputs, device, torch.contiguous_format)
        # Copies the next batch in advance, and normalizes it as for ImageNet.
        self._batches = iter(PrefetchLoader(batches, device=device))

    def take(self, steps: int) -> None:
        """Takes the steps as timm's `train_one_epoch`, without accumulation, clipping and moving average."""
        for pixels, labels in itertools.islice(self._batches, steps):
            pixels_as_laid_out = pixels.contiguous(memory_format=self._format)
            with self._precision():
                loss = self._loss(self._model(pixels_as_laid_out), labels)
            if self._scaler is not None:
                self._scaler(loss, self._optimizer)
            else:
                loss.backward()
                self._optimizer.step()
            self._losses.update(loss.item(), len(labels))
            self._updates += 1
            self._optimizer.zero_grad()
            self._scheduler.step_update(num_updates=self._updates, metric=self._losses.avg)

    def _precision(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._dtype is None else torch.autocast(self._device.type, dtype=self._dtype)


def generated_batches(
    recipe: Recipe, num_outputs: int, device: torch.device, memory_format: torch.memory_format
) -> Iterator[_Batch]:
    """Endless batches of noise in host memory, pinned if the device is a GPU, as the loaders yield them."""
    size, side, pinned = recipe.schedule.batch_size, recipe.pictures.picture_px, device.type == "cuda"

    def batch() -> _Batch:
        pixels = torch.randint(256, (size, 3, side, side), dtype=torch.uint8).contiguous(memory_format=memory_format)
        labels = torch.randint(num_outputs, (size,))
        return (pixels.pin_memory(), labels.pin_memory()) if pinned else (pixels, labels)

    return itertools.cycle([batch() for _ in range(_SYNTHETIC_BATCHES)])
