"""Program: makes a file of first weights that is small enough to carry: no classifier, and half precision.

python benchmarks/gpu/small_weights.py CHECKPOINT --out FILE.safetensors

For `train.py --weights FILE` on other classes, where the classifier starts at random anyway. A checkpoint of
EfficientNet-B4 with 5,337 outputs has over 400 MB with its moments and its moving average; this has 35 MB. BatchNorm's
parameters and statistics keep single precision, as a variance may leave the range of half precision.
"""

import sys
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import msgspec
import tyro
from safetensors.torch import save
from torch import Tensor

from models.network import PlantNetwork
from training.atomic_file import replaced
from training.engine.checkpoint import read_checkpoint
from training.program import run_program


class SmallWeights(msgspec.Struct, frozen=True, kw_only=True):
    """Makes a file of first weights that is small enough to carry."""

    checkpoint: tyro.conf.Positional[Path]
    """A checkpoint of training/train.py; of its weights, those that are validated and exported."""
    out: Path
    """The file, safetensors."""


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: write_small_weights(tyro.cli(SmallWeights, description=__doc__)))


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
    with replaced(command.out) as stream:
        stream.write(save(kept))
    print(f"Written: {command.out} ({command.out.stat().st_size / 1e6:.1f} MB)")


def _halved(value: Tensor) -> Tensor:
    return value.half().contiguous() if value.ndim > 1 else value.contiguous()


if __name__ == "__main__":
    main()
