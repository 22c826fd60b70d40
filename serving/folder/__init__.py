"""Identifies every photograph of a folder, a list or a bucket, and writes tables that can be continued."""

from enum import IntEnum


class Outcome(IntEnum):
    """Exit codes: how a run ends."""

    COMPLETE = 0
    SOME_FAILED = 3
    TOO_MANY_FAILED = 4
    INTERRUPTED = 75
