"""What a run writes to its log and shows on the console."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from rich.console import Console

from training.engine.checkpoint import Position
from training.engine.distributed import launch_id
from training.engine.progress import RunProgress
from training.engine.step import Readings
from training.engine.validation import Validation
from training.monitor.bottleneck import Bottleneck, EpochTiming
from training.monitor.log import open_log
from training.recipe import Recipe, recipe_to_plain

_MIN_ADVICE_S: Final = 5  # advice on a shorter epoch would be noise; the log has it anyway


class EpochSummary(msgspec.Struct, frozen=True):
    """An epoch, or the part of it that this process trained; the fields of its log event."""

    epoch: int
    """Its number, from 1."""
    step: int
    """Optimizer steps since the run began."""
    seconds: float
    pictures_per_s: float
    side_px: int
    memory_gb: float | None
    """Peak GPU memory; None on a CPU."""
    bad_steps: int
    """Steps skipped so far because a gradient was not finite."""
    use: EpochTiming
    verdict: Bottleneck


class Reporter:
    """Writes a run's events to its log, and shows the same in short on the console. Silent on all but the main rank.

    Args:
        recipe: Names the run's folder; it is logged at the start.
        is_main: Whether this is the main rank.
    """

    def __init__(self, recipe: Recipe, *, is_main: bool) -> None:
        self._recipe = recipe
        self._log = open_log(recipe.run, is_main=is_main)
        self._console = Console(stderr=True, quiet=not is_main)
        self._progress = RunProgress(recipe, self._console)
        self._notes: set[str] = set()

    def started(self, step: int, device: str, plan: Sequence[str]) -> None:
        """Logs the recipe and the device at the start of training, and prints the lines of `describe_run`."""
        plain = recipe_to_plain(self._recipe)
        self._log.write("start", recipe=plain, device=device, plan=plan, step=step, launch=launch_id())
        for line in plan:
            self._print(line)

    def resumed(self, path: Path, position: Position) -> None:
        """Logs and prints where the run continues."""
        self._log.write("resume", checkpoint=str(path), **msgspec.to_builtins(position))
        self._print(f"resumed from {path}: epoch {position.epoch + 1}, {position.pictures} pictures done")

    def interrupted(self, position: Position) -> None:
        """Logs and prints that the run stops because of a signal."""
        self._log.write("interrupted", **msgspec.to_builtins(position))
        self._print(f"stopped after step {position.step} with a checkpoint; --resume continues the run")

    def ended(self, position: Position) -> None:
        """Logs that the run is complete or has reached a limit."""
        self._log.write("end", **msgspec.to_builtins(position))

    def progress(self, most_steps: int | None, most_seconds: float | None) -> AbstractContextManager[None]:
        """Shows the progress for the length of the block; the limits are those of this process."""
        return self._progress.shown(most_steps, most_seconds)

    def begin_epoch(self, epoch: int, *, num_batches: int, num_done: int, global_batch: int) -> None:
        """Starts the progress of an epoch, of which some batches may be done."""
        self._progress.begin_epoch(epoch, num_batches=num_batches, num_done=num_done, global_batch=global_batch)

    def advance(self) -> None:
        """Moves the progress on by a batch."""
        self._progress.advance()

    def losses(self, step: int, losses: list[float], learning_rates: list[float], readings: Readings) -> None:
        """Logs the losses since the last reading.

        Args:
            step: Optimizer steps since the run began.
            losses: The mean over the ranks for each micro-batch.
            learning_rates: The rate of each parameter group.
            readings: The other values that were read from the device.
        """
        self._log.write(
            "losses",
            step=step,
            losses=losses,
            lr=learning_rates,
            gradient_norms=readings.gradient_norms,
            bad_steps=readings.bad_steps,
            scale=readings.scale,
        )

    def plant_output(self, step: int, figures: Sequence[float]) -> None:
        """Logs the mean loss of the plant output since the last reading, and what it told right.

        Args:
            step: Optimizer steps since the run began.
            figures: The loss, the share of plants and the share of other pictures told right, of training batches.
        """
        loss, plants_told, others_told = figures
        self._log.write("plant_output", step=step, loss=loss, plants_told=plants_told, others_told=others_told)

    def bottleneck(self, step: int, timing: EpochTiming, bottleneck: Bottleneck) -> None:
        """Logs what limits the run, in the middle of an epoch."""
        self._log.write("monitor", step=step, use=msgspec.to_builtins(timing), verdict=msgspec.to_builtins(bottleneck))

    def show_losses(self, losses: list[float], waiting: float) -> None:
        """Shows the mean loss, and the share of time spent waiting for pictures, with the progress."""
        self._progress.learned(float(np.mean(losses)), waiting)

    def end_epoch(self, summary: EpochSummary, validation: Validation | None) -> None:
        """Logs and prints the figures of an epoch, and its validation if there was one."""
        found = {} if validation is None else {"validation": msgspec.to_builtins(validation)}
        self._log.write("epoch", **msgspec.to_builtins(summary), **found)
        line = (
            f"epoch {summary.epoch}/{self._recipe.schedule.epochs}: {summary.seconds:.0f} s, "
            f"{summary.pictures_per_s:.1f} pictures/s at {summary.side_px} px"
        )
        if summary.memory_gb is not None:
            line += f", at most {summary.memory_gb:.1f} GB of GPU memory"
        if validation is not None:
            line += f", validation top-1 {validation.top1.value:.1%}, top-5 {validation.top5.value:.1%}"
            if validation.plants_told is not None:
                line += f", {validation.plants_told.value:.1%} told to be plants"
        self._print(f"{line}; {summary.verdict}" if summary.seconds >= _MIN_ADVICE_S else line)

    def checkpoint(self, position: Position, *, is_best: bool) -> None:
        """Logs that a checkpoint was written."""
        self._log.write("checkpoint", is_best=is_best, **msgspec.to_builtins(position))

    def diverged(self, step: int, problem: str, diagnosis: str) -> None:
        """Logs that gradients or weights are not finite, which ends the run."""
        self._log.write("diverged", step=step, problem=problem, diagnosis=diagnosis)

    def note(self, sentence: str) -> None:
        """Prints and logs a sentence, once in a run."""
        if sentence not in self._notes:
            self._notes.add(sentence)
            self._print(sentence)
            self._log.write("note", note=sentence)

    def close(self) -> None:
        """Closes the log."""
        self._log.close()

    def _print(self, sentence: str) -> None:
        self._console.print(sentence, highlight=False, markup=False, soft_wrap=True)
