"""The training loop: epochs of steps, validations, checkpoints, and every way in which a run can end.

A step's randomness is a pure function of (seed, step), so a resumed run takes the very steps that an uninterrupted one
would have taken. Losses are read every few steps, and nothing else makes the host wait for the device.
"""

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from models.errors import CheckpointError
from models.network import PlantNetwork
from training.dataset.manifest import Manifest
from training.engine.checkpoint import Checkpoint, Position, read_checkpoint
from training.engine.checkpoint_folder import CheckpointFolder
from training.engine.device import describe_device
from training.engine.distributed import Ranks, launch_id
from training.engine.losses import training_classes
from training.engine.nonfinite import Diverged, diagnose
from training.engine.optim import fast_forward, load_moments, match_memory_format
from training.engine.resume_check import require_resumable
from training.engine.step import Engine
from training.engine.stop_signal import Requeue, StopSignal
from training.engine.validation import Validation, validate
from training.loading.data import training_loader
from training.loading.sampler import side_at_epoch
from training.machine import current_commit
from training.monitor.log import open_log
from training.monitor.memory import (
    OutOfMemory,
    is_out_of_memory,
    largest_fitting_batch,
    limit_memory,
    out_of_memory,
    peak_memory_gb,
)
from training.monitor.monitor import Monitor
from training.recipe import Recipe, recipe_to_plain

_WORTH_A_VERDICT_S: Final = 5  # shorter epochs measure chance; the diary has their verdicts all the same
# Why an epoch stops before its end; with several ranks the largest reason holds for all.
_GO_ON, _ENOUGH, _TIME_IS_OUT, _ASKED_TO_STOP = range(4)


