"""The engine: epochs of mixed-precision steps, validation, checkpoints.

Nothing inside a step waits for the device: losses stay there and are read every few steps. A step's randomness is a
pure function of (seed, step), so a resumed run takes the very steps that an uninterrupted one would have taken.
"""

import math
import time
from contextlib import nullcontext
from typing import Any

import msgspec
import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from timm.utils.model_ema import ModelEmaV3
from torch import Tensor
from torch.nn.functional import cross_entropy

from models.errors import BotanifyError, CheckpointError
from models.network import PlantNetwork
from training.atomic_file import remove_leftovers
from training.augment import BatchMixer, Normalizer
from training.checkpoint import (
    BEST,
    LAST,
    Checkpoint,
    Position,
    current_commit,
    read_checkpoint,
    write_checkpoint,
)
from training.data import input_spec, judged_loader, training_loader
from training.device import amp_dtype, device_in_words
from training.log import RunLog
from training.manifest import Manifest
from training.metrics import Share, share, top_k_hits
from training.optim import build_optimizer, build_scheduler, fast_forward, load_moments
from training.predict import predict, torch_runner
from training.recipe import Recipe, recipe_to_plain
from training.sampler import side_at_epoch

_EMA_WARMUP_POWER = 3 / 4  # timm's schedule: decay reaches 0.999 after 10,000 steps, sooner averages forget the start


# A checkpoint's position means nothing in another order, and another batch or window makes other steps of the rest.
_DECIDE_BATCHES = (
    ("data", "order"),
    ("data", "sampling"),
    ("schedule", "batch_size"),
    ("schedule", "accumulate"),
    ("run", "seed"),
)


class Diverged(BotanifyError):
    """The loss or the weights are no longer numbers."""

    code = "diverged"


class Validation(msgspec.Struct, frozen=True):
    """What a validation found."""

    top1: Share
    top5: Share
    loss: float


