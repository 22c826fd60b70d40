"""Program: writes a checkpoint that travels: the judged weights in half precision, and nothing to resume from.

python benchmarks/gpu/small_checkpoint.py CHECKPOINT --out FILE.pt

`export.py`, `evaluate.py` and `train.py --weights` read it as any other checkpoint. It takes an eighth of the size: of
EfficientNet-B4 with 5,337 outputs 54 MB in place of 430. One-dimensional tensors keep single precision, since a
variance of BatchNorm may exceed the range of fp16.
"""

import sys
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import msgspec
import tyro
from msgspec.structs import replace
from torch import Tensor

from models.program import run_program
from training.engine.checkpoint import read_checkpoint, write_checkpoint


class SmallCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Writes a checkpoint that travels: the weights that are judged, in half precision."""

    checkpoint: tyro.conf.Positional[Path]
    """A checkpoint of training/train.py."""
    out: Path
    """The small checkpoint. No run resumes from it."""


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(SmallCheckpoint, write_small_checkpoint, description=__doc__)


def write_small_checkpoint(command: SmallCheckpoint) -> None:
    """Writes the file.

    Raises:
        CheckpointError: The checkpoint is missing or damaged.
    """
    checkpoint = read_checkpoint(command.checkpoint)
    weights = {name: _halved(value) for name, value in checkpoint.eval_weights.items()}
    small = replace(checkpoint, network=weights, ema=None, optimizer={}, scheduler={}, scaler={})
    write_checkpoint(command.out, small)
    print(f"Written: {command.out} ({command.out.stat().st_size / 1e6:.1f} MB)")


def _halved(value: Tensor) -> Tensor:
    return value.half() if value.ndim > 1 else value


if __name__ == "__main__":
    main()
