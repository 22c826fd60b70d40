"""How programs read their flags, and how they end that cannot start, or whose output nobody reads any more."""

import os
import select
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, get_args, get_origin, get_type_hints

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


def read_flags(command: Any, arguments: Sequence[str] | None = None, **options: Any) -> Any:
    """Returns the command, a Struct or one of a union, that a command line gives; exits on --help and unknown flags.

    Args:
        command: The type.
        arguments: The words after the program's name; by default those of this process.
        options: Of `tyro.cli`.
    """
    import tyro

    words = sys.argv[1:] if arguments is None else arguments
    return tyro.cli(command, args=without_empty_paths(words, command), **options)


def without_empty_paths(arguments: Sequence[str], command: Any) -> list[str]:
    """Returns a command line without paths that are an empty text, such as --out "" of a script: they are not set.

    Otherwise they would name the working directory.
    """
    flags = {f"--{name.replace('_', '-')}": hint for name, hint in path_fields(command)}
    kept: list[str] = []
    for word in arguments:
        before = kept[-1].replace("_", "-") if kept else ""
        if word or (before.startswith("--") and before not in flags):
            kept.append(word)
        elif before in flags and get_origin(flags[before]) is not tuple:
            kept.pop()
    return [word for word in kept if not word.endswith("=") or word[:-1].replace("_", "-") not in flags]


def read_part(text: str) -> tuple[int, int]:
    """Returns i and n of a flag `--part i/n`, by which n machines share work: i is from 0 to n - 1.

    Raises:
        InputError: It has another form.
    """
    index, _, count = text.partition("/")
    if index.isdecimal() and count.isdecimal() and int(index) < int(count):
        return int(index), int(count)
    raise InputError(
        "--part is not understood",
        value=text,
        limit="i/n with i from 0 to n - 1",
        remedy="pass --part 0/4 for instance",
    )


def path_fields(command: Any) -> Iterator[tuple[str, Any]]:
    """Yields name and type of each path among the fields of a Struct, of its sections, or of a union of Structs."""
    for each in get_args(command) or [command]:
        for name, hint in get_type_hints(each).items():
            if hasattr(hint, "__struct_fields__"):
                yield from path_fields(hint)
            elif Path in (hint, *get_args(hint)):
                yield name, hint


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