class Trainer:
    """One training run.

    Args:
        recipe: Decides everything.
        manifest: The data.
        network: Already holds its first weights.
        device: Where to train.
    """

    def __init__(self, recipe: Recipe, manifest: Manifest, network: PlantNetwork, device: torch.device) -> None:
        self.recipe, self.manifest, self.device = recipe, manifest, device
        hardware, schedule = recipe.hardware, recipe.schedule
        torch.backends.cudnn.benchmark = hardware.cudnn_benchmark
        self._format = torch.channels_last if hardware.channels_last else torch.contiguous_format
        self.network = network.to(device=device, memory_format=self._format)  # type: ignore[call-overload]
        self._forward = torch.compile(self.network, dynamic=False) if hardware.compile else self.network
        self.ema = _moving_average(self.network, schedule.ema_decay)
        self.loader, self._batches = training_loader(manifest, recipe, pin=device.type == "cuda")
        self._num_batches = len(self._batches)  # of a whole epoch
        manifest.rows_of("validation")  # an empty one is told now, not after the first epoch
        self.optimizer = build_optimizer(self.network, schedule)
        self.scheduler = build_scheduler(self.optimizer, schedule, self.steps_per_epoch)
        self._amp_dtype = amp_dtype(hardware, device)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self._amp_dtype == torch.float16)
        self._normalize = Normalizer(input_spec(recipe), device)
        self._mix = BatchMixer(recipe.augment, len(manifest.taxonomy.outputs), recipe.run.seed)
        self.position = Position()
        for name in (LAST, BEST):
            remove_leftovers(recipe.run.run / name)
        self._log = RunLog(recipe.run.run)
        self._console = Console(stderr=True)
        self._unread: list[Tensor] = []

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch; the last may average fewer batches."""
        return math.ceil(self._num_batches / self.recipe.schedule.accumulate)

    def resume(self) -> None:
        """Goes on from the run's last checkpoint; a schedule that was changed since holds from here on.

        Raises:
            CheckpointError: There is none, it belongs to other data or another network, or batches are cut otherwise.
        """
        path = self.recipe.run.run / LAST
        checkpoint = read_checkpoint(path)
        _require_same_run(checkpoint, self)
        self.network.load_state_dict(checkpoint.network)
        if self.ema is not None:
            self.ema.module.load_state_dict(checkpoint.judged_weights)
        self.position = msgspec.convert(checkpoint.position, Position)
        if recipe_to_plain(self.recipe)["schedule"] == checkpoint.recipe["schedule"]:
            self.optimizer.load_state_dict(checkpoint.optimizer)
            self.scheduler.load_state_dict(checkpoint.scheduler)
        else:
            load_moments(self.optimizer, checkpoint.optimizer)
            fast_forward(self.scheduler, self.position.step)
        self.scaler.load_state_dict(checkpoint.scaler)
        self._log.write("resume", checkpoint=str(path), **checkpoint.position)
        self._say(f"resumed from {path}: epoch {self.position.epoch + 1}, {self.position.pictures} pictures done")

    def run(self, max_steps: int | None = None) -> Position:
        """Trains to the end of the recipe, or for at most `max_steps` more optimizer steps.

        Returns:
            How far the run has come.

        Raises:
            Diverged: The loss or the weights are no longer numbers; the last checkpoint still stands.
        """
        schedule = self.recipe.schedule
        stop_at = self.position.step + max_steps if max_steps is not None else None
        self._log.write("start", recipe=recipe_to_plain(self.recipe), device=str(self.device), step=self.position.step)
        with self._progress() as progress:
            while self.position.epoch < schedule.epochs and self.position.step != stop_at:
                self._run_epoch(progress, stop_at)
        self._log.write("end", **msgspec.to_builtins(self.position))
        return self.position

    def close(self) -> None:
        """Closes the run's log."""
        self._log.close()

    def validate(self) -> Validation:
        """Judges the weights that would be exported on the validation split, as they would be served."""
        network = self.ema.module if self.ema is not None else self.network
        rows = self.manifest.rows_of("validation")
        loader = judged_loader(self.manifest, rows, input_spec(self.recipe), self.recipe.data)
        logits, labels = predict(loader, torch_runner(network, self.device, self._amp_dtype))
        loss = float(cross_entropy(torch.from_numpy(logits), torch.from_numpy(labels)))
        top1, top5 = (int(top_k_hits(logits, labels, k).sum()) for k in (1, 5))
        return Validation(share(top1, len(labels)), share(top5, len(labels)), loss)

    def checkpoint(self) -> Checkpoint:
        """The run as it stands now."""
        return Checkpoint(
            architecture=self.network.architecture,
            network=self.network.state_dict(),
            ema=self.ema.module.state_dict() if self.ema is not None else None,
            optimizer=self.optimizer.state_dict(),
            scheduler=self.scheduler.state_dict(),
            scaler=self.scaler.state_dict(),
            position=msgspec.to_builtins(self.position),
            recipe=recipe_to_plain(self.recipe),
            output_keys=list(self.manifest.taxonomy.output_keys),
            manifest_sha256=self.manifest.sha256,
            git_commit=current_commit(),
            trained_on=device_in_words(self.device),
        )

    def _run_epoch(self, progress: Progress, stop_at: int | None) -> None:
        epoch, first = self.position.epoch, self._first_batch()
        pictures = self.recipe.pictures
        self._batches.epoch, self._batches.first_picture = epoch, self.position.pictures
        self._batches.side_px = side_at_epoch(pictures.progressive, pictures.picture_px, epoch)
        task = progress.add_task(f"epoch {epoch + 1}", total=self._num_batches, completed=first, loss="")
        started = time.perf_counter()
        self.network.train()
        for batch, (pixels, labels) in enumerate(self.loader, start=first):
            stepped = self._take(batch, pixels, labels)
            progress.advance(task)
            if stepped:
                self._after_step(batch + 1, progress, task)
                if self.position.step == stop_at and batch + 1 < self._num_batches:
                    self._read_losses(progress, task)
                    self._save(LAST)
                    return
        self._read_losses(progress, task)
        self.position = msgspec.structs.replace(self.position, epoch=epoch + 1, pictures=0)
        self._end_epoch(time.perf_counter() - started, self._num_batches - first)
        progress.remove_task(task)

    def _first_batch(self) -> int:
        """Batches of the epoch that are done.

        Raises:
            CheckpointError: The position lies inside a batch, as only another size of batch can leave it.
        """
        batch, rest = divmod(self.position.pictures, self._batches.global_batch)
        if rest:
            raise CheckpointError(
                "the checkpoint stands in the middle of a batch",
                value=f"{self.position.pictures} pictures into the epoch",
                limit=f"a multiple of {self._batches.global_batch}",
                remedy="resume with the batch size and the number of ranks that it was trained with",
            )
        return batch

    def _take(self, batch: int, pixels: Tensor, labels: Tensor) -> bool:
        """Adds one batch's gradients; moves the optimizer when the window is full. Returns whether it moved."""
        schedule, window = self.recipe.schedule, self._window(batch)
        torch.manual_seed(_step_seed(self.recipe.run.seed, self.position.step, batch))
        pixels = self._normalize(pixels.to(self.device, non_blocking=True)).contiguous(memory_format=self._format)
        labels = labels.to(self.device, non_blocking=True)
        pixels, targets = self._mix(pixels, labels, self.position.step * schedule.accumulate + window.index)
        with self._precision():
            logits = self._forward(pixels)
        loss = cross_entropy(logits.float(), targets, label_smoothing=self.recipe.loss.label_smoothing)
        torch.autograd.backward(self.scaler.scale(loss / window.size))
        self._unread.append(loss.detach())
        if window.index + 1 < window.size:
            return False
        self._move_optimizer(schedule.clip_norm)
        return True

    def _move_optimizer(self, clip_norm: float) -> None:
        if clip_norm > 0:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.scheduler.step()
        if self.ema is not None:
            self.ema.update(self.network, step=self.position.step)

    def _window(self, batch: int) -> "_Window":
        """Place of a batch in its accumulation window; the epoch's last window may be shorter."""
        accumulate = self.recipe.schedule.accumulate
        start = batch - batch % accumulate
        return _Window(batch - start, min(accumulate, self._num_batches - start))

    def _after_step(self, batch: int, progress: Progress, task: Any) -> None:
        pictures = batch * self._batches.global_batch
        self.position = msgspec.structs.replace(self.position, pictures=pictures, step=self.position.step + 1)
        run = self.recipe.run
        if self.position.step % run.log_every_steps == 0:
            self._read_losses(progress, task)
        if self.position.step % run.checkpoint_every_steps == 0 and batch < self._num_batches:
            self._read_losses(progress, task)
            self._save(LAST)

    def _read_losses(self, progress: Progress, task: Any) -> None:
        """Fetches the losses since the last reading: the one place where the host waits for the device."""
        if not self._unread:
            return
        losses = torch.stack(self._unread).tolist()
        self._unread.clear()
        self._log.write("losses", step=self.position.step, losses=losses, lr=self.scheduler.get_last_lr())
        progress.update(task, loss=f"loss {np.mean(losses):.3f}")
        if not math.isfinite(sum(losses)) and not self.scaler.is_enabled():
            raise self._diverged("the loss is no longer a number")

    def _end_epoch(self, seconds: float, num_batches: int) -> None:
        epoch, schedule = self.position.epoch, self.recipe.schedule
        speed = num_batches * schedule.batch_size / seconds
        facts: dict[str, object] = {"epoch": epoch, "seconds": round(seconds, 2), "pictures_per_s": round(speed, 1)}
        facts["side_px"] = self._batches.side_px
        told = f"epoch {epoch}/{schedule.epochs}: {seconds:.0f} s, {speed:.1f} pictures/s at {self._batches.side_px} px"
        better = False
        if epoch % self.recipe.run.validate_every_epochs == 0 or epoch == schedule.epochs:
            found = self.validate()
            better = found.top1.value > self.position.best
            facts |= {"validation": msgspec.to_builtins(found)}
            told += f", validation top-1 {found.top1.value:.1%}, top-5 {found.top5.value:.1%}"
            self.position = msgspec.structs.replace(self.position, best=max(self.position.best, found.top1.value))
        self._log.write("epoch", **facts)
        self._say(told)
        self._save(LAST)
        if better:
            self._save(BEST)

    def _diverged(self, what: str) -> Diverged:
        self._log.write("diverged", step=self.position.step)
        return Diverged(
            f"{what} at step {self.position.step} (epoch {self.position.epoch + 1}); "
            "lower the learning rates, warm up longer or set --clip-norm, then --resume."
        )

    def _save(self, name: str) -> None:
        """Writes a checkpoint, unless it would put weights that are lost in the place of good ones."""
        if not all(bool(value.isfinite().all()) for value in self.network.state_dict().values()):
            raise self._diverged("the weights are no longer numbers")
        write_checkpoint(self.recipe.run.run / name, self.checkpoint())
        self._log.write("checkpoint", file=name, **msgspec.to_builtins(self.position))

    def _precision(self) -> Any:
        if self._amp_dtype is None:
            return nullcontext()
        return torch.amp.autocast(self.device.type, dtype=self._amp_dtype)

    def _progress(self) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        return Progress(*columns, TextColumn("{task.fields[loss]}"), console=self._console)

    def _say(self, sentence: str) -> None:
        self._console.print(sentence, highlight=False)


