"""Program: sends servers 2.5 times the requests that they can answer; clients give up after 5 s.

python benchmarks/serving/overload.py [--bundle DIR] [--compared serving.json] [--out FILE.json]

Requests come in an open loop: at times that are fixed in advance, whether or not earlier ones are answered, each over a
new connection. One server runs at a time. Measured are its idle latency, capacity in closed loop, the burst, the next
request after it, and memory. Each rival runs with the configuration that `compare.py` found best, without and with its
own limits.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import msgspec
import tyro
from rich.progress import track

from benchmarks.serving.comparison import Comparison
from benchmarks.serving.flags import Network, for_readers, network_of, picture_file, read_result, turns_of, write_result
from benchmarks.serving.load import Load, Outcome, arrivals, closed_loop, one_by_one, open_loop, percentile
from benchmarks.serving.overload_result import Burst, Bursts, Limits, Overload, OverloadResult, markdown, targets
from benchmarks.serving.process_tree import MemoryWatch
from benchmarks.serving.server_config import ServerConfig
from benchmarks.serving.servers import (
    OURS,
    Contender,
    Running,
    candidates,
    identify,
    own_versions,
    require_environment,
    running,
    versions,
    with_limits,
)
from models.errors import DataError
from training.machine import this_machine
from training.program import run_program

_QUICK: Final = {
    "photograph": "1 MP",
    "rounds": 1,
    "seconds": 2.0,
    "patience_s": 1.0,
    "capacity_seconds": 3.0,
    "idle_requests": 2,
}
_SETTLED_S: Final = 5.0
_LONGEST_WAIT_S: Final = 120.0
_RETRY_S: Final = 0.05
_REFUSALS: Final = frozenset({429, 503})
"""Statuses of a refusal because of overload."""


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: measure(tyro.cli(Overload, description=__doc__)))


def measure(command: Overload) -> OverloadResult:
    """Overloads each server in turn, prints a table and, with `out`, writes the result.

    Raises:
        DataError: Photographs or the rivals' environment are missing, or a server does not start or answer.
        BundleError: The bundle is missing or damaged.
    """
    return _Run(msgspec.structs.replace(command, **_QUICK) if command.quick else command).result()


class _Entry(msgspec.Struct, frozen=True):
    """A server and its configuration for the burst."""

    contender: Contender
    limits: Limits
    config: ServerConfig


class _Run:
    """One run of the program."""

    def __init__(self, command: Overload) -> None:
        self._command, self._place, self._machine = command, command.place(), this_machine()
        require_environment(self._place.environment, command.servers)
        self._picture = command.pictures()[command.photograph]
        self._network = network_of(self._place.bundle)
        self._entries = [_Entry(OURS, "none", ServerConfig()), *self._rivals()]
        self._turns = turns_of(command, self._machine)

    def result(self) -> OverloadResult:
        """Runs all bursts that are not measured yet."""
        command = self._command
        servers = self._rounds()
        result = OverloadResult(
            machine=self._machine,
            measured_on=datetime.now(UTC).date().isoformat(),
            setting=msgspec.structs.replace(for_readers(command), compared=None),
            network=self._network,
            photograph=picture_file(self._picture),
            versions=versions(self._place.environment),
            own_versions=own_versions(),
            servers=servers,
        )
        result = msgspec.structs.replace(result, targets=targets(result))
        print(markdown(result))
        write_result(result, command.out)
        self._turns.forget()
        return result

    def _rounds(self) -> list[Bursts]:
        found: dict[_Entry, list[Burst]] = {entry: [] for entry in self._entries}
        for number in track(range(self._command.rounds), "rounds", disable=not sys.stderr.isatty()):
            first = number % len(self._entries)  # another order in each round
            for entry in self._entries[first:] + self._entries[:first]:
                key = f"round {number}: {entry.contender}, {entry.limits}"
                found[entry].append(self._turns.take(key, Burst, partial(self._burst, entry)))
        return [Bursts(entry.contender, entry.limits, bursts) for entry, bursts in found.items()]

    def _rivals(self) -> list[_Entry]:
        command = self._command
        best = _best_configs(command, self._network)
        entries = []
        for server in command.servers:
            contender = Contender(server, command.decoding)
            config = best.get(contender, candidates(server, self._machine.num_cores)[0])
            limited = with_limits(server, config, command.patience_s)
            entries += [_Entry(contender, each, limited if each == "own" else config) for each in command.limits]
        return entries

    def _burst(self, entry: _Entry) -> Burst:
        """Starts a server, overloads it and stops it."""
        command, request = self._command, identify(self._picture.data)
        with running(self._place, entry.contender, entry.config) as server:
            capacity = self._capacity(server, request)
            idle = asyncio.run(one_by_one(server.port, request, command.idle_requests))
            _require_answers(entry.contender, idle)
            before_mb = server.tree.memory_mb()
            moments = arrivals(command.factor * capacity.per_s, command.seconds, command.seed)
            with MemoryWatch(server.tree) as memory:
                load = asyncio.run(
                    open_loop(server.port, [request], moments, seconds=command.seconds, patience_s=command.patience_s)
                )
            next_ms = _next_answer_ms(server.port, request)
            time.sleep(0.2 if command.quick else _SETTLED_S)
            return _described(
                entry.config, capacity, load,
                idle_ms=median(_latencies_ms(idle.good)),
                next_ms=next_ms,
                before_mb=before_mb,
                peak_mb=memory.peak_mb,
                after_mb=server.tree.memory_mb(),
                processes_left=server.tree.end(),
            )  # fmt: skip

    def _capacity(self, server: Running, request: bytes) -> Load:
        command = self._command
        lead_in_s = command.capacity_seconds / 5
        load = closed_loop(
            server.port,
            [request],
            concurrency=command.concurrency,
            seconds=command.capacity_seconds,
            lead_in_s=lead_in_s,
        )
        capacity = asyncio.run(load)
        _require_answers(server.contender, capacity)
        return capacity


def _described(
    config: ServerConfig,
    capacity: Load,
    load: Load,
    *,
    idle_ms: float,
    next_ms: float,
    before_mb: float,
    peak_mb: float,
    after_mb: float,
    processes_left: int,
) -> Burst:
    answers, refusals = _latencies_ms(load.good), [each for each in load.outcomes if each.status in _REFUSALS]
    return Burst(
        setting=config,
        capacity_per_s=capacity.per_s,
        offered_per_s=len(load.outcomes) / load.window_s[1],
        good_per_s=load.per_s,
        words=load.words,
        answer_p50_ms=percentile(answers, 50),
        answer_p99_ms=percentile(answers, 99),
        refusal_p99_ms=percentile(_latencies_ms(refusals), 99),
        retry_after=sum(each.retry_after for each in refusals) / len(refusals) if refusals else None,
        idle_ms=idle_ms,
        next_ms=next_ms,
        before_mb=before_mb,
        peak_mb=peak_mb,
        after_mb=after_mb,
        lateness_p99_ms=percentile([each * 1000 for each in load.lateness_s], 99),
        generator_share=load.generator_share,
        processes_left=processes_left,
    )


def _next_answer_ms(port: int, request: bytes) -> float:
    """Time until a client that comes after the burst has a good answer; it retries after a refusal, ms."""
    began = time.perf_counter()
    while not asyncio.run(one_by_one(port, request, 1)).good and time.perf_counter() - began < _LONGEST_WAIT_S:
        time.sleep(_RETRY_S)
    return (time.perf_counter() - began) * 1000


def _best_configs(command: Overload, network: Network) -> dict[Contender, ServerConfig]:
    """The best configurations of `compare.py`, at the concurrency of the capacity measurement.

    Raises:
        DataError: The result cannot be read, or another network was measured.
    """
    if command.compared is None:
        return {}
    result = read_result(command.compared, Comparison)
    if result.network.sha256 != network.sha256:
        raise DataError(
            "the configurations were found with another network", value=result.network, limit=str(network),
            remedy="run compare.py with this bundle",
        )  # fmt: skip
    return {choice.contender: choice.best(command.concurrency) for choice in result.choices}


def _latencies_ms(outcomes: Sequence[Outcome]) -> list[float]:
    return [outcome.latency_s * 1000 for outcome in outcomes]


def _require_answers(contender: Contender, load: Load) -> None:
    if not load.good:
        raise DataError(f"{contender} answers nothing", value=load.words, limit="status 200", remedy="see its program")


if __name__ == "__main__":
    main()
