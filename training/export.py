"""Program: exports a checkpoint to a sealed bundle.

It converts the network to ONNX, compares it with PyTorch, calibrates it, measures it on the test split, and seals the
bundle.

python training/export.py --checkpoint FILE --data DATA --out DIR [--precision fp32 fp16 int8]
"""

import sys
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from models.program import explain_missing_packages
from training.program import INSTALL, run_program

explain_missing_packages(INSTALL)

import tyro

from training.commands.export import Export


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: _run(tyro.cli(Export, description=__doc__)))


def _run(command: Export) -> None:
    from training.actions.export import export  # loads torch, for which --help does not wait

    export(command)


if __name__ == "__main__":
    main()
