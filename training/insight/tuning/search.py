"""Searches the smallest batch size that is nearly as fast as the fastest: powers of two, then multiples of 8.

Only a size that was measured is returned.
"""

from collections.abc import Callable
from typing import Final

from models.errors import BotanifyError
from training.insight.tuning.setting import Trial

NEAR: Final = 0.03
"""Relative difference below which two speeds count as equal."""
_START: Final = 8
_STEP: Final = 8  # tensor cores are fastest at multiples of 8
_FLAT_DOUBLINGS: Final = 2  # a single one may be chance
_CRASHES: Final = 2  # in a row, after which the search stops growing
_FIRST_CRASHES: Final = 4  # the same before any size ran


class NothingRan(BotanifyError):
    """No batch size could be measured."""

    code = "nothing_ran"


class BatchSearch:
    """One search.

    Args:
        measure: Measures a batch size.
        largest: The largest batch size to try.
    """

    def __init__(self, measure: Callable[[int], Trial], largest: int) -> None:
        self._measure, self._largest = measure, max(largest, 1)
        self._tried: dict[int, Trial] = {}

    def run(self) -> Trial:
        """Returns the trial of the smallest batch within 3 % of the fastest and within the memory limit.

        Raises:
            NothingRan: No batch size could be measured.
        """
        start = min(_START, _power_of_two(self._largest))
        too_large = self._grow(start)
        self._shrink(start)
        if not self._running():
            trials = self.trials
            raise NothingRan(
                f"no batch size could be measured; a batch of {trials[0].setting.batch_size}: {trials[0].outcome}"
                + (f" ({trials[0].note})." if trials[0].note else ".")
            )
        self._look_above(too_large)
        self._look_below()
        return smallest_near_fastest(self.trials)

    @property
    def trials(self) -> list[Trial]:
        """All trials so far, by batch size."""
        return [self._tried[size] for size in sorted(self._tried)]

    def _try(self, size: int) -> Trial:
        if size not in self._tried:
            self._tried[size] = self._measure(size)
        return self._tried[size]

    def _running(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.fits]

    def _fastest(self) -> float:
        return max((trial.pictures_per_s for trial in self._running()), default=0.0)

    def _grow(self, size: int) -> int:
        """Doubles the size until it fails or is no longer faster; returns the size that must not be reached."""
        flat = crashes = 0
        while size <= self._largest:
            before = self._fastest()
            trial = self._try(size)
            if trial.outcome == "crashed":
                crashes += 1
            elif not trial.fits:
                return size
            else:
                crashes, flat = 0, 0 if trial.pictures_per_s > before * (1 + NEAR) else flat + 1
            if flat == _FLAT_DOUBLINGS or crashes == (_CRASHES if self._running() else _FIRST_CRASHES):
                return size
            size *= 2
        return self._largest + 1

    def _shrink(self, size: int) -> None:
        """Halves the size until that is slower, or until a size fits."""
        while size > 1:
            size //= 2
            trial = self._try(size)
            if trial.fits and trial.pictures_per_s < self._fastest() * (1 - NEAR):
                return

    def _look_above(self, too_large: int) -> None:
        """Tries sizes between the largest that fits and the one that does not, if memory ended the growth."""
        low = self._running()[-1]
        if low.pictures_per_s < self._fastest() or low.setting.batch_size >= too_large:
            return
        size, step = low.setting.batch_size, _quarter(low.setting.batch_size)
        high = min(too_large, 2 * size)
        while (between := _middle(size, high, step)) is not None:
            size, high = (between, high) if self._try(between).fits else (size, between)

    def _look_below(self) -> None:
        """Tries sizes between the chosen one and the next smaller one, which was too slow."""
        chosen = smallest_near_fastest(self.trials).setting.batch_size
        low = max((size for size in self._tried if size < chosen), default=chosen)
        step = _quarter(low)
        while (between := _middle(low, chosen, step)) is not None:
            trial = self._try(between)
            near = trial.fits and trial.pictures_per_s >= self._fastest() * (1 - NEAR)
            low, chosen = (low, between) if near else (between, chosen)


def smallest_near_fastest(trials: list[Trial]) -> Trial:
    """Of the trials that fit, the smallest batch within 3 % of the fastest."""
    running = [trial for trial in trials if trial.fits]
    enough = max(trial.pictures_per_s for trial in running) * (1 - NEAR)
    return min(
        (trial for trial in running if trial.pictures_per_s >= enough), key=lambda trial: trial.setting.batch_size
    )


def _power_of_two(limit: int) -> int:
    """The largest power of two up to a limit."""
    return 1 << (limit.bit_length() - 1)


def _quarter(size: int) -> int:
    """A quarter of a size, rounded down to a multiple of 8, at least 8."""
    return max(size // 4 // _STEP * _STEP, _STEP)


def _middle(low: int, high: int, step: int) -> int | None:
    """A multiple of `step` about half-way between two sizes, or None if there is none."""
    first, last = low // step + 1, (high - 1) // step
    return (first + last) // 2 * step if first <= last else None
