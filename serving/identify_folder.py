"""Program: identifies the plants on all photographs of a folder, and writes a table.

python -m serving.identify_folder PHOTOS --out DIR
"""

import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from models.program import clear_errors, end_process, explain_missing_packages, read_flags
from serving.folder import Outcome

explain_missing_packages("make serve")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the program, and exits with the code of its outcome.

    Args:
        arguments: Command line without the program's name; by default that of this process.
    """
    # A scheduler's SIGTERM is a Ctrl-C, which asyncio understands, and which a shell in the background ignores.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with clear_errors():
        try:
            from serving.folder.command import IdentifyFolder
            from serving.folder.run import run
            from serving.metrics import say_warnings

            command = read_flags(IdentifyFolder, arguments, prog="python -m serving.identify_folder")
            say_warnings()
            outcome = run(command)
        except KeyboardInterrupt:
            sys.stderr.write("interrupted; the same command continues\n")
            outcome = Outcome.INTERRUPTED
        raise SystemExit(outcome)


if __name__ == "__main__":
    try:
        main()
    except SystemExit as ended:
        end_process(int(ended.code or 0))
