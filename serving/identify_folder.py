"""Program: identifies the plants on all photographs of a folder, and writes a table.

python -m serving.identify_folder PHOTOS --out DIR
"""

import sys
from collections.abc import Sequence

import tyro

from models.errors import BotanifyError
from serving.folder.command import IdentifyFolder
from serving.folder.run import run

EXIT_BAD_INPUT = 1


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program, and exits with the code of its outcome.

    Args:
        arguments: Command line without the program's name; by default that of this process.
    """
    try:
        outcome = run(tyro.cli(IdentifyFolder, args=arguments, prog="python -m serving.identify_folder"))
    except (BotanifyError, OSError) as error:
        sys.stderr.write(f"botanify: {error}\n")
        raise SystemExit(EXIT_BAD_INPUT) from None
    raise SystemExit(outcome)


if __name__ == "__main__":
    main()
