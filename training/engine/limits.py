"""What ends a run before the end of its recipe: a limit or a signal."""

from enum import IntEnum

import msgspec

from training.engine.checkpoint import Position
from training.engine.stop_signal import EXIT_INTERRUPTED, EXIT_REQUEUE, StopSignal


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


class Limits(msgspec.Struct, frozen=True):
    """The limits of a run in this process."""

    step: int | None
    """The optimizer step after which the run stops."""
    seconds: float | None
    """The training time after which the run stops."""
    signal: StopSignal

    def reason(self, position: Position) -> StopReason:
        """Whether the run stops here, and why."""
        if self.signal.received:
            return StopReason(self.signal.exit_code)
        if self.seconds is not None and position.seconds >= self.seconds:
            return StopReason.TIME_LIMIT
        return StopReason.STEP_LIMIT if position.step == self.step else StopReason.NONE
