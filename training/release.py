"""Program: compares bundles, and decides which one answers.

Commands:
  python training/release.py compare OLD NEW --data DATA            both bundles on one frozen set of pictures
  python training/release.py promote BUNDLE REGISTRY --data DATA    makes it the current bundle, if it is not worse
  python training/release.py rollback REGISTRY                      goes back to the bundle before
  python training/release.py list REGISTRY                          the bundles and the history
"""

import sys
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from models.program import explain_missing_packages
from training.program import INSTALL, run_program

explain_missing_packages(INSTALL)

import tyro

from training.commands.release import Command


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: _run(tyro.cli(Command, description=__doc__)))


def _run(command: Command) -> None:
    from training.actions.release import run  # loads torch, for which --help does not wait

    run(command)


if __name__ == "__main__":
    main()
