"""How every program starts and ends: one reader of flags, one form of an error, its exit code, and words for time.

Exit codes: 1 an error that the user can fix, told in one line; 2 a flag that is unknown or cannot be read; 130 Ctrl-C;
141 nobody reads the output any more.
"""

import os
import re
import select
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, get_args, get_origin, get_type_hints

from models.errors import BotanifyError, InputError, without_password

_EXIT_INTERRUPTED: Final = 130  # 128 + SIGINT, as a shell reports it
_EXIT_ERROR: Final = 1
_EXIT_CLOSED_OUTPUT: Final = 141  # 128 + SIGPIPE: what a shell reports for a program that `head` has ended
_PROJECT: Final = Path(__file__).resolve().parents[1]
STARTED_BY_FLORA: Final = "STARTED_BY_FLORA"
"""Variable of the environment in the programs that `training/flora.py` starts, one after the other."""
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # with which a text could command the terminal


def run_program(
    command: Any, action: Callable[[Any], object], arguments: Sequence[str] | None = None, **options: Any
) -> None:
    """Runs a program: reads its flags, and passes them to its action.

    Args:
        command: The Struct of the flags, or a union of Structs, one for each subcommand.
        action: Takes the command.
        arguments: The words after the program's name; by default those of this process.
        options: Of `tyro.cli`.

    Raises:
        SystemExit: See `clear_errors`.
    """
    with clear_errors():
        action(read_flags(command, arguments, **options))


@contextmanager
def clear_errors() -> Iterator[None]:
    """Ends the program with one line on standard error, in place of a traceback, after an error that a user can fix.

    It ends without a line where the reader of its output has ended, as `head` does after ten lines.
    """
    try:
        try:
            yield
        except SystemExit:  # after --help
            sys.stdout.flush()
            raise
        except BaseException as error:
            _close_generators(error)
            raise
        sys.stdout.flush()  # the interpreter flushes at exit, where its error could not be caught
    except BotanifyError as error:
        _end(_EXIT_ERROR, f"error ({error.code}): {error}")
    except OSError as error:  # a full disk, a folder that is not writable, a file where a folder should be
        closed = [stream for stream in (1, 2) if _is_closed(stream)] if isinstance(error, BrokenPipeError) else []
        for stream in closed:  # otherwise the interpreter writes what is left, and fails again
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        if closed:
            raise SystemExit(_EXIT_CLOSED_OUTPUT) from None
        _end(_EXIT_ERROR, f"error (file_system): {without_password(str(error))}")
    except KeyboardInterrupt:
        _end(_EXIT_INTERRUPTED, "interrupted")


def _close_generators(error: BaseException | None) -> None:
    """Closes the generators that functions left behind, which the error keeps until the interpreter ends.

    From Python 3.13 on that is too late: one with a progress bar waits for its thread, which runs no more.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def end_process(code: int) -> NoReturn:
    """Ends the process without the interpreter's own exit, which aborts it (-6) while a network is opened or freed.

    The interpreter ends each daemon thread that comes back from a call, and C++ code on the stack of that thread does
    not allow it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def tell_next(what: str) -> None:
    """Prints what to do next, unless `training/flora.py` started this program: it does that itself."""
    if STARTED_BY_FLORA not in os.environ:
        sys.stdout.write(f"Next: {what}\n")


def _end(code: int, line: str) -> NoReturn:
    sys.stderr.write(f"{harmless(line)}\n")
    raise SystemExit(code) from None


def harmless(text: str) -> str:
    """Writes control characters as JSON does, in whose texts that changes nothing; tabs and line ends stay."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _is_closed(stream: int) -> bool:
    """Whether the other end of an output stream is closed."""
    poll = select.poll()
    poll.register(stream, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def explain_missing_packages(target: str) -> None:
    """Makes one line of the error that a package is not installed; call it before the first import of a package.

    Args:
        target: What to install it with, such as "make serve".
    """
    report = sys.excepthook

    def explain(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if not package or (_PROJECT / package).exists():
            report(kind, error, trace)
        else:
            remedy = f"run `{target}` once, and `. .venv/bin/activate`"
            explained = InputError(f"{sys.executable} has no package {package}", remedy=remedy)
            sys.stderr.write(f"error (missing_package): {explained}\n")

    sys.excepthook = explain


def read_flags(command: Any, arguments: Sequence[str] | None = None, **options: Any) -> Any:
    """Returns the command, a Struct or one of a union, that a command line gives; exits on --help and unknown flags.

    Args:
        command: The type.
        arguments: The words after the program's name; by default those of this process.
        options: Of `tyro.cli`.

    Raises:
        InputError: A value is out of the range in the annotation of its field, or a list is given twice.
    """
    import tyro

    words = sys.argv[1:] if arguments is None else arguments
    found = tyro.cli(command, args=_without_empty_paths(words, command), **options)
    _require_each_list_once(words, command)
    _require_ranges(found)
    return found


def _require_each_list_once(arguments: Sequence[str], command: Any) -> None:
    """Refuses a flag of several values that is given twice, of which tyro keeps the second alone."""
    given = [word.partition("=")[0].replace("_", "-") for word in arguments]
    for flag in (flag_of(name) for name, hint in _fields(command) if get_origin(hint) is tuple):
        if given.count(flag) > 1:
            raise InputError(
                f"{flag} is given more than once", limit="once, with all its values", remedy=f"write {flag} ONE TWO"
            )


def _require_ranges(record: Any) -> None:
    """Checks the ranges of a Struct and of its sections, which neither tyro nor the Struct does."""
    for name, kind in get_type_hints(type(record), include_extras=True).items():
        value = getattr(record, name)
        if hasattr(value, "__struct_fields__"):
            _require_ranges(value)
        else:
            valid(value, kind, flag_of(name))


def valid(value: Any, kind: Any, shown: str, **options: Any) -> Any:
    """Returns a value of a flag or a variable, after a check of its type and range.

    Args:
        value: The value.
        kind: The type, whose annotation may have a range.
        shown: What the error calls the value.
        options: Of `msgspec.convert`.

    Raises:
        InputError: It is of another type or out of range.
    """
    import msgspec

    try:
        return msgspec.convert(value, kind, **options)
    except msgspec.ValidationError as error:
        limit = re.match(r"Expected ([^,]+?)( - at |,|$)", str(error))
        told = f"{shown} is not valid"
        raise InputError(
            told, value=repr(value), limit=limit and limit[1].replace("`", ""), remedy="see --help"
        ) from error


def flag_of(name: str) -> str:
    """Returns the flag of a field."""
    return f"--{name.replace('_', '-')}"


def _without_empty_paths(arguments: Sequence[str], command: Any) -> list[str]:
    """Returns a command line without paths that are an empty text, such as --out "" of a script: they are not set.

    Otherwise they would name the working directory.
    """
    flags = {flag_of(name): hint for name, hint in path_fields(command)}
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
    """Yields name and type of each path among the fields of a command."""
    return ((name, hint) for name, hint in _fields(command) if Path in (hint, *get_args(hint)))


def _fields(command: Any) -> Iterator[tuple[str, Any]]:
    """Yields name and type of each field of a Struct, of its sections, or of a union of Structs."""
    for each in get_args(command) or [command]:
        for name, hint in get_type_hints(each).items():
            if hasattr(hint, "__struct_fields__"):
                yield from _fields(hint)
            else:
                yield name, hint


def duration_in_words(seconds: float) -> str:
    """Returns a length of time in its two largest units, such as "1 h 57 min"."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(minutes / 60)
    return f"{hours // 24} d {hours % 24} h"
