"""Program: identifies the plants on all photographs of a folder, and writes a table.

python -m serving.identify_folder PHOTOS --out DIR
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import tyro

from models.errors import BotanifyError
from models.program import quiet_when_output_closes

EXIT_BAD_INPUT: Final = 1


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the program, and exits with the code of its outcome.

    Args:
        arguments: Command line without the program's name; by default that of this process.
    """
    try:
        from serving.folder.command import IdentifyFolder
        from serving.folder.run import run
        from serving.logs import say_warnings
    except ModuleNotFoundError as error:
        _end(f"the package {error.name} is not installed: run `make serve` once in the clone")
    try:
        with quiet_when_output_closes():
            command = tyro.cli(IdentifyFolder, args=arguments, prog="python -m serving.identify_folder")
            say_warnings()
            outcome = run(command)
    except (BotanifyError, OSError) as error:
        _end(str(error))
    raise SystemExit(outcome)


def _end(problem: str) -> NoReturn:
    sys.stderr.write(f"botanify: {problem}\n")
    raise SystemExit(EXIT_BAD_INPUT)


if __name__ == "__main__":
    main()
