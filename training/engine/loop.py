"""The training loop: epochs of optimizer steps, validations, and every way in which a run ends.

All randomness of a step is a function of (seed, step), so a resumed run takes the same steps as an uninterrupted one.
Losses stay on the device and are read every few steps, so the host rarely waits for the device.
"""

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from models.errors import BotanifyError
from models.network import PlantNetwork
from training.dataset.manifest import Manifest
from training.engine.checkpoint import Position
from training.engine.checkpointing import Checkpointer
from training.engine.device import Ranks, launch_id
from training.engine.losses import training_classes
from training.engine.reporting import EpochSummary, Reporter, describe_run, notes_of_run
from training.engine.step import Engine
from training.engine.stop_signal import Stopped, StopReason, StopSignal
from training.engine.validation import validate
from training.loading.data import training_loader
from training.loading.negatives import RunInput, num_plants
from training.monitor.memory import (
    OutOfMemory,
    is_out_of_memory,
    largest_fitting_batch,
    out_of_memory,
    peak_memory_gb,
)
from training.monitor.monitor import Monitor, find_bottleneck
from training.recipe import recipe_to_store, side_at_epoch

MAX_BAD_STEPS: Final = 25
"""Steps in a row that may be skipped because a gradient is not finite; one more ends the run."""


class Diverged(BotanifyError):
    """The gradients or the weights are not finite."""

    code = "diverged"


