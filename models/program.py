"""How programs end that cannot start, or whose output nobody reads any more."""

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final

from models.errors import InputError

EXIT_CLOSED_OUTPUT: Final = 141  # 128 + SIGPIPE: what a shell reports for a program that `head` has ended
_PROJECT: Final = Path(__file__).resolve().parents[1]


def explain_missing_packages(remedy: str) -> None:
    """Makes one line of the error that a package is not installed; call it before the first import of a package.

    Args:
        remedy: How to install what the program needs, in the imperative.
    """
    report = sys.excepthook

    def explain(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if not package or (_PROJECT / package).exists():
            report(kind, error, trace)
        else:
            explained = InputError(f"{sys.executable} has no package {package}", remedy=remedy)
            sys.stderr.write(f"error (missing_package): {explained}\n")

    sys.excepthook = explain


@contextmanager
def quiet_when_output_closes() -> Iterator[None]:
    """Ends the program without a message when the reader of its output has ended, as `head` does after ten lines."""
    try:
        try:
            yield
        except SystemExit:  # after --help
            sys.stdout.flush()
            raise
        sys.stdout.flush()  # the interpreter flushes at exit, where its error could not be caught
    except BrokenPipeError:  # of any pipe, such as that of a decoder
        closed = [stream for stream in (1, 2) if _is_closed(stream)]
        if not closed:
            raise
        for stream in closed:  # otherwise the interpreter writes what is left, and fails again
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        raise SystemExit(EXIT_CLOSED_OUTPUT) from None


def _is_closed(stream: int) -> bool:
    """Whether the other end of an output stream is closed."""
    poll = select.poll()
    poll.register(stream, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
