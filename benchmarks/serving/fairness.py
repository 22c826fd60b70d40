"""Program: attacks our service from one address, and measures what an honest client with another address gets.

python benchmarks/serving/fairness.py [--bundle DIR] [--out FILE.json]

The addresses are those that a trusted proxy forwards. Each attack meets a service of its own, and has begun before its
measurement begins.
"""

import asyncio
import sys
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import msgspec
import tyro
from rich.progress import track

from benchmarks.serving.attacks import Attack, AttackName, attacks, from_address
from benchmarks.serving.fairness_result import Attacked, Fairness, FairnessResult, Honest, markdown, targets
from benchmarks.serving.flags import for_readers, network_of, picture_file, turns_of, write_result
from benchmarks.serving.load import Load, closed_loop, one_by_one, open_loop, percentile
from benchmarks.serving.server_config import ServerConfig
from benchmarks.serving.servers import OURS, Place, identify, own_versions, running
from training.machine import this_machine
from training.program import run_program

_QUICK: Final = {"seconds": 3.0, "patience_s": 2.0, "lead_in_s": 0.5}
_HONEST: Final = "198.51.100.7"
_PROXY: Final = ("--trusted-proxies", "127.0.0.1")
_WARM_REQUESTS: Final = 5
_AT_ONCE: Final = 8


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: measure(tyro.cli(Fairness, description=__doc__)))


def measure(command: Fairness) -> FairnessResult:
    """Runs each attack, prints a table and, with `out`, writes the result.

    Raises:
        DataError: Photographs are missing, or the service does not start.
        BundleError: The bundle is missing or damaged.
    """
    command = msgspec.structs.replace(command, **_QUICK) if command.quick else command
    place, picture, machine = command.place(), command.pictures()["1 MP"], this_machine()
    place = msgspec.structs.replace(place, ours=(*_PROXY, *place.ours))
    request, turns = from_address(identify(picture.data), _HONEST), turns_of(command, machine)
    result = FairnessResult(
        machine=machine,
        measured_on=datetime.now(UTC).date().isoformat(),
        setting=for_readers(command),
        network=network_of(place.bundle),
        photograph=picture_file(picture),
        own_versions=own_versions(),
        alone=turns.take("alone", dict[str, int], partial(_alone, command, place, request)),
        attacks=[
            turns.take(name, Attacked, partial(_attacked, command, place, request, name, attack))
            for name, attack in track(attacks().items(), "attacks", disable=not sys.stderr.isatty())
        ],
    )
    result = msgspec.structs.replace(result, targets=targets(result))
    print(markdown(result))
    write_result(result, command.out)
    turns.forget()
    return result


def _alone(command: Fairness, place: Place, request: bytes) -> dict[str, int]:
    """Eight requests at once from one client, while no other is there."""
    with running(place, OURS, ServerConfig()) as server:
        load = closed_loop(server.port, [request], concurrency=_AT_ONCE, seconds=command.seconds)
        return asyncio.run(load).words


def _attacked(command: Fairness, place: Place, request: bytes, name: AttackName, attack: Attack) -> Attacked:
    with running(place, OURS, ServerConfig()) as server:
        asyncio.run(one_by_one(server.port, request, _WARM_REQUESTS))
        before = asyncio.run(_honest(command, server.port, request))
        during, words = asyncio.run(_beside(command, server.port, request, attack))
        return Attacked(name, _described(before), _described(during), dict(words))


async def _beside(command: Fairness, port: int, request: bytes, attack: Attack) -> tuple[Load, Counter[str]]:
    words = Counter[str]()
    attacking = asyncio.ensure_future(attack(port, words))
    await asyncio.sleep(command.lead_in_s)
    try:
        return await _honest(command, port, request), words
    finally:
        attacking.cancel()
        with suppress(asyncio.CancelledError):
            await attacking


async def _honest(command: Fairness, port: int, request: bytes) -> Load:
    moments = [number / command.per_s for number in range(round(command.seconds * command.per_s))]
    return await open_loop(port, [request], moments, seconds=command.seconds, patience_s=command.patience_s)


def _described(load: Load) -> Honest:
    latencies_ms = [outcome.latency_s * 1000 for outcome in load.good]
    return Honest(load.words, percentile(latencies_ms, 50), percentile(latencies_ms, 99))


if __name__ == "__main__":
    main()
