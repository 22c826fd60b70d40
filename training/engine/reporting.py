"""What a run tells: its plan before the first step, its log, and how long the rest takes.

On a terminal the progress is a bar, in a log file a plain line a minute.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import msgspec
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from models.program import duration_in_words
from training.dataset.manifest import Manifest
from training.engine.checkpoint import Position
from training.engine.device import cpu_warnings, describe_device
from training.engine.step import Engine
from training.engine.validation import Validation
from training.monitor.log import RunLog
from training.monitor.monitor import Bottleneck, EpochTiming
from training.recipe import NEGATIVES_SHARE, Recipe, sides_of_epochs

_MIN_ADVICE_S: Final = 5  # advice on a shorter epoch would be noise; the log has it anyway
_LINE_EVERY_S: Final = 60.0
_GB: Final = 1e9


def describe_run(engine: Engine, manifest: Manifest, steps_per_epoch: int, global_batch: int) -> list[str]:
    """The device, the data and the steps of a run, a line each; `global_batch` is a micro-batch on all ranks."""
    schedule = engine.recipe.schedule
    classes = len(manifest.taxonomy.outputs)
    train, validation = (len(manifest.rows_of(split)) for split in ("train", "validation"))
    pictures = global_batch * schedule.accumulate
    few = "; there are fewer: lower --batch-size" if train < pictures else ""
    all_steps = schedule.epochs * steps_per_epoch
    sides = sides_of_epochs(engine.recipe)
    side = f"{min(sides)}" if min(sides) == max(sides) else f"{min(sides)} to {max(sides)}"
    names = {None: "float32", torch.float16: "fp16", torch.bfloat16: "bf16"}
    device = f"{describe_device(engine.device)}, {names[engine.amp_dtype]}"
    if engine.ranks.is_distributed:
        device = f"{engine.ranks.num_ranks} ranks, each on {device}"
    if engine.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(engine.device)
        device += f"; {free / _GB:.1f} of {total / _GB:.1f} GB of its memory are free"
    return [
        f"device: {device}",
        f"data: {train:,} training and {validation:,} validation pictures of {classes:,} classes",
        f"steps: {schedule.epochs:,} epochs of {steps_per_epoch:,} steps, {all_steps:,} in all; "
        f"a step takes {pictures:,} pictures of {side} px{few}",
    ]


def notes_of_run(engine: Engine) -> Iterator[str]:
    """Yields what a user may not expect of a run: its device, BatchNorm, pictures of no class."""
    recipe = engine.recipe
    device = engine.device
    num_ranks = engine.ranks.num_ranks
    yield from (f"warning: {warning}" for warning in cpu_warnings(recipe.hardware, device))
    yield engine.norms.explanation
    if num_ranks > 1:
        schedule = recipe.schedule
        factor = math.sqrt(num_ranks)
        rates = f"{factor * schedule.backbone_lr:.3g} for the backbone and {factor * schedule.head_lr:.3g} for the head"
        rule = f"the recipe's times the square root of {num_ranks} ranks (Malladi et al. 2022), {rates}"
        if schedule.scale_lr:
            yield f"learning rates: {rule}"
        else:
            yield f"learning rates: the recipe's, for {num_ranks} times its pictures a step; --scale-lr takes {rule}"
    for each in engine.inputs.others:
        if added := each.of_batch(NEGATIVES_SHARE, recipe.schedule.batch_size):
            yield f"{each.description}: {added} are added to each batch of plants"


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


class RunProgress:
    """Shows how far a run is and how long the rest takes.

    A batch lasts in proportion to the area of its pictures. The time left is in proportion to the work left, from all
    that this process has done since its first batch, with validations and waits.
    """

    def __init__(self, recipe: Recipe, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._works = [float(side**2) for side in sides_of_epochs(recipe)]  # of a batch of each epoch
        self._bar: Progress | None = None
        # FORCE_COLOR makes rich take a file for a terminal.
        if console.file.isatty() and not console.is_dumb_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, TextColumn("{task.fields[text]}"), console=console)
        self._task = TaskID(0)
        self._epoch = self._num_batches = self._num_done = self._epoch_taken = self._global_batch = 0
        self._began: float | None = None  # when the first batch was done: loaders start and kernels are compiled before
        self._epoch_began = self._written = clock()
        self._work_done = 0.0
        self._learned = ""

    def shown(self) -> AbstractContextManager[object]:
        """Shows the progress for the length of a block."""
        return self._bar or nullcontext()

    def begin_epoch(self, epoch: int, num_batches: int, num_done: int, global_batch: int) -> None:
        """Starts an epoch, numbered from 1, of which some batches may be done."""
        self._epoch = epoch
        self._num_batches = num_batches
        self._num_done = num_done
        self._global_batch = global_batch
        self._epoch_taken = 0
        self._learned = ""
        if self._bar is not None:
            self._task = self._bar.add_task(f"epoch {epoch}", total=num_batches, completed=num_done, text="")

    def learned(self, loss: float, waiting: float) -> None:
        """Takes the mean loss since the last reading, and the share of time spent waiting for pictures."""
        self._learned = f"loss {loss:.3f}, {waiting:.0%} waiting"

    def advance(self) -> None:
        """Counts a batch; moves the bar on, or writes the line if a minute has passed."""
        now = self._clock()
        self._num_done += 1
        self._epoch_taken += 1
        if self._epoch_taken == 1:
            self._epoch_began = now
        if self._began is None:
            self._began = now
        else:
            self._work_done += self._works[self._epoch - 1]
        if self._bar is not None:
            left = f"{duration_in_words(self.left_s(now))} left in all" if self._work_done else ""
            self._bar.update(self._task, advance=1, text=", ".join(filter(None, (left, self._learned))))
        elif now - self._written >= _LINE_EVERY_S and self._epoch_taken > 1:
            self._written = now
            speed = (self._epoch_taken - 1) * self._global_batch / (now - self._epoch_began)
            facts = [
                f"epoch {self._epoch}/{len(self._works)}: {self._num_done:,} of {self._num_batches:,} batches",
                f"{speed:.1f} pictures/s",
                self._learned,
            ]
            line = f"{', '.join(filter(None, facts))}; {duration_in_words(self.left_s(now))} left of the run"
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def left_s(self, now: float) -> float:
        """Seconds until the run ends; 0 before there is a second batch."""
        if self._began is None or not self._work_done:
            return 0.0
        of_epoch = (self._num_batches - self._num_done) * self._works[self._epoch - 1]
        later = self._num_batches * sum(self._works[self._epoch :])
        return (of_epoch + later) * (now - self._began) / self._work_done


class Reporter:
    """Writes a run's events to its log, and shows the same in short on the console. Silent on all but the main rank."""

    def __init__(self, recipe: Recipe, *, is_main: bool) -> None:
        self._epochs = recipe.schedule.epochs
        self._log = RunLog(recipe.run.run if is_main else None)
        self._console = Console(stderr=True, quiet=not is_main)
        self.progress = RunProgress(recipe, self._console)
        self._notes: set[str] = set()

    def event(self, name: str, *said: str, **fields: object) -> None:
        """Logs an event, and prints sentences about it."""
        self._log.write(name, **fields)
        for sentence in said:
            self._console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    def at(self, name: str, position: Position, *said: str, **fields: object) -> None:
        """The same for an event at a position, which it holds."""
        self.event(name, *said, **fields, **msgspec.to_builtins(position))

    def note(self, sentence: str) -> None:
        """Prints and logs a sentence, once in a run."""
        if sentence not in self._notes:
            self._notes.add(sentence)
            self.event("note", sentence, note=sentence)

    def end_epoch(self, summary: EpochSummary, validation: Validation | None) -> None:
        """Logs and prints the figures of an epoch, and its validation if there was one."""
        found = {} if validation is None else {"validation": msgspec.to_builtins(validation)}
        line = (
            f"epoch {summary.epoch}/{self._epochs}: {summary.seconds:.0f} s, "
            f"{summary.pictures_per_s:.1f} pictures/s at {summary.side_px} px"
        )
        if summary.memory_gb is not None:
            line += f", at most {summary.memory_gb:.1f} GB of GPU memory"
        if validation is not None:
            line += f", validation top-1 {validation.top1.value:.1%}, top-5 {validation.top5.value:.1%}"
            if validation.plants_told is not None:
                line += f", {validation.plants_told.value:.1%} taken for plants"
        if summary.seconds >= _MIN_ADVICE_S:
            line += f"; {summary.verdict}"
        self.event("epoch", line, **msgspec.to_builtins(summary), **found)

    def close(self) -> None:
        """Closes the log."""
        self._log.close()