class Trainer:
    """One training run.

    Raises:
        DataError: The data has no training or no validation pictures.
    """

    def __init__(
        self,
        inputs: RunInput,
        manifest: Manifest,
        network: PlantNetwork,
        device: torch.device,
        ranks: Ranks | None = None,
    ) -> None:
        recipe = inputs.recipe
        self.recipe, self.manifest, self.device, self.ranks = recipe, manifest, device, ranks or Ranks()
        self.loader, self._batches = training_loader(
            manifest, inputs, pin=device.type == "cuda", rank=self.ranks.rank, num_ranks=self.ranks.num_ranks
        )
        self._num_batches = len(self._batches)  # of a whole epoch
        self._steps_per_epoch = math.ceil(self._num_batches / recipe.schedule.accumulate)
        manifest.rows_of("validation")  # raises now if there are none, not after the first epoch
        self.monitor = Monitor(device)
        self.engine = Engine(
            inputs,
            network,
            device,
            training_classes(manifest, recipe),
            steps_per_epoch=self._steps_per_epoch,
            ranks=self.ranks,
            clock=self.monitor.clock,
        )
        self.checkpoints = Checkpointer(self.engine, manifest, self._batches.global_batch)
        self.reporter = Reporter(recipe, is_main=self.ranks.is_main)
        self.position = Position()
        self._last_batch: Tensor | None = None
        self._stop_at = self._stop_after_s = math.inf  # the optimizer step and the training time at which the run stops
        self._signal = StopSignal()
        for note in notes_of_run(self.engine):
            self.reporter.note(note)

    def resume(self) -> None:
        """Continues from the newest readable checkpoint of the run.

        Raises:
            CheckpointError: There is no checkpoint, or the run cannot continue from it with this recipe and this data.
        """
        path, self.position, damaged = self.checkpoints.restore()
        for error in damaged:
            self.reporter.note(f"{error} Trying the checkpoint before it.")
        self.reporter.at(
            "resume",
            self.position,
            f"resumed from {path}: epoch {self.position.epoch + 1}, {self.position.pictures} pictures done",
            checkpoint=str(path),
        )

    def run(self, max_steps: float = math.inf, max_seconds: float = math.inf) -> Position:
        """Trains to the end of the recipe, or until a limit is reached.

        `max_steps` are further optimizer steps. `max_seconds` is the time that the run has trained since it began, not
        counting validations. The run then stops with a checkpoint, and at the time limit with a validation, too.

        Raises:
            Diverged: Too many steps in a row had gradients that are not finite. The last checkpoint is unchanged.
            OutOfMemory: The device has too little memory for a step.
            Stopped: The process received SIGTERM or Ctrl-C, and a checkpoint was written.
        """
        plan = describe_run(self.engine, self.manifest, self._steps_per_epoch, self._batches.global_batch)
        self.reporter.event(
            "start",
            *plan,
            recipe=recipe_to_store(self.recipe),
            device=str(self.device),
            plan=plan,
            step=self.position.step,
            launch=launch_id(),
        )
        reason = StopReason.NONE
        self._stop_at = self.position.step + max_steps
        self._stop_after_s = max_seconds
        if self.position.seconds >= self._stop_after_s and self.position.validated == self.position.step:
            reason = StopReason.TIME_LIMIT  # the run has ended before, with its validation
        with self.reporter.progress.shown(), self._signal:
            while not reason and self.position.epoch < self.recipe.schedule.epochs:
                reason = self._run_epoch()
        if reason.is_signal:
            told = f"stopped after step {self.position.step} with a checkpoint; --resume continues the run"
            self.reporter.at("interrupted", self.position, told)
            raise Stopped(int(reason))
        self.reporter.at("end", self.position)
        return self.position

    def close(self) -> None:
        """Ends the monitor's thread and closes the log."""
        self.monitor.sampler.close()
        self.reporter.close()

    def _run_epoch(self) -> StopReason:
        """Takes the steps that are left of an epoch; an epoch that is complete is validated and counted."""
        epoch = self.position.epoch
        global_batch = self._batches.global_batch
        num_done = self.position.pictures // global_batch
        self._batches.epoch = epoch
        self._batches.first_picture = self.position.pictures
        self._batches.side_px = side_at_epoch(self.recipe.pictures, epoch)
        self.engine.train_mode()
        self.monitor.begin_epoch()
        self.reporter.progress.begin_epoch(epoch + 1, self._num_batches, num_done, global_batch)
        began = time.perf_counter()
        seconds_before = self.position.seconds
        pictures = 0
        reason = StopReason.NONE
        is_complete = True
        saves = False
        for batch, (pixels, labels) in enumerate(self._load(), start=num_done):
            stepped = self._micro_step(batch, pixels, labels)
            pictures += num_plants(labels) * self.ranks.num_ranks
            self.reporter.progress.advance()
            if not stepped:
                continue
            self.position = replace(
                self.position,
                pictures=(batch + 1) * global_batch,
                step=self.position.step + 1,
                seconds=seconds_before + time.perf_counter() - began,
            )
            is_complete = batch + 1 == self._num_batches
            reason, saves = self._agree()
            if reason:
                break
            if not is_complete and (saves or self.position.step % self.recipe.run.log_every_steps == 0):
                self._read()  # the end of the epoch reads anyway
            if saves and not is_complete:
                self._save()
        self._read()
        if reason is StopReason.TIME_LIMIT or (is_complete and not reason.is_signal):
            self._end_epoch(time.perf_counter() - began, pictures, reason, is_complete=is_complete, saves=saves)
        else:
            self._save()  # no validation: it could take longer than a scheduler waits; the resumed run validates
        return reason

    def _load(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches that are left of the epoch; the time until each is loaded counts as waiting."""
        batches = iter(self.loader)
        while True:
            with self.engine.clock.stage("wait"):
                batch = next(batches, None)
            if batch is None:
                return
            self.monitor.count(batch[1])
            yield batch

    def _micro_step(self, batch: int, pixels: Tensor, labels: Tensor) -> bool:
        """Trains on a micro-batch; returns whether the optimizer stepped.

        A micro-batch is a forward pass in autocast and a backward pass of the scaled loss / window. The last one of a
        window clips the gradients and steps optimizer, learning rates and moving average: `Engine.micro_step`.

        Raises:
            OutOfMemory: The device has too little memory for the step.
        """
        accumulate = self.recipe.schedule.accumulate
        index = batch % accumulate
        window = min(accumulate, self._num_batches - batch + index)  # the epoch's last window may be shorter
        self._last_batch = pixels
        try:
            self.engine.micro_step(pixels, labels, step=self.position.step, index=index, window=window)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        else:
            return index + 1 == window
        # Outside of the except block, where the error would keep the tensors of the failed step alive.
        raise self._memory_ran_out(pixels, labels)

    def _memory_ran_out(self, pixels: Tensor, labels: Tensor) -> OutOfMemory:
        """The error for a micro-batch that did not fit; it names a smaller one that was tried and fits."""

        def dry_run(size: int) -> None:
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            kept = [*range(size), *range(batch_size, len(labels))]  # all pictures of no class
            self.engine.dry_run(pixels[kept], labels[kept])

        batch_size = num_plants(labels)
        # The other ranks take no dry run, and would wait for this one.
        fits = None if self.ranks.is_distributed else largest_fitting_batch(dry_run, batch_size)
        resumes = self.checkpoints.folder.has_checkpoint
        accumulate = self.recipe.schedule.accumulate
        return out_of_memory(batch_size, pixels.shape[-1], accumulate, fits, resumes=resumes)

    def _agree(self) -> tuple[StopReason, bool]:
        """Why the run stops after this step, and whether it saves if it does not; the same on all ranks."""
        reason = StopReason.STEP_LIMIT if self.position.step == self._stop_at else StopReason.NONE
        if self.position.seconds >= self._stop_after_s:
            reason = StopReason.TIME_LIMIT
        if self._signal.exit_code:
            reason = StopReason(self._signal.exit_code)
        largest, saves = self.ranks.maxima([reason, self.checkpoints.is_due(self.position.step)])
        return StopReason(round(largest)), saves > 0

    def _end_epoch(self, seconds: float, pictures: int, reason: StopReason, *, is_complete: bool, saves: bool) -> None:
        """Validates and saves if that is due, and reports the epoch; at the time limit it may not be complete.

        `seconds` is how long this process has trained in the epoch, and `pictures` what all ranks have trained on then.
        """
        epoch = self.position.epoch + 1
        timing = self.monitor.end_epoch()
        bad_steps = self.engine.read().bad_steps
        if problem := self.monitor.sampler.gpu_problem:
            self.reporter.note(f"GPU utilization and memory are not measured: {problem}")
        summary = EpochSummary(
            epoch=epoch,
            step=self.position.step,
            seconds=round(seconds, 2),
            pictures_per_s=round(pictures / seconds, 1),
            side_px=self._batches.side_px,
            memory_gb=peak_memory_gb(self.device),
            bad_steps=bad_steps,
            use=timing,
            verdict=find_bottleneck(timing, self.recipe.data.workers, self.device),
        )
        is_due = (
            epoch % self.recipe.run.validate_every_epochs == 0
            or epoch == self.recipe.schedule.epochs
            or reason is StopReason.TIME_LIMIT
        )
        validation = None
        is_best = False
        if is_due:
            self._save()  # a scheduler may kill a long validation, and the resumed run then begins with it
            validation = validate(self.engine, self.manifest, self.position.epoch, self._batches.side_px)
            self.position, is_best = self.position.validated_with(validation.top1.value, validation.loss)
        if is_complete:
            self.position = replace(self.position, epoch=epoch, pictures=0)
        self.reporter.end_epoch(summary, validation)
        if is_due or saves or reason:
            self._save(is_best=is_best)

    def _read(self) -> None:
        """Reads the losses since the last reading; the host waits for the device here, and nowhere else in an epoch.

        Raises:
            Diverged: Too many steps in a row were skipped.
        """
        with self.engine.clock.stage("read"):
            readings = self.engine.read()
        if not readings.losses:
            return
        step = self.position.step
        timing = self.monitor.so_far()
        losses = self.ranks.mean(readings.losses)
        groups = self.engine.optimizer.param_groups  # of each part, with and without weight decay at one rate
        self.reporter.event(
            "losses",
            step=step,
            losses=losses,
            lr={group["name"].partition(",")[0]: float(group["lr"]) for group in groups},
            gradient_norms=readings.gradient_norms,
            bad_steps=readings.bad_steps,
            scale=readings.scale,
        )
        self.reporter.progress.learned(float(np.mean(losses)), timing.waiting)
        if readings.plant_figures:
            figures = self.ranks.mean(np.mean(readings.plant_figures, axis=0).tolist())
            names = ("loss", "plants_told", "others_told")
            self.reporter.event("plant_output", step=step, **dict(zip(names, figures, strict=True)))
        if readings.bad_in_a_row > MAX_BAD_STEPS:
            raise self._diverged(f"the gradients of {readings.bad_in_a_row} steps in a row were not finite")

    def _save(self, *, is_best: bool = False) -> None:
        """Writes a checkpoint.

        Raises:
            Diverged: A weight is not finite; the last checkpoint is unchanged.
        """
        if not self.checkpoints.save(self.position, is_best=is_best):
            raise self._diverged("the weights are not finite")
        self.reporter.at("checkpoint", self.position, is_best=is_best)

    def _diverged(self, problem: str) -> Diverged:
        """The error that gradients or weights are not finite, with the layer where that begins; it is logged."""
        position = self.position
        diagnosis = "no step was taken yet"
        if self._last_batch is not None:
            diagnosis = diagnose(self.engine.network, self.engine.normalized(self._last_batch))
        self.reporter.event("diverged", step=position.step, problem=problem, diagnosis=diagnosis)
        return Diverged(
            f"{problem} at step {position.step} (epoch {position.epoch + 1}); {diagnosis}; lower the "
            "learning rates, warm up longer, set --clip-norm or train with --amp bf16, then --resume."
        )


def diagnose(network: nn.Module, pixels: Tensor) -> str:
    """Says in one sentence where the first value that is not finite appears, by a forward pass in FP32.

    `pixels` are the normalized pictures of the last step. The network is not changed.
    """
    lost = [name for name, value in network.named_parameters() if not bool(value.isfinite().all())]
    if lost:
        return f"{len(lost)} weight tensors are not finite, first {lost[0]}: resume from an earlier checkpoint"
    found: list[str] = []

    def check(name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and not bool(output.isfinite().all()):
            found.append(name)

    was_training = network.training
    network.eval()
    with ExitStack() as hooks, torch.no_grad():
        for name, module in network.named_modules():
            if next(module.children(), None) is None:
                hooks.callback(module.register_forward_hook(partial(check, name)).remove)
        network(pixels)
    network.train(was_training)
    if found:
        return f"in FP32 too, the first layer whose output is not finite is {found[0]}"
    return "in FP32 the forward pass is finite: half precision, the loss or the gradients overflow"
