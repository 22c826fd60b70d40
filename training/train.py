"""Program: trains a network by a recipe.

python training/train.py RECIPE [--flags]     RECIPE is a TOML file, or the name of one in training/recipes
"""

import sys
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from models.program import explain_missing_packages
from training.program import INSTALL, run_program

explain_missing_packages(INSTALL)

from training.commands.train import parse


def main() -> None:
    """Runs the program with the arguments of the command line."""
    command = run_program(lambda: parse(sys.argv[1:]))
    from training.actions.train import run  # loads torch, for which --help does not wait

    run(command)


if __name__ == "__main__":
    main()
