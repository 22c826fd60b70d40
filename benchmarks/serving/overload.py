"""Program: sends servers 2.5 times the requests that they can answer; clients give up after 5 s.

python benchmarks/serving/overload.py [--bundle DIR] [--compared serving.json] [--out FILE.json]

Requests come in an open loop: at times that are fixed in advance, whether or not earlier ones are answered, each over a
new connection. One server runs at a time. Measured are its idle latency, capacity in closed loop, the burst, the next
request after it, and memory. Each rival runs with the configuration that `compare.py` found best and with the limits
against overload that it offers itself.
"""

import asyncio
import sys
import time
from pathlib import Path
from statistics import median
from typing import Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import msgspec

from benchmarks.result import Measured, in_turns, read_result, spread, table, write_result
from benchmarks.serving.compare import Comparison
from benchmarks.serving.flags import Flags, Network, PictureFile, network_of, picture_file
from benchmarks.serving.load import Load, arrivals, closed_loop, latencies_ms, one_by_one, open_loop, percentile
from benchmarks.serving.photographs import PhotographName
from benchmarks.serving.process_tree import MemoryWatch
from benchmarks.serving.server_config import Count, Positive, RivalName, ServerConfig
from benchmarks.serving.servers import (
    OURS,
    Contender,
    Place,
    candidates,
    identify,
    own_versions,
    require_environment,
    running,
    versions,
    with_limits,
)
from models.errors import DataError
from models.program import run_program
from training.machine import this_machine

_CLIENTS: Final = 8  # of the closed loop that measures the capacity
_IDLE_REQUESTS: Final = 12
_SETTLED_S: Final = 5.0
_LONGEST_WAIT_S: Final = 120.0
_RETRY_S: Final = 0.05


class Overload(Flags, frozen=True, kw_only=True):
    """Sends servers more requests than they can answer, one server after another."""

    servers: tuple[RivalName, ...] = ("LitServe", "BentoML", "FastAPI")
    """Rivals; our own service is always included."""
    compared: Path | None = None
    """Result of compare.py with the same network; the rivals get its best configurations. Default: one process for
    each core."""
    photograph: PhotographName = "12 MP"
    """The photograph to send."""
    factor: Positive = 2.5
    """Request rate, as a multiple of the server's measured capacity in closed loop."""
    seconds: Positive = 30.0
    """Length of the burst, s; longer than the patience of a client."""
    patience_s: Positive = 5.0
    """Time after which a client disconnects, from when its request was due, s."""
    capacity_seconds: Positive = 15.0
    """Length of the measurement of the capacity, s."""
    rounds: Count = 2
    """Number of rounds; each starts every server anew."""


class Burst(msgspec.Struct, frozen=True, kw_only=True):
    """One overload of one server."""

    setting: ServerConfig
    capacity_per_s: float
    """Good answers per second in closed loop."""
    offered_per_s: float
    good_per_s: float
    """Good answers per second, from one patience after the start to the last arrival."""
    words: dict[str, int]
    """How often each status, or end without a status, occurred."""
    answer_p50_ms: float | None
    answer_p99_ms: float | None
    """Latency of good answers, from when the request was due."""
    refusal_p99_ms: float | None
    """Latency of answers 429 and 503."""
    retry_after: float | None
    """Share of the refusals with a Retry-After header."""
    idle_ms: float
    """Median latency of the idle server before the burst."""
    next_ms: float
    """Time to the next good answer after the burst; a client that is refused tries again."""
    before_mb: float
    peak_mb: float
    after_mb: float
    """Memory before the burst, its peak in the burst, and 5 s after it, MB."""
    lateness_p99_ms: float | None
    """How late the generator sent requests."""
    generator_share: float
    """Share of one core that the generator used."""
    processes_left: int

    def share(self, *words: str) -> float:
        """Share of the requests that ended in one of these ways."""
        return sum(self.words.get(word, 0) for word in words) / max(sum(self.words.values()), 1)


class Bursts(msgspec.Struct, frozen=True):
    """All bursts of one server."""

    contender: Contender
    bursts: list[Burst]


class OverloadResult(Measured, frozen=True, kw_only=True):
    """The result of the program."""

    setting: Overload
    network: Network
    photograph: PictureFile
    versions: dict[str, str]
    own_versions: dict[str, str]
    servers: list[Bursts]


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(Overload, measure, description=__doc__)


def measure(command: Overload) -> OverloadResult:
    """Overloads each server in turn, prints a table and, with `out`, writes the result.

    Raises:
        DataError: Photographs or the rivals' environment are missing, or a server does not start or answer.
        BundleError: The bundle is missing or damaged.
    """
    place, machine, picture = command.place(), this_machine(), command.pictures()[command.photograph]
    require_environment(place.environment, command.servers)
    network = network_of(place.bundle)
    configs = {OURS: ServerConfig()} | _rivals(command, network, machine.num_cores)
    bursts: dict[Contender, list[Burst]] = {contender: [] for contender in configs}
    for _, contender in in_turns(configs, command.rounds):
        bursts[contender].append(_burst(command, place, contender, configs[contender], identify(picture.data)))
    result = OverloadResult(
        machine=machine,
        setting=msgspec.structs.replace(command.without_paths(), compared=None),
        network=network,
        photograph=picture_file(picture),
        versions=versions(place.environment),
        own_versions=own_versions(),
        servers=[Bursts(contender, found) for contender, found in bursts.items()],
    )
    write_result(result, markdown(result), command.out)
    return result