class _Window(msgspec.Struct, frozen=True):
    """Place in an accumulation window."""

    index: int
    size: int


def _moving_average(network: PlantNetwork, decay: float) -> ModelEmaV3 | None:
    if decay == 0:
        return None
    return ModelEmaV3(network, decay=decay, use_warmup=True, warmup_power=_EMA_WARMUP_POWER)


def _step_seed(seed: int, step: int, batch: int) -> int:
    """Seed of a batch's dropout and drop path: distinct for every batch of a run."""
    return int(np.random.SeedSequence([seed, step, batch]).generate_state(1)[0])


def _require_same_run(checkpoint: Checkpoint, trainer: Trainer) -> None:
    if checkpoint.manifest_sha256 != trainer.manifest.sha256:
        raise CheckpointError(
            "the checkpoint was trained on other data",
            value=f"manifest {trainer.manifest.sha256[:12]}",
            limit=f"manifest {checkpoint.manifest_sha256[:12]}",
            remedy="restore that data, or start a new run with --weights and another --run",
        )
    if checkpoint.architecture != trainer.network.architecture:
        raise CheckpointError(
            "the checkpoint holds another network",
            value=checkpoint.architecture,
            limit=trainer.network.architecture,
            remedy="resume with the recipe that the run began with",
        )
    now, then = recipe_to_plain(trainer.recipe), checkpoint.recipe
    for section, knob in _DECIDE_BATCHES:
        if now[section][knob] != then[section][knob]:
            raise CheckpointError(
                f"the run was begun with another {knob}, which decides what each of its steps sees",
                value=now[section][knob],
                limit=str(then[section][knob]),
                remedy="resume with that, or start a new run with --weights and another --run",
            )
