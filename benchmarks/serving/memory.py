"""Program: measures the memory of our service over 20,000 requests, in a flood, and for a malicious picture.

python benchmarks/serving/memory.py [--bundle DIR] [--requests 20000] [--out FILE.json]

Memory is that of all processes of the service; shared pages are counted once.
"""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final, Literal

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import msgspec

from benchmarks.result import Measured, table, write_result
from benchmarks.serving.flags import Flags, Network, PictureFile, network_of, picture_file
from benchmarks.serving.http_client import ConnectionLost, connect, fetch, post_head
from benchmarks.serving.load import arrivals, closed_loop, one_by_one, open_loop
from benchmarks.serving.photographs import Photograph, broken, drawn, hostile_webp, oversized_png
from benchmarks.serving.process_tree import MemoryWatch
from benchmarks.serving.server_config import Count, Positive, ServerConfig
from benchmarks.serving.servers import IDENTIFY, OURS, Place, identify, own_versions, running
from models.program import run_program
from training.machine import this_machine

_SETTLED_S: Final = 3.0
_CLIENTS: Final = 4  # of the long run
Kind = Literal["good", "broken", "too many pixels", "too many bytes", "client left"]
_MIXTURE: Final[tuple[Kind, ...]] = (
    "good", "broken", "good", "too many pixels", "good", "client left", "good", "too many bytes", "good", "broken",
)  # fmt: skip
_EXPECTED: Final[Mapping[Kind, str]] = {
    "good": "200",
    "broken": "422",
    "too many pixels": "422",
    "too many bytes": "413",
    "client left": "left",
}


class Memory(Flags, frozen=True, kw_only=True):
    """Measures memory: over many requests, in a flood of large photographs, and for a malicious picture."""

    requests: Annotated[int, msgspec.Meta(ge=100)] = 20_000
    """Requests of the long run, half of them good, the others broken, too large or abandoned."""
    factor: Positive = 20.0
    """Request rate of the flood, as a multiple of the measured capacity in closed loop."""
    seconds: Positive = 20.0
    """Length of the flood, s."""
    patience_s: Positive = 5.0
    """Time after which a client of the flood disconnects, from when its request was due, s."""
    capacity_seconds: Positive = 10.0
    """Length of the measurement of the capacity, s."""
    warm_requests: Count = 5
    """Small pictures before the malicious one."""


class LongRun(msgspec.Struct, frozen=True):
    """Memory over many requests."""

    requests: int
    warm_mb: float
    """Memory after the first tenth of the requests, MB."""
    end_mb: float
    """Memory after the last request, MB."""
    course_mb: list[float]
    """Memory after each twentieth of the requests, MB."""
    unexpected: dict[str, int]
    """Requests that did not end as expected of their kind: kind and status -> number."""


class Flood(msgspec.Struct, frozen=True):
    """Memory in a flood of large photographs."""

    capacity_per_s: float
    offered_per_s: float
    words: dict[str, int]
    """How often each status, or end without a status, occurred."""
    idle_mb: float
    peak_mb: float
    """Largest measured memory, shared pages counted once, MB."""
    high_water_mb: float
    """Sum of the peaks of all processes: an upper bound, MB."""
    after_mb: float
    generator_share: float
    """Share of one core that the load generator used."""


class Hostile(msgspec.Struct, frozen=True):
    """A WebP of 50 megapixels in few bytes."""

    num_bytes: int
    status: int
    extra_mb: float
    """Growth of the sum of the peaks of all processes, MB."""


class MemoryResult(Measured, frozen=True, kw_only=True):
    """The result of the program."""

    setting: Memory
    network: Network
    photograph: PictureFile
    """The photograph of the flood."""
    own_versions: dict[str, str]
    life: LongRun
    flood: Flood
    hostile: Hostile


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(Memory, measure, description=__doc__)


def measure(command: Memory) -> MemoryResult:
    """Measures the memory in all three ways, prints a table and, with `out`, writes the result.

    Raises:
        DataError: Photographs are missing, or the service does not start.
        BundleError: The bundle is missing or damaged.
    """
    place, picture = command.place(), command.pictures()["12 MP"]
    result = MemoryResult(
        machine=this_machine(),
        setting=command.without_paths(),
        network=network_of(place.bundle),
        photograph=picture_file(picture),
        own_versions=own_versions(),
        hostile=_hostile(command, place),
        flood=_flood(command, place, picture),
        life=_long_run(command, place),
    )
    write_result(result, markdown(result), command.out)
    return result


def _hostile(command: Memory, place: Place) -> Hostile:
    """Sends the malicious picture to a service that has answered a few small ones."""
    webp = hostile_webp()
    with running(place, OURS, ServerConfig()) as server:
        asyncio.run(one_by_one(server.port, identify(drawn(640, 480)), command.warm_requests))
        server.tree.reset_high_water()
        before_mb = server.tree.high_water_mb()
        answer = asyncio.run(fetch(server.port, identify(webp, "image/webp")))
        return Hostile(len(webp), answer.status, server.tree.high_water_mb() - before_mb)


