"""The result of an overload: answers, refusals, and the state of the server afterwards."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final, Literal

import msgspec

from benchmarks.serving.flags import Flags, Network, PictureFile, require_positive
from benchmarks.serving.photographs import PhotographName
from benchmarks.serving.server_config import Decoding, RivalName, ServerConfig
from benchmarks.serving.servers import OURS, Contender
from benchmarks.serving.targets import Target, at_least, at_most, target_lines
from models.errors import RecipeError
from training.insight.studies.report import spread, table
from training.machine import Machine

Limits = Literal["none", "own"]
"""Whether a rival runs with its own limits against overload."""
_MOST_504: Final = 0.001


class Overload(Flags, frozen=True, kw_only=True):
    """Sends servers more requests than they can answer, one server after another."""

    servers: tuple[RivalName, ...] = ("LitServe", "BentoML", "FastAPI")
    """Rivals; our own service is always included."""
    limits: tuple[Limits, ...] = ("none", "own")
    """Run each rival without limits, and with its own: uvicorn's connections, BentoML's requests and time, LitServe's
    time."""
    decoding: Decoding = "full"
    """How rivals decode: Pillow's full decode, as in their documentation, or ours at a reduced scale."""
    compared: Path | None = None
    """Result of compare.py with the same network; the rivals get its best configurations. Default: one process for
    each core."""
    photograph: PhotographName = "12 MP"
    """The photograph to send."""
    factor: float = 2.5
    """Request rate, as a multiple of the server's measured capacity in closed loop."""
    seconds: float = 30.0
    """Length of the burst, s."""
    patience_s: float = 5.0
    """Time after which a client disconnects, from when its request was due, s."""
    concurrency: int = 8
    """Clients of the closed loop that measures the capacity."""
    capacity_seconds: float = 15.0
    """Length of the measurement of the capacity, s."""
    idle_requests: int = 12
    """Single requests for the latency of an idle server."""
    rounds: int = 2
    """Number of rounds; each starts every server anew."""
    seed: int = 0
    """Seed of the arrival times."""

    def __post_init__(self) -> None:
        require_positive(self, "factor", "patience_s", "concurrency", "capacity_seconds", "idle_requests", "rounds")
        if self.seconds <= self.patience_s:
            raise RecipeError(
                "the burst is shorter than the patience of a client",
                value=f"{self.seconds:g} s",
                limit=f"more than {self.patience_s:g} s",
                remedy="raise --seconds or lower --patience-s",
            )


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
    """Time to the next good answer after the burst."""
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

    @property
    def other_5xx(self) -> int:
        """Answers 5xx other than 503 and 504."""
        wrong = [word for word in self.words if word.startswith("5") and word not in {"503", "504"}]
        return sum(self.words[word] for word in wrong)


class Bursts(msgspec.Struct, frozen=True):
    """All bursts of one server."""

    contender: Contender
    limits: Limits
    bursts: list[Burst]

    @property
    def name(self) -> str:
        """The server in words."""
        return f"{self.contender}, own limits" if self.limits == "own" else str(self.contender)


class OverloadResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the program."""

    machine: Machine
    measured_on: str
    setting: Overload
    network: Network
    photograph: PictureFile
    versions: dict[str, str]
    own_versions: dict[str, str]
    servers: list[Bursts]
    targets: list[Target] = []


def targets(result: OverloadResult) -> list[Target]:
    """The goals; ratios are taken within a round."""
    ours = next(each for each in result.servers if each.contender == OURS).bursts
    applies = result.network.is_reference
    share = median(burst.good_per_s / burst.capacity_per_s for burst in ours)
    found = [at_least("ours: good answers as a share of its capacity", 0.95, share, applies=applies)]
    for rival in result.servers:
        if rival.contender != OURS:
            pairs = zip(ours, rival.bursts, strict=True)
            ratios = [a.good_per_s / b.good_per_s for a, b in pairs if b.good_per_s > 0]
            name = f"good answers against {rival.name}"
            found.append(at_least(name, 1.8, median(ratios) if ratios else None, applies=applies, unit="x"))
    return [*found, *_own_targets(ours)]


def _own_targets(ours: Sequence[Burst]) -> list[Target]:
    worst_504 = max(burst.share("504") for burst in ours)
    return [
        at_most("ours: answers 5xx but 503 and 504", 0, sum(burst.other_5xx for burst in ours)),
        at_most("ours: share of 504", _MOST_504, worst_504),
        at_most("ours: connections lost", 0, sum(burst.words.get("connection lost", 0) for burst in ours)),
        at_most("ours: answers, p99", 1500, _most([burst.answer_p99_ms for burst in ours]), unit="ms"),
        at_most("ours: refusals, p99", 20, _most([burst.refusal_p99_ms for burst in ours]), unit="ms"),
        at_least("ours: refusals with Retry-After", 1, _least([burst.retry_after for burst in ours])),
        at_most("ours: next request as a multiple of idle", 2, median(burst.next_ms / burst.idle_ms for burst in ours)),
    ]


def markdown(result: OverloadResult) -> str:
    """The result as a table, medians with their ranges, then the goals."""
    setting = result.setting
    columns = [
        "server", "capacity/s", "offered/s", "good/s", "gave up", "refused", "errors", "answers p50", "p99",
        "refusals p99", "next request", "idle", "memory before", "peak", "after",
    ]  # fmt: skip
    return "\n\n".join(
        [
            f"{result.machine}: {result.network}; {setting.photograph} photograph. For {setting.seconds:g} s, requests "
            f"come at {setting.factor:g} times the rate that the server answers {setting.concurrency} at a time, and "
            f"clients leave after {setting.patience_s:g} s. {setting.rounds} interleaved rounds, {result.measured_on}; "
            f"median [range].{' ' if setting.note else ''}{setting.note}",
            table(columns, [_row(each) for each in result.servers]),
            target_lines(result.targets),
        ]
    )


def _row(each: Bursts) -> list[str]:
    bursts = each.bursts
    return [
        each.name,
        spread(burst.capacity_per_s for burst in bursts),
        spread(burst.offered_per_s for burst in bursts),
        spread(burst.good_per_s for burst in bursts),
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


def _most(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _least(values: Sequence[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)
