"""Program: measures the service on a GPU against the network alone.

python benchmarks/gpu/service_speed.py --bundle DIR [--provider cuda] [--precision fp16] [--out FILE.json]

The network alone runs the batch sizes of the service, in as many threads, with the same session. Then the service is
started: its first request, then requests one by one, then clients that each wait for their answer.
"""

import asyncio
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import msgspec
import numpy as np

from benchmarks.result import Measured, table, write_result
from benchmarks.serving.compare import Cell, measure_cell
from benchmarks.serving.flags import ENVIRONMENT, Network, PictureFile, network_of, picture_file
from benchmarks.serving.load import latencies_ms, one_by_one
from benchmarks.serving.photographs import Photograph, drawn, photograph
from benchmarks.serving.server_config import ServerConfig
from benchmarks.serving.servers import OURS, Place, identify, own_versions, running
from models.bundle import Bundle, load_bundle
from models.bundle_record import Precision
from models.cores import cores
from models.program import run_program
from models.session import NetworkSession
from serving.engine.networks import open_networks
from serving.engine.scheduler import choose_policy

Provider = Literal["cpu", "cuda"]
_LATER: Final = 20  # requests that the first one is compared with
_FIRST_RUN_S: Final = 120.0
_DAY_S: Final = 86_400


class ServiceSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """Measures the service on a GPU against the network alone."""

    bundle: Path
    """Bundle that is served."""
    provider: Provider = "cuda"
    """Where the network runs."""
    precision: Precision = "fp16"
    """Which network of the bundle runs."""
    clients: int = 64
    """Clients that wait for their answers."""
    seconds: float = 15.0
    """Length of each measurement."""
    lead_in_s: float = 3.0
    """Time of load before a measurement."""
    out: Path | None = None
    """File for the result, JSON."""


class BatchRate(msgspec.Struct, frozen=True):
    """The network alone, at one batch size."""

    batch_size: int
    per_s: float
    """Pictures a second of all threads together."""
    run_ms: float
    """Median time of a run, ms; other threads run at the same time."""


class Start(msgspec.Struct, frozen=True):
    """The first requests after the service said that it is ready."""

    ready_s: float
    """Time from the start of the program, s."""
    first_ms: float
    later_ms: list[float]
    """Each of the following requests, one after another, ms."""


class Result(Measured, frozen=True, kw_only=True):
    """The content of the result file."""

    provider: Provider
    precision: Precision
    policy: str
    """How the service runs the network."""
    network: Network
    pictures: list[PictureFile]
    versions: dict[str, str]
    single_ms: float
    """Median time of a run with one picture, nothing else running."""
    alone: list[BatchRate]
    start: Start
    served: list[Cell]


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(ServiceSpeed, measure, description=__doc__)


def measure(command: ServiceSpeed) -> Result:
    """Measures everything, prints tables and, with `out`, writes the result.

    Raises:
        BundleError: The bundle is missing or damaged, or lacks the precision.
        InputError: CUDA cannot be used.
        DataError: The service does not start.
    """
    bundle = load_bundle(command.bundle)
    side = bundle.record.input.width  # a picture of about that size costs little to decode
    pictures = [photograph("network size", drawn(side * 4 // 3, side)), photograph("1 MP", drawn(1156, 865))]
    policy = choose_policy(cuda=command.provider == "cuda", num_cores=cores(), num_threads=None, num_runs=None)
    session = open_networks(bundle, command.precision, policy, command.provider)["throughput"]
    single = _rate(session, bundle, 1, 1, command.seconds)
    alone = [_rate(session, bundle, size, policy.num_workers, command.seconds) for size in policy.batch_sizes]
    del session  # its memory is the service's now
    start, served = _serve(command, bundle, pictures)
    result = Result(
        provider=command.provider,
        precision=command.precision,
        policy=policy.describe(),
        network=network_of(bundle),
        pictures=[picture_file(each) for each in pictures],
        versions=own_versions(),
        single_ms=single.run_ms,
        alone=alone,
        start=start,
        served=served,
    )
    write_result(result, markdown(result), command.out)
    return result


def markdown(result: Result) -> str:
    """The result as tables in Markdown."""
    alone, start = result.alone[-1], result.start
    later_ms = statistics.median(start.later_ms)
    rates = [[str(each.batch_size), f"{each.per_s:.1f}", f"{each.run_ms:.1f}"] for each in result.alone]
    served = [
        [
            each.photograph,
            str(each.concurrency),
            f"{each.per_s:.1f}",
            f"{each.per_s / alone.per_s:.2f}",
            f"{each.per_s * _DAY_S:,.0f}",
            *("-" if value is None else f"{value:.0f}" for value in (each.p50_ms, each.p99_ms)),
            ", ".join(f"{count} x {word}" for word, count in each.words.items()),
        ]
        for each in result.served
    ]
    columns = [
        "picture",
        "clients",
        "pictures/s",
        "of the network alone",
        "pictures a day",
        "p50 ms",
        "p99 ms",
        "answers",
    ]
    return "\n\n".join(
        [
            f"{result.machine}: {result.network.bundle}, {result.precision} on {result.provider}; {result.policy}",
            table(["batch", "pictures/s, network alone", "ms a run"], rates),
            table(columns, served),
            f"One picture alone: {result.single_ms:.1f} ms in the network. Ready after {start.ready_s:.1f} s; first "
            f"request {start.first_ms:.0f} ms, later ones {later_ms:.0f} ms.",
        ]
    )


def _rate(session: NetworkSession, bundle: Bundle, batch_size: int, num_threads: int, seconds: float) -> BatchRate:
    """Runs batches in several threads; the first run of each thread is not counted."""
    spec = bundle.record.input
    pixels = np.random.default_rng(0).standard_normal((batch_size, 3, spec.height, spec.width), dtype=np.float32)
    together = threading.Barrier(num_threads, timeout=_FIRST_RUN_S)

    def work() -> tuple[float, list[float]]:
        session.run(pixels)
        together.wait()
        moments = [time.perf_counter()]
        while moments[-1] - moments[0] < seconds:
            session.run(pixels)
            moments.append(time.perf_counter())
        times = [after - before for before, after in pairwise(moments)]
        return len(times) * batch_size / sum(times), times

    with ThreadPoolExecutor(num_threads) as threads:
        found = [future.result() for future in [threads.submit(work) for _ in range(num_threads)]]
    times = [each for _, times in found for each in times]
    return BatchRate(batch_size, sum(per_s for per_s, _ in found), 1000 * statistics.median(times))


def _serve(command: ServiceSpeed, bundle: Bundle, pictures: Sequence[Photograph]) -> tuple[Start, list[Cell]]:
    flags = ("--provider", command.provider, "--precision", command.precision)
    with running(Place(bundle, ENVIRONMENT, flags), OURS, ServerConfig()) as server:
        load = asyncio.run(one_by_one(server.port, identify(pictures[0].data), 1 + _LATER))
        first_ms, *later_ms = latencies_ms(load.outcomes)
        served = [
            measure_cell(server, each, clients, command.seconds, command.lead_in_s)
            for each in pictures
            for clients in (command.clients, 1)
        ]
        return Start(server.start_s, first_ms, later_ms), served


if __name__ == "__main__":
    main()
