"""Program: measures how many photographs a second `serving.identify_folder` answers, against simpler ways.

python benchmarks/identify_folder.py --photographs DIR [--bundle DIR] [--rounds 3] [--out FILE.json]

In each round, one after the other: our program; decode and network alone, one process per core; a loop of `curl`
against the service; a plain loop over torch and timm. Each way gets the same photographs. A rate is photographs over
the time from the first to the last answer, without the start.
"""

import multiprocessing
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import msgspec
import tyro
from rich.progress import track

from benchmarks.result import spread, table, write_result
from benchmarks.serving.flags import DEMONSTRATION, Network, network_of
from benchmarks.serving.server_config import ServerConfig
from benchmarks.serving.servers import OURS, Place, running
from models.bundle import load_bundle
from models.bundle_record import Precision
from models.errors import DataError
from training.machine import Machine, this_machine
from training.program import run_program

ROOT: Final = Path(__file__).resolve().parents[1]
_WAIT_S: Final = 600.0
_CURL_PHOTOGRAPHS: Final = 60  # one at a time takes long
Way = Literal["identify_folder", "decode and network alone", "curl, one at a time", "torch and timm"]


class FolderSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """Measures identify_folder against decode and network alone, curl, and torch with timm."""

    photographs: Path
    """Folder of JPEG files."""
    bundle: Path = DEMONSTRATION
    """Bundle whose network every way runs."""
    precision: Precision = "fp32"
    """Which of its networks; torch always runs float32."""
    number: int = 300
    """Photographs in a round; the folder's files are repeated as often as needed."""
    rounds: int = 3
    """Rounds."""
    out: Path | None = None
    """File for the result, JSON."""


class FolderSpeedResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the program."""

    machine: Machine
    measured_on: str
    network: Network
    precision: Precision
    number: int
    rounds: list[dict[Way, float]]
    """Photographs per second of each way, in each round."""

    def ratios(self, other: Way) -> list[float]:
        """Our rate as a multiple of another one, in each round."""
        return [rates["identify_folder"] / rates[other] for rates in self.rounds]


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: measure(tyro.cli(FolderSpeed, description=__doc__)))


def measure(command: FolderSpeed) -> FolderSpeedResult:
    """Measures all rounds, prints a table and, with `out`, writes the result.

    Raises:
        DataError: There are no photographs, or a way fails.
        BundleError: The bundle is missing or damaged.
    """
    bundle = load_bundle(command.bundle)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as scratch:
        folder = Path(scratch) / "photographs"
        photographs = _linked(command, folder)
        ways: Mapping[Way, Callable[[], float]] = {
            "identify_folder": lambda: _ours(command, folder, Path(scratch)),
            "decode and network alone": lambda: _alone(command, photographs),
            "curl, one at a time": lambda: _curl(command, photographs[:_CURL_PHOTOGRAPHS]),
            "torch and timm": lambda: _torch(command, photographs),
        }
        rounds = [
            {way: rate() for way, rate in ways.items()}
            for _ in track(range(command.rounds), "rounds", disable=not sys.stderr.isatty())
        ]
    result = FolderSpeedResult(
        machine=this_machine(),
        measured_on=datetime.now(UTC).date().isoformat(),
        network=network_of(bundle),
        precision=command.precision,
        number=command.number,
        rounds=rounds,
    )
    write_result(result, markdown(result), command.out)
    return result


def markdown(result: FolderSpeedResult) -> str:
    """Returns the result as Markdown."""
    rows = [
        [way, spread([rates[way] for rates in result.rounds]), spread(result.ratios(way), digits=2)]
        for way in result.rounds[0]
    ]
    head = f"{result.machine}: {result.network}; {result.number:,} photographs, {len(result.rounds)} rounds in turns."
    columns = ["way", "photographs/s", "ours as a multiple"]
    return f"{head}\n\n{table(columns, rows)}"


def _linked(command: FolderSpeed, folder: Path) -> list[Path]:
    found = sorted(command.photographs.rglob("*.jpg"))
    if not found:
        raise DataError("there are no JPEG files", value=command.photographs, remedy="name another folder")
    folder.mkdir()
    links = [folder / f"{number:06d}.jpg" for number in range(command.number)]
    for number, link in enumerate(links):
        link.symlink_to(found[number % len(found)].resolve())
    return links


def _ours(command: FolderSpeed, photographs: Path, scratch: Path) -> float:
    with tempfile.TemporaryDirectory(dir=scratch) as out:
        program = [sys.executable, "-m", "serving.identify_folder"]
        flags = ["--out", out, "--bundle", str(command.bundle), "--precision", command.precision]
        subprocess.run([*program, str(photographs), *flags], check=True, cwd=ROOT, capture_output=True)
        record = msgspec.json.decode((Path(out) / "run.json").read_bytes())
    return float(record["photographs_per_s"])


def _alone(command: FolderSpeed, photographs: Sequence[Path]) -> float:
    """One process per core decodes and runs its share; no queue, no answer, no table."""
    context = multiprocessing.get_context("spawn")
    num_cores = this_machine().num_cores
    at_once = context.Barrier(num_cores + 1, timeout=_WAIT_S)  # before the first photograph, and after the last
    shares = [list(photographs[start::num_cores]) for start in range(num_cores)]
    processes = [context.Process(target=_decode_and_run, args=(command, share, at_once)) for share in shares]
    for process in processes:
        process.start()
    try:
        at_once.wait()
        began = time.perf_counter()
        at_once.wait()
        seconds = time.perf_counter() - began
    except threading.BrokenBarrierError:
        raise DataError("decode and network alone failed", remedy="see the messages above") from None
    finally:
        for process in processes:
            process.join()
    return len(photographs) / seconds


def _decode_and_run(command: FolderSpeed, photographs: Sequence[Path], at_once: threading.Barrier) -> None:
    from models.preprocess import picture_to_input
    from serving.scheduling.networks import fixed_policy, open_networks

    bundle = load_bundle(command.bundle)
    network = open_networks(bundle, command.precision, fixed_policy(1, 1))["throughput"]
    network.run(picture_to_input(photographs[0].read_bytes(), bundle.record.input)[0][None])
    at_once.wait()
    for photograph in photographs:
        network.run(picture_to_input(photograph.read_bytes(), bundle.record.input)[0][None])
    at_once.wait()


def _curl(command: FolderSpeed, photographs: Sequence[Path]) -> float:
    place = Place(load_bundle(command.bundle), Path(), ("--precision", command.precision))
    with running(place, OURS, ServerConfig()) as server:
        url = f"http://127.0.0.1:{server.port}/identify"
        began = time.perf_counter()
        for photograph in photographs:
            subprocess.run(["curl", "-sf", "-o", "/dev/null", "-F", f"image=@{photograph}", url], check=True)
        return len(photographs) / (time.perf_counter() - began)


def _torch(command: FolderSpeed, photographs: Sequence[Path]) -> float:
    """The loop of a tutorial: PIL, torchvision's transforms, one picture at a time, all cores in the network."""
    import torch
    from PIL import Image
    from torchvision.transforms import v2

    from models.network import PlantNetwork

    record = load_bundle(command.bundle).record
    spec, architecture = record.input, record.architecture
    network = PlantNetwork(architecture.name, architecture.num_outputs).eval()
    transform = v2.Compose(
        [
            v2.Resize(round(spec.height / spec.crop_fraction), interpolation=v2.InterpolationMode.BICUBIC),
            v2.CenterCrop(spec.height),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(spec.mean, spec.std),
        ]
    )
    with torch.inference_mode():
        began = time.perf_counter()
        for photograph in photographs:
            with Image.open(photograph) as opened:
                network(transform(opened.convert("RGB"))[None]).softmax(1).topk(5)
    return len(photographs) / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
