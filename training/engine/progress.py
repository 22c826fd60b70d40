"""How far a run is and how long the rest takes: a bar on a terminal, a plain line a minute in a log file."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from training.recipe import Recipe, sides_of_epochs

_LINE_EVERY_S: Final = 60.0


class Pace:
    """Estimates the time that is left, from all batches that this process has taken.

    A batch lasts in proportion to its work. The mean time between two epochs, as for the validation, is taken to come
    again after each. The first batch of an epoch counts for neither rate nor time, since loaders start and kernels are
    compiled before it is done.

    Args:
        works: Work of a batch of each epoch of the run, in any unit.
        most_batches: Batches after which this process stops; None if only the recipe ends the run.
        most_seconds: Training time after which it stops, likewise.
    """

    def __init__(
        self, works: Sequence[float], most_batches: int | None = None, most_seconds: float | None = None
    ) -> None:
        self._works, self._most_batches, self._most_seconds = works, most_batches, most_seconds
        self._taken, self._work = 0, 0.0
        self._trained_s = 0.0
        self._between_s: list[float] = []
        self._last: float | None = None
        self.begin_epoch(0, 0, 0)

    def begin_epoch(self, epoch: int, num_batches: int, num_done: int) -> None:
        """Starts an epoch, numbered from 0, of which some batches may be done."""
        self.epoch, self.num_batches, self.num_done = epoch, num_batches, num_done
        self._since, self._measured_s = num_done + 1, 0.0

    def advance(self, now: float) -> None:
        """Counts a batch that is done at this time, in seconds."""
        self.num_done, self._taken = self.num_done + 1, self._taken + 1
        if self._last is not None:
            seconds = now - self._last
            if self.num_done > self._since:
                self._work += self._works[self.epoch]
                self._measured_s, self._trained_s = self._measured_s + seconds, self._trained_s + seconds
            else:
                self._between_s.append(seconds)
        self._last = now

    @property
    def batch_s(self) -> float:
        """Seconds of a batch of this epoch; 0 before the second one is done."""
        return self._measured_s / max(self.num_done - self._since, 1)

    def _expected_s(self, epoch: int) -> float:
        """Seconds that a batch of an epoch will take."""
        return self._works[epoch] * self._trained_s / self._work if self._work else 0.0

    @property
    def epoch_left_s(self) -> float:
        """Seconds until the last batch of the epoch is done."""
        return (self.num_batches - self.num_done) * self._expected_s(self.epoch)

    @property
    def run_left_s(self) -> float:
        """Seconds until the run ends, or this process stops at its limit."""
        later_s = self.num_batches * sum(map(self._expected_s, range(self.epoch + 1, len(self._works))))
        between_s = sum(self._between_s) / max(len(self._between_s), 1)
        left = [self.epoch_left_s + later_s + (len(self._works) - self.epoch) * between_s]
        if self._most_batches is not None:
            left.append((self._most_batches - self._taken) * self._expected_s(self.epoch))
        if self._most_seconds is not None:
            left.append(self._most_seconds - self._trained_s)
        return max(min(left), 0.0)


class RunProgress:
    """Shows a run's progress on its console.

    Args:
        recipe: The run's settings.
        console: A bar is drawn if this is a terminal.
        clock: The time, in seconds.
    """

    def __init__(self, recipe: Recipe, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._recipe, self._console, self._clock = recipe, console, clock
        self._bar = self._new_bar() if _is_terminal(console) else None
        self._task: TaskID | None = None
        self._pace = Pace(_works(recipe))
        self._global_batch, self._learned = 0, ""
        self._written = clock()

    @contextmanager
    def shown(self, most_steps: int | None = None, most_seconds: float | None = None) -> Iterator[None]:
        """Shows the progress for the length of the block.

        Args:
            most_steps: Optimizer steps after which this process stops.
            most_seconds: Training time after which it stops.
        """
        most_batches = None if most_steps is None else most_steps * self._recipe.schedule.accumulate
        self._pace = Pace(_works(self._recipe), most_batches, most_seconds)
        self._written = self._clock()
        if self._bar is None:
            yield
        else:
            with self._bar:
                yield

    def begin_epoch(self, epoch: int, *, num_batches: int, num_done: int, global_batch: int) -> None:
        """Starts an epoch, numbered from 1, of which some batches may be done."""
        self._pace.begin_epoch(epoch - 1, num_batches, num_done)
        self._global_batch, self._learned = global_batch, ""
        if self._bar is not None:
            self._task = self._bar.add_task(f"epoch {epoch}", total=num_batches, completed=num_done, text="")

    def learned(self, loss: float, waiting: float) -> None:
        """Takes the mean loss since the last reading, and the share of time spent waiting for pictures."""
        self._learned = f"loss {loss:.3f}, {waiting:.0%} waiting"

    def advance(self) -> None:
        """Counts a batch; moves the bar on, or writes the line if a minute has passed."""
        now = self._clock()
        self._pace.advance(now)
        if self._bar is not None and self._task is not None:
            left = f"{in_words(self._pace.run_left_s)} left in all" if self._pace.batch_s else ""
            self._bar.update(self._task, advance=1, text=", ".join(filter(None, (left, self._learned))))
        elif now - self._written >= _LINE_EVERY_S and self._pace.batch_s:
            self._written = now
            self._console.print(self._line(), highlight=False, markup=False, soft_wrap=True)

    def _line(self) -> str:
        pace = self._pace
        facts = [
            f"epoch {pace.epoch + 1}/{self._recipe.schedule.epochs}: {pace.num_done:,} of {pace.num_batches:,} batches",
            f"{self._global_batch / pace.batch_s:.1f} pictures/s",
            self._learned,
        ]
        left = f"{in_words(pace.epoch_left_s)} left of the epoch, {in_words(pace.run_left_s)} of the run"
        return f"{', '.join(filter(None, facts))}; {left}"

    def _new_bar(self) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        return Progress(*columns, TextColumn("{task.fields[text]}"), console=self._console)


def in_words(seconds: float) -> str:
    """A length of time in its two largest units, such as "1 h 57 min"."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(minutes / 60)
    return f"{hours // 24} d {hours % 24} h"


def _is_terminal(console: Console) -> bool:
    """Whether a bar can be drawn; FORCE_COLOR makes rich take a file for a terminal."""
    return console.file.isatty() and not console.is_dumb_terminal


def _works(recipe: Recipe) -> list[float]:
    """Work of a batch of each epoch: the area of its pictures."""
    return [float(side**2) for side in sides_of_epochs(recipe)]
