"""SIGTERM as a flag that the training loop polls at points where it can save.

The signal handler writes nothing. It may run at any point, and a checkpoint written there could deadlock on a lock that
the interrupted code holds.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Final, Self

EXIT_REQUEUE: Final = 75
"""EX_TEMPFAIL of sysexits.h: the run stopped with a checkpoint; a scheduler may start the same command again."""


class Requeue(SystemExit):
    """Ends the program after SIGTERM, once the checkpoint is written."""

    def __init__(self) -> None:
        super().__init__(EXIT_REQUEUE)


class StopSignal:
    """Records SIGTERM inside a `with` block; outside the main thread it records nothing."""

    def __init__(self) -> None:
        self.received = False

    def __enter__(self) -> Self:
        self._previous = None
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._receive)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)

    def _receive(self, _number: int, _frame: FrameType | None) -> None:
        self.received = True
