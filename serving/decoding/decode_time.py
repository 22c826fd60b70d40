"""The processor time that the pictures of one request may take in the decoders, and the clock that measures it.

Processor time, not elapsed time: on a busy machine, or if a process is suspended, an innocent picture takes long too.
"""

import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

Clock = Callable[[], float]
"""Gives the processor time of a process, seconds."""


class DecodeTime:
    """Counts the processor time of one request. Its pictures may be decoded at the same time.

    Args:
        seconds: The limit.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._spent_s = 0.0
        self._running: list[tuple[Clock, float]] = []

    @property
    def left_s(self) -> float:
        """Seconds left, after the steps that are running too; negative if the limit is exceeded."""
        return self.seconds - self._spent_s - sum(clock() - start for clock, start in self._running)

    @property
    def lasts_s(self) -> float:
        """Seconds for which the time left suffices at least, however busy the children are."""
        return max(0.0, self.left_s) / max(1, len(self._running))

    @contextmanager
    def step(self, clock: Clock) -> Iterator[None]:
        """Counts the processor time of a process while the context lasts."""
        running = clock, clock()
        self._running.append(running)
        try:
            yield
        finally:
            self._running.remove(running)
            self._spent_s += clock() - running[1]


def processor_clock(pid: int) -> Clock:
    """Returns the processor clock of another process, see clock_getcpuclockid(3); elapsed time if there is none.

    Once the process has ended, the clock stands still.
    """
    number = ctypes.c_int()
    if sys.platform != "linux" or ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(number)):
        return time.monotonic
    return _Standing(partial(time.clock_gettime, number.value)).read


class _Standing:
    """A clock that keeps its last value once it fails."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._last_s = clock, 0.0

    def read(self) -> float:
        with suppress(OSError):  # the process has ended
            self._last_s = self._clock()
        return self._last_s
