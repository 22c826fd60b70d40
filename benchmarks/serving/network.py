"""Program: writes a bundle of full size with random weights, for benchmarks without a trained network.

python benchmarks/serving/network.py [--out DIR] [--outputs 5337] [--px 380]

Speed and memory do not depend on the weights. The answers of this network mean nothing.
"""

import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import msgspec
import torch

from benchmarks.result import ROOT
from models.bundle import Bundle, seal_bundle
from models.bundle_record import BF16_FORMAT_VERSION, FORMAT_VERSION, Architecture, BundleRecord, NetworkFile, Precision
from models.network import PlantNetwork
from models.preprocess import InputSpec
from models.program import run_program
from models.taxonomy import Output, Taxon, Taxonomy
from training.fit.onnx_file import fold_batch_norm, write_fp16, write_onnx
from training.machine import current_commit

_FILE: Final = "model.fp32.onnx"
_FP16_FILE: Final = "model.fp16.onnx"
_TAXA_A_GENUS: Final = 4
_GENERA_A_FAMILY: Final = 12


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """Writes a bundle with random weights."""

    out: Path = ROOT / "runs" / "serving_b4_380"
    """Folder of the bundle; must not exist."""
    architecture: str = "efficientnet_b4"
    """Name of a timm model."""
    outputs: int = 5337
    """Width of the classifier."""
    px: int = 380
    """Side of the network input, px."""
    seed: int = 0
    """Seed of the weights."""
    fp16: bool = False
    """Also write the network in half precision, for a GPU."""
    bf16: bool = False
    """Allow bfloat16 too, which is the file of fp32."""


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(Network, write, description=__doc__)


def write(command: Network) -> Bundle:
    """Creates, converts and seals the network.

    Raises:
        BundleError: The folder exists.
    """
    torch.manual_seed(command.seed)
    network = PlantNetwork(command.architecture, command.outputs)
    # With the default, small weights all logits would be nearly equal, and rounding would decide the answers.
    torch.nn.init.normal_(network.head.get_parameter("weight"))
    num_parameters = network.num_parameters()
    spec = InputSpec(command.px, command.px, command.px, crop_fraction=0.95)
    taxonomy = make_taxonomy(command.outputs)
    _estimate_norms(network, spec)
    network.eval()
    fold_batch_norm(network, spec)
    architecture = Architecture(command.architecture, command.outputs, network.num_features, num_parameters)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / _FILE
        write_onnx(network, spec, taxonomy, path)
        files = {_FILE: path}
        if command.fp16:
            files[_FP16_FILE] = path.with_name(_FP16_FILE)
            write_fp16(path, files[_FP16_FILE])
        bundle = seal_bundle(command.out, _record(architecture, spec, taxonomy, command), taxonomy, files)
    print(f"Written: {command.out}")
    return bundle


def make_taxonomy(num_outputs: int) -> Taxonomy:
    """Made-up species, one for each output."""
    taxa = []
    for number in range(num_outputs):
        genus = number // _TAXA_A_GENUS
        names = (f"Genus{genus}", f"Family{genus // _GENERA_A_FAMILY}")
        taxa.append(Taxon(f"taxon-{number}", "species", f"Genus{genus} species{number}", *names))
    outputs = tuple(Output(f"random:{taxon.taxon_id}", "random", taxon.taxon_id) for taxon in taxa)
    return Taxonomy("random", tuple(taxa), outputs)


def _estimate_norms(network: PlantNetwork, spec: InputSpec) -> None:
    """Estimates BatchNorm's statistics from noise; with the initial ones all answers would be alike."""
    network.train()
    with torch.no_grad():
        for _ in range(8):
            network(torch.randn(4, 3, spec.height, spec.width))


def _record(architecture: Architecture, spec: InputSpec, taxonomy: Taxonomy, command: Network) -> BundleRecord:
    networks: dict[Precision, NetworkFile] = {"fp32": NetworkFile(_FILE, temperature=1.0, stored_as="float16")}
    if command.bf16:
        networks["bf16"] = networks["fp32"]
    if command.fp16:
        networks["fp16"] = NetworkFile(_FP16_FILE, temperature=1.0, stored_as="float16")
    return BundleRecord(
        format_version=BF16_FORMAT_VERSION if command.bf16 else FORMAT_VERSION,
        name=f"random_{architecture.name}_{spec.height}",
        version="0.0.0",
        architecture=architecture,
        input=spec,
        label_hash=taxonomy.label_hash,
        networks=networks,
        metrics=(),
        recipe={},
        sources=(),
        git_commit=current_commit(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        description="Random weights: for measuring speed and memory only.",
    )


if __name__ == "__main__":
    main()
