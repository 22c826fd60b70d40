"""SIGTERM and Ctrl-C as a flag that the training loop polls at points where it can save.

The signal handler saves nothing. It may run at any point, and a checkpoint written there could deadlock on a lock that
the interrupted code holds.
"""

import os
import signal
import threading
import time
from contextlib import suppress
from enum import IntEnum
from types import FrameType, TracebackType
from typing import Any, Final, Self

EXIT_REQUEUE: Final = 75
"""EX_TEMPFAIL of sysexits.h: the run stopped with a checkpoint; a scheduler may start the same command again."""
EXIT_INTERRUPTED: Final = 130
"""128 + SIGINT, as in shells: a person stopped the run, so nothing should start it again."""
_SAME_INTERRUPT_S: Final = 0.5  # `timeout -s INT` and some launchers pass on a SIGINT that this process received, too
_TOLD: Final = b"\nInterrupted: the run ends after this step or validation. A second Ctrl-C ends it at once.\n"
_STDERR: Final = 2
_SHOW_CURSOR: Final = b"\x1b[?25h"  # the progress bar hides it


class Stopped(SystemExit):
    """Ends the program after SIGTERM (75) or Ctrl-C (130), once the checkpoint is written."""


class StopReason(IntEnum):
    """Why a run stops before the end of its recipe. If the ranks differ, the largest holds for all."""

    NONE = 0
    STEP_LIMIT = 1
    TIME_LIMIT = 2
    SIGTERM = EXIT_REQUEUE
    INTERRUPT = EXIT_INTERRUPTED

    @property
    def is_signal(self) -> bool:
        """Whether the program should end; the value is its exit code."""
        return self >= StopReason.SIGTERM


class StopSignal:
    """Records SIGTERM and Ctrl-C inside a `with` block; a second Ctrl-C ends the process at once.

    Outside the main thread it records nothing.
    """

    def __init__(self) -> None:
        self.exit_code = 0
        """The code that the program should end with; 0 until a signal is received."""
        self._received_at = 0.0
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = {
                number: signal.signal(number, self._receive) for number in (signal.SIGTERM, signal.SIGINT)
            }
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        is_interrupt = number == signal.SIGINT
        now = time.monotonic()
        if not self.exit_code:
            self.exit_code = EXIT_INTERRUPTED if is_interrupt else EXIT_REQUEUE
            self._received_at = now
            if is_interrupt:
                _tell(_TOLD)
        elif is_interrupt and now - self._received_at > _SAME_INTERRUPT_S:
            if os.isatty(_STDERR):
                _tell(_SHOW_CURSOR)
            os._exit(EXIT_INTERRUPTED)  # it waits for nothing; loader processes end with this one


def _tell(message: bytes) -> None:
    """Writes to standard error without a lock; a terminal that is gone must not end the run."""
    with suppress(OSError):
        os.write(_STDERR, message)