def _rivals(command: Overload, network: Network, num_cores: int) -> dict[Contender, ServerConfig]:
    """The rivals, each with the configuration that `compare.py` found best for as many clients, and its own limits.

    Raises:
        DataError: The result cannot be read, or another network was measured.
    """
    configs = {Contender(server, "full"): candidates(server, num_cores)[0] for server in command.servers}
    if command.compared is not None:
        compared = read_result(command.compared, Comparison)
        if compared.network.sha256 != network.sha256:
            raise DataError(
                "the configurations were found with another network",
                value=compared.network,
                limit=str(network),
                remedy="run compare.py with this bundle",
            )
        configs |= {each.contender: each.best[_CLIENTS] for each in compared.choices if each.contender in configs}
    return {
        Contender(server, "full"): with_limits(server, configs[Contender(server, "full")], command.patience_s)
        for server in command.servers
    }


def _burst(command: Overload, place: Place, contender: Contender, config: ServerConfig, request: bytes) -> Burst:
    """Starts a server, overloads it and stops it."""
    with running(place, contender, config) as server:
        seconds = command.capacity_seconds
        closed = closed_loop(server.port, [request], concurrency=_CLIENTS, seconds=seconds, lead_in_s=seconds / 5)
        capacity = _with_answers(contender, asyncio.run(closed))
        idle = _with_answers(contender, asyncio.run(one_by_one(server.port, request, _IDLE_REQUESTS)))
        before_mb = server.tree.memory_mb()
        moments = arrivals(command.factor * capacity.per_s, command.seconds, seed=0)
        with MemoryWatch(server.tree) as memory:
            load = asyncio.run(
                open_loop(server.port, [request], moments, seconds=command.seconds, patience_s=command.patience_s)
            )
        began = time.perf_counter()
        while not asyncio.run(one_by_one(server.port, request, 1)).good:
            if time.perf_counter() - began > _LONGEST_WAIT_S:
                break
            time.sleep(_RETRY_S)
        next_ms = (time.perf_counter() - began) * 1000
        time.sleep(_SETTLED_S)
        answers = latencies_ms(load.good)
        refusals = [each for each in load.outcomes if each.status in {429, 503}]
        return Burst(
            setting=config,
            capacity_per_s=capacity.per_s,
            offered_per_s=len(load.outcomes) / load.window_s[1],
            good_per_s=load.per_s,
            words=load.words,
            answer_p50_ms=percentile(answers, 50),
            answer_p99_ms=percentile(answers, 99),
            refusal_p99_ms=percentile(latencies_ms(refusals), 99),
            retry_after=sum(each.retry_after for each in refusals) / len(refusals) if refusals else None,
            idle_ms=median(latencies_ms(idle.good)),
            next_ms=next_ms,
            before_mb=before_mb,
            peak_mb=memory.peak_mb,
            after_mb=server.tree.memory_mb(),
            lateness_p99_ms=percentile([each * 1000 for each in load.lateness_s], 99),
            generator_share=load.generator_share,
            processes_left=server.tree.end(),
        )


def _with_answers(contender: Contender, load: Load) -> Load:
    if not load.good:
        raise DataError(f"{contender} answers nothing", value=load.words, limit="status 200", remedy="see its program")
    return load


def markdown(result: OverloadResult) -> str:
    """The result as a table, medians with their ranges."""
    setting = result.setting
    columns = [
        "server", "capacity/s", "offered/s", "good/s", "of its capacity", "gave up", "refused", "errors", "answers p50",
        "p99", "refusals p99", "next request", "idle", "memory before", "peak", "after",
    ]  # fmt: skip
    return "\n\n".join(
        [
            f"{result.machine}: {result.network}; {setting.photograph} photograph. For {setting.seconds:g} s, requests "
            f"come at {setting.factor:g} times the rate that the server answers {_CLIENTS} at a time, and clients "
            f"leave after {setting.patience_s:g} s. {setting.rounds} interleaved rounds, {result.measured_on}; median "
            "[range].",
            table(columns, [_row(each) for each in result.servers]),
        ]
    )


def _row(each: Bursts) -> list[str]:
    bursts = each.bursts
    return [
        str(each.contender),
        spread(burst.capacity_per_s for burst in bursts),
        spread(burst.offered_per_s for burst in bursts),
        spread(burst.good_per_s for burst in bursts),
        spread((100 * burst.good_per_s / burst.capacity_per_s for burst in bursts), 0, " %"),
        spread((100 * burst.share("gave up") for burst in bursts), 0, " %"),
        spread((100 * burst.share("429", "503") for burst in bursts), 0, " %"),
        spread((100 * burst.share("500", "502", "504", "connection lost") for burst in bursts), 1, " %"),
        spread((burst.answer_p50_ms for burst in bursts), 0, " ms"),
        spread((burst.answer_p99_ms for burst in bursts), 0, " ms"),
        spread((burst.refusal_p99_ms for burst in bursts), 0, " ms"),
        spread((burst.next_ms for burst in bursts), 0, " ms"),
        spread((burst.idle_ms for burst in bursts), 0, " ms"),
        spread((burst.before_mb for burst in bursts), 0, " MB"),
        spread((burst.peak_mb for burst in bursts), 0, " MB"),
        spread((burst.after_mb for burst in bursts), 0, " MB"),
    ]


if __name__ == "__main__":
    main()
