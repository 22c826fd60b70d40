"""Runs a program: an expected error becomes one line on standard error and a non-zero exit code."""

import sys
from collections.abc import Callable
from typing import Final, TypeVar

from models.errors import BotanifyError, without_password
from models.program import quiet_when_output_closes

EXIT_BAD_INPUT = 1
Result = TypeVar("Result")
INSTALL: Final = "run `make train-env` and `. .venv/bin/activate`"
"""The remedy for a missing package."""


def run_program(program: Callable[[], Result]) -> Result:
    """Runs a program and returns its result; an error that the user can fix becomes one line, without a traceback."""
    try:
        with quiet_when_output_closes():
            return program()
    except BotanifyError as error:
        print(f"error ({error.code}): {error}", file=sys.stderr)
        raise SystemExit(EXIT_BAD_INPUT) from None
    except OSError as error:  # a full disk, a folder that is not writable, a file where a folder should be
        print(f"error (file_system): {without_password(str(error))}", file=sys.stderr)
        raise SystemExit(EXIT_BAD_INPUT) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None
