"""A polite end: SIGTERM sets a flag, and the loop looks at it where it can save.

Nothing is written inside the signal handler: it may run in the middle of anything, and a checkpoint written there can
wait for ever for a lock that the interrupted code holds.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Final, Self

EXIT_COME_BACK: Final = 75
"""EX_TEMPFAIL of sysexits.h: stopped with a checkpoint; the same command goes on. Schedulers requeue it."""


class ComeBack(SystemExit):
    """Ends the program after it was asked to stop and has saved."""

    def __init__(self) -> None:
        super().__init__(EXIT_COME_BACK)


class Interruption:
    """Notes SIGTERM for the length of a `with` block; outside the main thread it notes nothing."""

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> Self:
        self._before = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True
