"""Program: measures the memory of our service over 20,000 requests, in a flood, and for a malicious picture.

python benchmarks/serving/memory.py [--bundle DIR] [--requests 20000] [--out FILE.json]

Memory is that of all processes of the service; shared pages are counted once.
"""

import asyncio
import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import msgspec
import tyro
from rich.progress import Progress

from benchmarks.serving.flags import for_readers, network_of, picture_file, turns_of, write_result
from benchmarks.serving.http_client import fetch
from benchmarks.serving.load import arrivals, closed_loop, one_by_one, open_loop
from benchmarks.serving.memory_result import Flood, Hostile, LongRun, Memory, MemoryResult, markdown, targets
from benchmarks.serving.mixture import send_mixture
from benchmarks.serving.photographs import Photograph, drawn, hostile_webp
from benchmarks.serving.process_tree import MemoryWatch
from benchmarks.serving.server_config import ServerConfig
from benchmarks.serving.servers import OURS, Place, identify, own_versions, running
from training.machine import this_machine
from training.program import run_program

_QUICK: Final = {
    "requests": 200,
    "concurrency": 2,
    "factor": 3.0,
    "seconds": 2.0,
    "patience_s": 1.0,
    "capacity_seconds": 2.0,
}
_SETTLED_S: Final = 3.0
_WARM_REQUESTS: Final = 5


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: measure(tyro.cli(Memory, description=__doc__)))


def measure(command: Memory) -> MemoryResult:
    """Measures the memory in all three ways, prints a table and, with `out`, writes the result.

    Raises:
        DataError: Photographs are missing, or the service does not start.
        BundleError: The bundle is missing or damaged.
    """
    command = msgspec.structs.replace(command, **_QUICK) if command.quick else command
    place, picture, machine = command.place(), command.pictures()["12 MP"], this_machine()
    turns = turns_of(command, machine)
    result = MemoryResult(
        machine=machine,
        measured_on=datetime.now(UTC).date().isoformat(),
        setting=for_readers(command),
        network=network_of(place.bundle),
        photograph=picture_file(picture),
        own_versions=own_versions(),
        hostile=turns.take("hostile", Hostile, partial(_hostile, place)),
        flood=turns.take("flood", Flood, partial(_flood, command, place, picture)),
        life=turns.take("life", LongRun, partial(_long_run, command, place)),
    )
    result = msgspec.structs.replace(result, targets=targets(result))
    print(markdown(result))
    write_result(result, command.out)
    turns.forget()
    return result


def _hostile(place: Place) -> Hostile:
    """Sends the malicious picture to a service that has answered a few small ones."""
    webp = hostile_webp()
    with running(place, OURS, ServerConfig()) as server:
        asyncio.run(one_by_one(server.port, identify(drawn(640, 480)), _WARM_REQUESTS))
        server.tree.reset_high_water()
        before_mb = server.tree.high_water_mb()
        answer = asyncio.run(fetch(server.port, identify(webp, "image/webp")))
        return Hostile(len(webp), answer.status, server.tree.high_water_mb() - before_mb)


def _flood(command: Memory, place: Place, picture: Photograph) -> Flood:
    """Sends many more large photographs than the service can answer."""
    request = [identify(picture.data)]
    with running(place, OURS, ServerConfig()) as server:
        asyncio.run(one_by_one(server.port, request[0], 1))
        idle_mb = server.tree.memory_mb()
        capacity = asyncio.run(
            closed_loop(server.port, request, concurrency=8, seconds=command.capacity_seconds, lead_in_s=1.0)
        )
        moments = arrivals(command.factor * capacity.per_s, command.seconds, command.seed)
        server.tree.reset_high_water()
        with MemoryWatch(server.tree, interval_s=0.25) as memory:
            load = asyncio.run(
                open_loop(server.port, request, moments, seconds=command.seconds, patience_s=command.patience_s)
            )
        high_water_mb = server.tree.high_water_mb()
        time.sleep(_SETTLED_S)
        return Flood(
            capacity.per_s, len(load.outcomes) / command.seconds, load.words, idle_mb, memory.peak_mb, high_water_mb,
            server.tree.memory_mb(), load.generator_share,
        )  # fmt: skip


def _long_run(command: Memory, place: Place) -> LongRun:
    """Sends the mixture of requests, and measures the memory at intervals."""
    course: dict[int, float] = {}
    marks = {round(command.requests * number / 20): number for number in range(1, 21)}
    with running(place, OURS, ServerConfig()) as server, Progress(disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("requests", total=command.requests)

        def watch(ended: int) -> None:
            progress.update(task, completed=ended)
            if ended in marks:
                course[marks[ended]] = server.tree.memory_mb()

        tallies = asyncio.run(send_mixture(server.port, command.requests, command.concurrency, watch))
        time.sleep(_SETTLED_S)
        end_mb = server.tree.memory_mb()
    return LongRun(command.requests, course[2], end_mb, [course[number] for number in sorted(course)], tallies)


if __name__ == "__main__":
    main()
