"""The smallest batch that is as good as the fastest: powers of two, then multiples of 8 between them.

Nothing is returned that was not run: doubling past what fits only ends the growth.
"""

from collections.abc import Callable
from typing import Final

from models.errors import BotanifyError
from training.insight.tuning.setting import Trial

NEAR: Final = 0.03
"""Settings whose speeds differ by less, as a share of the faster one's, count as equally fast."""
_START: Final = 8
_STEP: Final = 8  # between powers of two; tensor cores like multiples of 8
_FLAT_DOUBLINGS: Final = 2  # one may be flat by chance
_CRASHES: Final = 2  # in a row: the next size would crash too
_FIRST_CRASHES: Final = 4  # before anything has run: small batches may be refused, as by ghost batches


class NothingRan(BotanifyError):
    """No batch size could be measured."""

    code = "nothing_ran"


class BatchSearch:
    """One search.

    Args:
        measure: Runs one batch size. A size that it is not asked for is never returned.
        largest: More pictures than this make no sense, as for small data.
    """

    def __init__(self, measure: Callable[[int], Trial], largest: int) -> None:
        self._measure, self._largest = measure, max(largest, 1)
        self._tried: dict[int, Trial] = {}

    def run(self) -> Trial:
        """Searches.

        Returns:
            The trial of the smallest batch within 3 % of the fastest, never above the memory limit.

        Raises:
            NothingRan: Not even a single picture runs; the last reason is given.
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
        """Every trial so far, by batch size."""
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
        """Doubles until memory or time is short or speed no longer rises; gives the size that must not be reached."""
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
        """Halves as long as that costs no speed, or until something fits."""
        while size > 1:
            size //= 2
            trial = self._try(size)
            if trial.fits and trial.pictures_per_s < self._fastest() * (1 - NEAR):
                return

    def _look_above(self, too_large: int) -> None:
        """Where memory, not speed, ended the growth: sizes between the largest that fits and the one that did not."""
        low = self._running()[-1]
        if low.pictures_per_s < self._fastest() or low.setting.batch_size >= too_large:
            return
        size, step = low.setting.batch_size, _quarter(low.setting.batch_size)
        high = min(too_large, 2 * size)
        while (between := _middle(size, high, step)) is not None:
            size, high = (between, high) if self._try(between).fits else (size, between)

    def _look_below(self) -> None:
        """Sizes between the chosen one and the next smaller one, which was too slow."""
        chosen = smallest_near_fastest(self.trials).setting.batch_size
        low = max((size for size in self._tried if size < chosen), default=chosen)
        step = _quarter(low)
        while (between := _middle(low, chosen, step)) is not None:
            trial = self._try(between)
            near = trial.fits and trial.pictures_per_s >= self._fastest() * (1 - NEAR)
            low, chosen = (low, between) if near else (between, chosen)


def smallest_near_fastest(trials: list[Trial]) -> Trial:
    """The smallest batch that fits and is within 3 % of the fastest that fits."""
    running = [trial for trial in trials if trial.fits]
    enough = max(trial.pictures_per_s for trial in running) * (1 - NEAR)
    return min(
        (trial for trial in running if trial.pictures_per_s >= enough), key=lambda trial: trial.setting.batch_size
    )


def _power_of_two(limit: int) -> int:
    """The largest power of two up to a limit."""
    return 1 << (limit.bit_length() - 1)


def _quarter(size: int) -> int:
    """A quarter of the way from a size to its double, in whole steps."""
    return max(size // 4 // _STEP * _STEP, _STEP)


def _middle(low: int, high: int, step: int) -> int | None:
    """A multiple of the step about half-way between two sizes, or None if there is none between them."""
    first, last = low // step + 1, (high - 1) // step
    return (first + last) // 2 * step if first <= last else None
