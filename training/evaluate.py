"""Program: measures the accuracy of a checkpoint or a bundle on a split, and how often the two agree.

python training/evaluate.py --data DATA --bundle DIR [--checkpoint FILE] [--negatives DIR] [--unknown DIR] [--out DIR]
"""

import sys
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from models.program import explain_missing_packages
from training.program import INSTALL, run_program

explain_missing_packages(INSTALL)

import tyro

from training.commands.evaluate import Evaluate


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: _run(tyro.cli(Evaluate, description=__doc__)))


def _run(command: Evaluate) -> None:
    from training.actions.evaluate import evaluate  # loads torch, for which --help does not wait

    evaluate(command)


if __name__ == "__main__":
    main()
