"""How a run ends."""

from enum import IntEnum


class Outcome(IntEnum):
    """Exit codes."""

    COMPLETE = 0
    SOME_FAILED = 3
    TOO_MANY_FAILED = 4
    INTERRUPTED = 75