def _flood(command: Memory, place: Place, picture: Photograph) -> Flood:
    """Sends many more large photographs than the service can answer."""
    request, seconds = [identify(picture.data)], command.seconds
    with running(place, OURS, ServerConfig()) as server:
        asyncio.run(one_by_one(server.port, request[0], 1))
        idle_mb = server.tree.memory_mb()
        capacity = asyncio.run(
            closed_loop(server.port, request, concurrency=8, seconds=command.capacity_seconds, lead_in_s=1.0)
        )
        moments = arrivals(command.factor * capacity.per_s, seconds, seed=0)
        server.tree.reset_high_water()
        with MemoryWatch(server.tree, interval_s=0.25) as memory:
            load = asyncio.run(open_loop(server.port, request, moments, seconds=seconds, patience_s=command.patience_s))
        high_water_mb = server.tree.high_water_mb()
        time.sleep(_SETTLED_S)
        return Flood(
            capacity_per_s=capacity.per_s,
            offered_per_s=len(load.outcomes) / seconds,
            words=load.words,
            idle_mb=idle_mb,
            peak_mb=memory.peak_mb,
            high_water_mb=high_water_mb,
            after_mb=server.tree.memory_mb(),
            generator_share=load.generator_share,
        )


def _long_run(command: Memory, place: Place) -> LongRun:
    """Sends requests of all kinds in turns from several clients, and measures the memory at intervals."""
    picture = drawn(320, 240)
    whole = identify(picture)
    messages: dict[Kind, bytes] = {
        "good": whole,
        "broken": identify(broken(picture)),
        "too many pixels": identify(oversized_png(), "image/png"),
        "too many bytes": post_head(IDENTIFY, 100_000_000) + whole[:2000],
        "client left": whole[: len(whole) // 2],
    }
    every, numbers = command.requests // 20, iter(range(command.requests))
    course_mb: list[float] = []
    unexpected = Counter[str]()

    async def client(port: int) -> None:
        for number in numbers:  # shared by all clients: each number is taken once
            kind = _MIXTURE[number % len(_MIXTURE)]
            word = await _ending(port, kind, messages[kind])
            unexpected.update({f"{kind}: {word}": 1} if word != _EXPECTED[kind] else {})
            if (number + 1) % every == 0:
                course_mb.append(server.tree.memory_mb())

    async def clients(port: int) -> None:
        await asyncio.gather(*(client(port) for _ in range(_CLIENTS)))

    with running(place, OURS, ServerConfig()) as server:
        asyncio.run(clients(server.port))
        time.sleep(_SETTLED_S)
        return LongRun(command.requests, course_mb[1], server.tree.memory_mb(), course_mb, dict(unexpected))


async def _ending(port: int, kind: Kind, message: bytes) -> str:
    """Sends a request; returns its status, or how it ended without one."""
    if kind != "client left":
        return (await one_by_one(port, message, 1)).outcomes[0].word
    try:
        with closing(await connect(port)) as connection:
            connection.write(message)
            await asyncio.sleep(0.005)  # so that the service has started to read
    except ConnectionLost:
        return "connection lost"
    return "left"


def markdown(result: MemoryResult) -> str:
    """The result as a table."""
    life, flood, hostile = result.life, result.flood, result.hostile
    rows = [
        [f"{life.requests:,} requests, half of them valid", f"{life.warm_mb:.0f} MB warm", f"{life.end_mb:.0f} MB"],
        [
            f"{flood.offered_per_s:.0f} requests/s of {result.photograph.megapixels:.0f} MP, where "
            f"{flood.capacity_per_s:.1f}/s can be answered",
            f"{flood.idle_mb:.0f} MB idle",
            f"{flood.peak_mb:.0f} MB (at most {flood.high_water_mb:.0f}); {flood.after_mb:.0f} MB after",
        ],
        [
            f"a WebP of 50 MP in {hostile.num_bytes / 1000:.0f} kB, answered with {hostile.status}",
            "",
            f"{hostile.extra_mb:.1f} MB more",
        ],
    ]
    unexpected = "; ".join(f"{count} {word}" for word, count in life.unexpected.items()) or "none"
    return "\n\n".join(
        [
            f"{result.machine}: {result.network}, {result.measured_on}.",
            table(["what", "before", "memory"], rows),
            f"Unexpected outcomes among the {life.requests:,} requests: {unexpected}. Responses in the flood: "
            f"{', '.join(f'{count:,} with status {word}' for word, count in flood.words.items())}.",
        ]
    )


if __name__ == "__main__":
    main()