class Trainer:
    """One training run.

    Args:
        recipe: Decides everything.
        manifest: The data.
        network: Already holds its first weights.
        device: Where to train.
        ranks: Who trains together.
    """

    def __init__(
        self,
        recipe: Recipe,
        manifest: Manifest,
        network: PlantNetwork,
        device: torch.device,
        ranks: Ranks | None = None,
    ) -> None:
        self.recipe, self.manifest, self.device, self.ranks = recipe, manifest, device, ranks or Ranks()
        limit_memory(recipe.hardware.memory_gb, device)
        self.loader, self._batches = training_loader(
            manifest, recipe, pin=device.type == "cuda", rank=self.ranks.rank, num_ranks=self.ranks.num_ranks
        )
        self._num_batches = len(self._batches)  # of a whole epoch
        manifest.rows_of("validation")  # an empty one is told now, not after the first epoch
        classes = training_classes(manifest, recipe)
        packed = not manifest.place(int(manifest.rows_of("train")[0])).whole
        self.monitor = Monitor(recipe, device, packed=packed, is_distributed=self.ranks.is_distributed, note=self._note)
        self.engine = Engine(
            recipe,
            network,
            device,
            classes,
            steps_per_epoch=self.steps_per_epoch,
            ranks=self.ranks,
            clock=self.monitor.clock,
        )
        self.position = Position()
        self.checkpoints = CheckpointFolder(recipe.run.run, recipe.run.keep)
        self._log = open_log(recipe.run, is_main=self.ranks.is_main)
        self._console = Console(stderr=True, quiet=not self.ranks.is_main)
        self._current: tuple[Tensor, Tensor] | None = None
        if self.ranks.is_main:
            self.checkpoints.clear_leftovers()
        self._note(self.engine.norms.sentence)
        if recipe.hardware.cudnn_benchmark and len(_sides(recipe)) > 1 and device.type == "cuda":
            self._note("cuDNN times its kernels anew for each picture size: the first steps at a new size are slow")

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch; the last may average fewer batches."""
        return math.ceil(self._num_batches / self.recipe.schedule.accumulate)

    def resume(self) -> None:
        """Goes on from the run's newest sound checkpoint; a schedule that was changed since holds from here on.

        Raises:
            CheckpointError: There is none, it belongs to other data or another network, or batches are cut otherwise.
        """
        path, checkpoint = self._newest_checkpoint()
        require_resumable(
            checkpoint,
            self.recipe,
            manifest_sha256=self.manifest.sha256,
            num_ranks=self.ranks.num_ranks,
        )
        engine = self.engine
        engine.load(checkpoint.network, checkpoint.eval_weights, checkpoint.scaler)
        self.position = msgspec.convert(checkpoint.position, Position)
        if recipe_to_plain(self.recipe)["schedule"] == checkpoint.recipe["schedule"]:
            engine.optimizer.load_state_dict(checkpoint.optimizer)
            engine.scheduler.load_state_dict(checkpoint.scheduler)
        else:
            load_moments(engine.optimizer, checkpoint.optimizer)
            fast_forward(engine.scheduler, self.position.step)
        match_memory_format(engine.optimizer)
        self._log.write("resume", checkpoint=str(path), **checkpoint.position)
        self._say(f"resumed from {path}: epoch {self.position.epoch + 1}, {self.position.pictures} pictures done")

    def run(self, max_steps: int | None = None, max_seconds: float | None = None) -> Position:
        """Trains to the end of the recipe, or until a limit is reached.

        Args:
            max_steps: Most optimizer steps from here on; then a checkpoint is written.
            max_seconds: Most seconds of training since the run began, validations not counted; then the network is
                validated, too.

        Returns:
            How far the run has come.

        Raises:
            Diverged: Too many steps in a row had gradients that are no numbers; the last checkpoint still stands.
            OutOfMemory: The device does not hold a step.
            Requeue: The process was asked to stop, and a checkpoint was written.
        """
        stop_at = self.position.step + max_steps if max_steps is not None else None
        self._log.write(
            "start",
            recipe=recipe_to_plain(self.recipe),
            device=str(self.device),
            step=self.position.step,
            launch=launch_id(),
        )
        with self._progress() as progress, StopSignal() as signal:
            while self.position.epoch < self.recipe.schedule.epochs:
                reason = self._run_epoch(progress, _Limits(signal, stop_at, max_seconds))
                if reason == _ASKED_TO_STOP:
                    self._log.write("interrupted", **msgspec.to_builtins(self.position))
                    raise Requeue
                if reason != _GO_ON:
                    break
        self._log.write("end", **msgspec.to_builtins(self.position))
        return self.position

    def close(self) -> None:
        """Closes the run's log."""
        self.monitor.close()
        self._log.close()

    def validate(self) -> Validation:
        """Judges the weights that would be exported on the validation split, as they would be served."""
        return validate(self.engine, self.manifest, self.position.epoch, self._batches.side_px)

    def checkpoint(self) -> Checkpoint:
        """The run as it stands now."""
        engine = self.engine
        return Checkpoint(
            architecture=engine.network.architecture,
            network=engine.network.state_dict(),
            ema=engine.ema.module.state_dict() if engine.ema is not None else None,
            optimizer=engine.optimizer.state_dict(),
            scheduler=engine.scheduler.state_dict(),
            scaler=engine.scale_state(),
            position=msgspec.to_builtins(self.position),
            recipe=recipe_to_plain(self.recipe),
            output_keys=list(self.manifest.taxonomy.output_keys),
            manifest_sha256=self.manifest.sha256,
            global_batch=self._batches.global_batch,
            git_commit=current_commit(),
            trained_on=describe_device(self.device),
        )

    def _newest_checkpoint(self) -> tuple[Path, Checkpoint]:
        """The first rank chooses, since what a shared disk shows may differ, and all read the same."""
        if self.ranks.is_main:
            path, checkpoint = self.checkpoints.newest(self._note)
            self.ranks.broadcast(path)
            return path, checkpoint
        path = self.ranks.broadcast(Path())
        return path, read_checkpoint(path)

    def _run_epoch(self, progress: Progress, limits: "_Limits") -> int:
        """Takes the steps that are left of an epoch; gives the reason why it ended, `_GO_ON` after the last step."""
        first = self._begin_epoch()
        epoch = self.position.epoch
        task = progress.add_task(f"epoch {epoch + 1}", total=self._num_batches, completed=first, loss="")
        began, before, pictures = time.perf_counter(), self.position.seconds, 0
        for batch, (pixels, labels) in enumerate(self._loaded(), start=first):
            moved = self._take(batch, pixels, labels)
            pictures += len(labels) * self.ranks.num_ranks
            progress.advance(task)
            if not moved:
                continue
            self.position = msgspec.structs.replace(
                self.position,
                pictures=(batch + 1) * self._batches.global_batch,
                step=self.position.step + 1,
                seconds=before + time.perf_counter() - began,
            )
            ends = batch + 1 == self._num_batches
            self._after_step(ends, progress, task)
            reason = self._reason_to_stop(limits)
            if reason and not (ends and reason == _ENOUGH):
                self._read(progress, task)
                if reason == _TIME_IS_OUT:
                    self._judge_epoch(time.perf_counter() - began, pictures, whole=ends)
                else:
                    self._save()
                return reason
        self._read(progress, task)
        self._judge_epoch(time.perf_counter() - began, pictures, whole=True)
        progress.remove_task(task)
        return _ENOUGH if self.position.step == limits.stop_at else _GO_ON

    def _begin_epoch(self) -> int:
        """Sets the loader and the engine to where the epoch goes on; gives the batches of it that are done.

        Raises:
            CheckpointError: The position lies inside a batch, as only another size of batch can leave it.
        """
        epoch, pictures = self.position.epoch, self.recipe.pictures
        done, rest = divmod(self.position.pictures, int(self._batches.global_batch))
        if rest:
            raise CheckpointError(
                "the checkpoint stands in the middle of a batch",
                value=f"{self.position.pictures} pictures into the epoch",
                limit=f"a multiple of {self._batches.global_batch}",
                remedy="resume with the batch size and the number of ranks that it was trained with",
            )
        self._batches.epoch, self._batches.first_picture = epoch, self.position.pictures
        self._batches.side_px = side_at_epoch(pictures.progressive, pictures.picture_px, epoch)
        self.engine.head_only = epoch < self.recipe.schedule.head_only_epochs
        self.engine.train_mode()
        self.monitor.begin_epoch(head_only=self.engine.head_only)
        return done

    def _loaded(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The epoch's batches; the time until each is there is waited, not worked."""
        batches = iter(self.loader)
        while True:
            with self.engine.clock.stage("wait"):
                batch = next(batches, None)
            if batch is None:
                return
            self.monitor.keep_batch(*batch)
            yield batch

    def _take(self, batch: int, pixels: Tensor, labels: Tensor) -> bool:
        """Adds one batch's gradients, and says whether that moved the weights.

        Raises:
            OutOfMemory: The device does not hold the step.
        """
        index, window = self._place_in_window(batch)
        self._current = pixels, labels
        try:
            self.engine.take(pixels, labels, step=self.position.step, index=index, window=window)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        else:
            return index + 1 == window
        # Not above: there the error holds on to the tensors that it was about.
        raise self._out_of_memory(pixels, labels)

    def _place_in_window(self, batch: int) -> tuple[int, int]:
        """Place of a batch in its accumulation window, and the window's size: the epoch's last may be shorter."""
        accumulate = self.recipe.schedule.accumulate
        start = batch - batch % accumulate
        return batch - start, min(accumulate, self._num_batches - start)

    def _after_step(self, ends: bool, progress: Progress, task: Any) -> None:
        run, step = self.recipe.run, self.position.step
        saves = step % run.checkpoint_every_steps == 0 and not ends
        if saves or step % run.log_every_steps == 0:
            self._read(progress, task)
        if saves:
            self._save()

    def _reason_to_stop(self, limits: "_Limits") -> int:
        reason = _GO_ON
        if self.position.step == limits.stop_at:
            reason = _ENOUGH
        if limits.max_seconds is not None and self.position.seconds >= limits.max_seconds:
            reason = _TIME_IS_OUT
        if limits.signal.received:
            reason = _ASKED_TO_STOP
        return round(self.ranks.maximum(reason))

    def _read(self, progress: Progress, task: Any) -> None:
        """Fetches the losses since the last reading: the one place where the host waits for the device.

        Raises:
            Diverged: Too many steps in a row were skipped.
        """
        with self.engine.clock.stage("read"):
            found = self.engine.read()
        if not found.losses:
            return
        losses = self.ranks.mean(found.losses)
        self._log.write(
            "losses",
            step=self.position.step,
            losses=losses,
            lr=self.engine.scheduler.get_last_lr(),
            gradient_norms=found.gradient_norms,
            bad_steps=found.bad_steps,
            scale=found.scale,
        )
        progress.update(task, loss=f"loss {np.mean(losses):.3f}, {self._watch():.0%} waiting")
        if found.bad_in_a_row > self.recipe.run.max_bad_steps:
            raise self._diverged(f"{found.bad_in_a_row} steps in a row had gradients that are no numbers")

    def _watch(self) -> float:
        """The share of the epoch until now in which steps waited for pictures; tells the diary now and then."""
        use = self.monitor.so_far()
        if self.monitor.is_news():
            verdict = msgspec.to_builtins(self.monitor.bottleneck(use))
            self._log.write("monitor", step=self.position.step, use=msgspec.to_builtins(use), verdict=verdict)
        return use.waiting

    def _judge_epoch(self, seconds: float, pictures: int, *, whole: bool) -> None:
        """Ends an epoch: figures, validation if it is due, checkpoint."""
        schedule, run = self.recipe.schedule, self.recipe.run
        use = self.monitor.end_epoch()
        epoch = self.position.epoch + 1
        side_px, speed = self._batches.side_px, pictures / seconds
        facts: dict[str, object] = {
            "epoch": epoch,
            "step": self.position.step,
            "seconds": round(seconds, 2),
            "pictures_per_s": round(speed, 1),
            "side_px": side_px,
            "memory_gb": peak_memory_gb(self.device),
            "bad_steps": self.engine.read().bad_steps,
        }
        self.monitor.measure_ceiling(self.engine)
        verdict = self.monitor.bottleneck(use)
        facts |= {"use": msgspec.to_builtins(use), "verdict": msgspec.to_builtins(verdict)}
        told = f"epoch {epoch}/{schedule.epochs}: {seconds:.0f} s, {speed:.1f} pictures/s at {side_px} px"
        better = False
        if epoch % run.validate_every_epochs == 0 or epoch == schedule.epochs or not whole:
            self._save()  # a validation may take longer than a scheduler's patience
            found = self.validate()
            better = found.top1.value > self.position.best
            facts |= {"validation": msgspec.to_builtins(found)}
            told += f", validation top-1 {found.top1.value:.1%}, top-5 {found.top5.value:.1%}"
            self.position = msgspec.structs.replace(self.position, best=max(self.position.best, found.top1.value))
        if whole:
            self.position = msgspec.structs.replace(self.position, epoch=epoch, pictures=0)
        self._log.write("epoch", **facts)
        self._say(f"{told}; {verdict}" if seconds >= _WORTH_A_VERDICT_S else told)
        self._save(best=better)

    def _save(self, *, best: bool = False) -> None:
        """Writes a checkpoint, unless it would put weights that are lost in the place of good ones.

        Raises:
            Diverged: The weights are no longer numbers.
        """
        network = self.engine.network
        for module in {id(m): m for m in (network, self.engine.eval_model)}.values():
            self.ranks.mean_statistics(module)
        if not all(bool(value.isfinite().all()) for value in network.state_dict().values()):
            raise self._diverged("the weights are no longer numbers")
        if self.ranks.is_main:
            with self.engine.clock.stage("save"):
                self.checkpoints.save(self.checkpoint(), self.position.step, best=best)
            self._log.write("checkpoint", is_best=best, **msgspec.to_builtins(self.position))

    def _diverged(self, what: str) -> Diverged:
        why = "nothing was learned from yet"
        if self._current is not None:
            engine, pixels = self.engine, self.engine.normalized(self._current[0])
            why = diagnose(engine.network, pixels, engine.scaler.get_scale(), engine.amp_dtype == torch.float16)
        self._log.write("diverged", step=self.position.step, problem=what, diagnosis=why)
        return Diverged(
            f"{what} at step {self.position.step} (epoch {self.position.epoch + 1}); {why}; lower the learning rates, "
            "warm up longer, set --clip-norm or train with --amp bf16, then --resume."
        )

    def _out_of_memory(self, pixels: Tensor, labels: Tensor) -> OutOfMemory:
        def dry_run(size: int) -> None:
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            self.engine.dry_run(pixels[:size], labels[:size])

        # Other ranks do not dry_run, and norms over all ranks would wait for them.
        fits = None if self.ranks.is_distributed else largest_fitting_batch(dry_run, len(labels))
        return out_of_memory(len(labels), pixels.shape[-1], self.recipe.schedule.accumulate, fits)

    def _progress(self) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        return Progress(*columns, TextColumn("{task.fields[loss]}"), console=self._console)

    def _say(self, sentence: str) -> None:
        self._console.print(sentence, highlight=False)

    def _note(self, sentence: str) -> None:
        """Tells people, and the diary."""
        self._say(sentence)
        self._log.write("note", note=sentence)


class _Limits(msgspec.Struct, frozen=True):
    """What can end a run before its recipe does."""

    signal: StopSignal
    stop_at: int | None
    max_seconds: float | None


def _sides(recipe: Recipe) -> set[int]:
    """The picture sizes of a run, px."""
    pictures = recipe.pictures
    return {side_at_epoch(pictures.progressive, pictures.picture_px, e) for e in range(recipe.schedule.epochs)}
