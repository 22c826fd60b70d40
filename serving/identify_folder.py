"""Program: identifies the plants on all photographs of a folder, and writes a table.

python -m serving.identify_folder PHOTOS --out DIR
"""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])


from models.errors import BotanifyError, without_password
from models.program import quiet_when_output_closes, read_flags
from serving.folder import Outcome

EXIT_BAD_INPUT: Final = 1


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the program, and exits with the code of its outcome.

    Args:
        arguments: Command line without the program's name; by default that of this process.
    """
    # A scheduler's SIGTERM is a Ctrl-C, which asyncio understands, and which a shell in the background ignores.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        outcome = _run(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the same command continues\n")
        outcome = Outcome.INTERRUPTED
    except ModuleNotFoundError as error:
        _end(f"the package {error.name} is not installed: run `make serve` once in the clone")
    except (BotanifyError, OSError) as error:
        _end(without_password(str(error)))
    raise SystemExit(outcome)


def _run(arguments: Sequence[str] | None) -> Outcome:
    from serving.folder.command import IdentifyFolder
    from serving.folder.run import run
    from serving.metrics import say_warnings

    with quiet_when_output_closes():
        command = read_flags(IdentifyFolder, arguments, prog="python -m serving.identify_folder")
        say_warnings()
        return run(command)


def _end(problem: str) -> NoReturn:
    sys.stderr.write(f"botanify: {problem}\n")
    raise SystemExit(EXIT_BAD_INPUT)


if __name__ == "__main__":
    main()
