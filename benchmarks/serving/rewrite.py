"""Program: measures what the rewriting of the network for this CPU (`--rewrite on`) brings, and what it costs.

python benchmarks/serving/rewrite.py --bundle DIR [--rounds 10] [--out FILE.json]

Two of our services run side by side, one with the rewriting and one without. They are measured in turns, so that a busy
machine slows both alike; the ratio is taken within a round. In its turn a service answers eight clients in closed loop,
and then reloads its bundle while a client asks for `/health/live` without a pause.
"""

import asyncio
import re
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Final, Literal

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import msgspec
import tyro
from rich.progress import track

from benchmarks.serving.flags import (
    Flags,
    Network,
    PictureFile,
    for_readers,
    network_of,
    picture_file,
    require_positive,
    write_result,
)
from benchmarks.serving.http_client import connect, fetch, get
from benchmarks.serving.load import closed_loop
from benchmarks.serving.server_config import ServerConfig
from benchmarks.serving.servers import OURS, Place, Running, identify, own_versions, running
from models.errors import DataError
from training.insight.studies.report import table
from training.machine import Machine, this_machine
from training.program import run_program

_QUICK: Final = {"rounds": 1, "seconds": 1.0, "lead_in_s": 0.3}
_RELOADS: Final = re.compile(rb'^botanify_reloads_total\{outcome="(\w+)"\} (\S+)$', re.MULTILINE)
_POLL_S: Final = 0.1  # between two looks at the metrics, which take the service some milliseconds
_PROBE_S: Final = 0.002
_PATIENCE_S: Final = 300.0
_WORTH: Final = 0.08  # fewer answers more do not pay for the code
Arm = Literal["on", "off"]
_ARMS: Final[tuple[Arm, ...]] = ("on", "off")


class Rewrite(Flags, frozen=True, kw_only=True):
    """Measures answers per second, and the time and stall of a reload, with and without --rewrite."""

    rounds: int = 10
    """Rounds; each measures both services."""
    concurrency: int = 8
    """Clients."""
    seconds: float = 20.0
    """Length of one measurement of the answers, s."""
    lead_in_s: float = 2.0
    """Load before each measurement, s."""

    def __post_init__(self) -> None:
        require_positive(self, "rounds", "concurrency", "seconds")


class ArmTurn(msgspec.Struct, frozen=True):
    """One turn of one service."""

    per_s: float
    """Good answers per second."""
    words: dict[str, int]
    """How often each status occurred."""
    reload_s: float
    """Time from SIGHUP until the new bundle answers, to a tenth of a second."""
    stall_ms: float
    """Longest time of a request for `/health/live` during the reload."""
    idle_stall_ms: float
    """The same, for one second before the reload."""


class RewriteResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the program."""

    machine: Machine
    measured_on: str
    setting: Rewrite
    network: Network
    photograph: PictureFile
    own_versions: dict[str, str]
    turns: list[dict[Arm, ArmTurn]]
    """The turn of both services in each round."""

    @property
    def gains(self) -> list[float]:
        """How many more answers the rewritten network gives in each round, as a share."""
        return [turn["on"].per_s / turn["off"].per_s - 1 for turn in self.turns]


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: measure(tyro.cli(Rewrite, description=__doc__)))


def measure(command: Rewrite) -> RewriteResult:
    """Measures all rounds, prints a table and, with `out`, writes the result.

    Raises:
        DataError: Photographs are missing, a service does not start, or a reload is refused.
        BundleError: The bundle is missing or damaged.
    """
    command = msgspec.structs.replace(command, **_QUICK) if command.quick else command
    place, picture = command.place(), command.pictures()["1 MP"]
    turns = []
    with ExitStack() as stack:
        servers = {arm: stack.enter_context(running(_with(place, arm), OURS, ServerConfig())) for arm in _ARMS}
        for number in track(range(command.rounds), "rounds", disable=not sys.stderr.isatty()):
            order = _ARMS if number % 2 == 0 else _ARMS[::-1]
            turns.append({arm: _turn(servers[arm], identify(picture.data), command) for arm in order})
    result = RewriteResult(
        machine=this_machine(),
        measured_on=datetime.now(UTC).date().isoformat(),
        setting=for_readers(command),
        network=network_of(place.bundle),
        photograph=picture_file(picture),
        own_versions=own_versions(),
        turns=turns,
    )
    print(markdown(result))
    write_result(result, command.out)
    return result


def markdown(result: RewriteResult) -> str:
    """The medians as a table, and whether the gain is worth the code."""
    rows = [_row(arm, [turn[arm] for turn in result.turns]) for arm in _ARMS]
    gain = median(result.gains)
    return "\n\n".join(
        [
            f"{result.machine}: {result.network}, {result.measured_on}; medians of {len(result.turns)} rounds.",
            table(["--rewrite", "answers/s", "reload, s", "longest stall of a reload, ms", "without, ms"], rows),
            f"The rewritten network gives {gain:+.1%} answers ({min(result.gains):+.1%} to {max(result.gains):+.1%}); "
            f"{_WORTH:.0%} are {'reached' if gain >= _WORTH else 'not reached'}.",
        ]
    )


def _row(arm: Arm, turns: list[ArmTurn]) -> list[str]:
    stalls, idle = [turn.stall_ms for turn in turns], [turn.idle_stall_ms for turn in turns]
    return [
        arm,
        f"{median(turn.per_s for turn in turns):.2f}",
        f"{median(turn.reload_s for turn in turns):.1f}",
        f"{median(stalls):.0f} (at most {max(stalls):.0f})",
        f"{median(idle):.0f} (at most {max(idle):.0f})",
    ]


def _with(place: Place, arm: Arm) -> Place:
    return msgspec.structs.replace(place, ours=(*place.ours, "--rewrite", arm))


def _turn(server: Running, request: bytes, command: Rewrite) -> ArmTurn:
    load = asyncio.run(
        closed_loop(
            server.port,
            [request],
            concurrency=command.concurrency,
            seconds=command.seconds,
            lead_in_s=command.lead_in_s,
        )
    )
    idle_stall_ms = asyncio.run(_idle_stall_ms(server.port))
    reload_s, stall_ms = asyncio.run(_reload(server))
    return ArmTurn(load.per_s, load.words, reload_s, stall_ms, idle_stall_ms)


async def _idle_stall_ms(port: int) -> float:
    probe = _Probe(port)
    await asyncio.sleep(1)
    return await probe.stop()


async def _reload(server: Running) -> tuple[float, float]:
    """Reloads the bundle; returns the time that it took, s, and the longest stall, ms.

    Raises:
        DataError: The reload is refused, or not done in five minutes.
    """
    before, probe, began = await _num_reloads(server.port), _Probe(server.port), time.monotonic()
    server.tree.send_signal(signal.SIGHUP)
    while (now := await _num_reloads(server.port)) == before:
        if time.monotonic() - began > _PATIENCE_S:
            raise DataError("the service does not end its reload", limit=f"{_PATIENCE_S:g} s")
        await asyncio.sleep(_POLL_S)
    reload_s = time.monotonic() - began
    await asyncio.sleep(0.5)  # the old network is freed
    stall_ms = await probe.stop()
    if now.get("refused", 0) != before.get("refused", 0):
        raise DataError("the service refuses to reload its bundle", remedy="see its log")
    return reload_s, stall_ms


async def _num_reloads(port: int) -> Mapping[str, float]:
    return {name.decode(): float(count) for name, count in _RELOADS.findall((await fetch(port, get("/metrics"))).body)}


class _Probe:
    """A client that asks for `/health/live` over and over."""

    def __init__(self, port: int) -> None:
        self._longest_s, self._port = 0.0, port
        self._task = asyncio.create_task(self._ask())

    async def stop(self) -> float:
        """Returns the longest time of an answer, ms."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        return 1000 * self._longest_s

    async def _ask(self) -> None:
        with await connect(self._port) as connection:
            while True:
                began = time.perf_counter()
                await connection.send(get("/health/live"))
                self._longest_s = max(self._longest_s, time.perf_counter() - began)
                await asyncio.sleep(_PROBE_S)


if __name__ == "__main__":
    main()
