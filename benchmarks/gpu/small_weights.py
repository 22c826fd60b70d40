"""Program: writes the weights of a checkpoint without the classifier and in half precision.

python benchmarks/gpu/small_weights.py CHECKPOINT --out FILE.safetensors

For `train.py --weights FILE` on other classes, where the classifier starts at random. A checkpoint of EfficientNet-B4
with 5,337 outputs takes over 400 MB with the optimizer's state and the moving average; this file takes 35 MB. The
parameters and statistics of BatchNorm keep single precision, since a variance may exceed the range of fp16.
"""

import sys
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import msgspec
import tyro
from safetensors.torch import save
from torch import Tensor

from models.atomic_file import write_bytes
from models.network import PlantNetwork
from models.program import run_program
from training.engine.checkpoint import read_checkpoint


class SmallWeights(msgspec.Struct, frozen=True, kw_only=True):
    """Writes the weights of a checkpoint without the classifier and in half precision."""

    checkpoint: tyro.conf.Positional[Path]
    """A checkpoint of training/train.py; its validated weights are written."""
    out: Path
    """Safetensors file."""


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(SmallWeights, write_small_weights, description=__doc__)


def write_small_weights(command: SmallWeights) -> None:
    """Writes the file.

    Raises:
        CheckpointError: The checkpoint is missing or damaged.
    """
    checkpoint = read_checkpoint(command.checkpoint)
    network = PlantNetwork(checkpoint.architecture, len(checkpoint.output_keys))
    network.load_state_dict(checkpoint.eval_weights)
    classifier = {parameter.data_ptr() for parameter in network.head.parameters()}
    kept = {name: _halved(value) for name, value in network.state_dict().items() if value.data_ptr() not in classifier}
    write_bytes(command.out, save(kept))
    print(f"Written: {command.out} ({command.out.stat().st_size / 1e6:.1f} MB)")


def _halved(value: Tensor) -> Tensor:
    return value.half().contiguous() if value.ndim > 1 else value.contiguous()


if __name__ == "__main__":
    main()
