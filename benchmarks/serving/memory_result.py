"""The memory of our service: over many requests, in a flood, and for a malicious picture."""

import msgspec

from benchmarks.serving.flags import Flags, Network, PictureFile, require_positive
from benchmarks.serving.mixture import EXPECTED, Tally
from benchmarks.serving.targets import Target, at_most, target_lines
from models.errors import RecipeError
from training.insight.studies.report import table
from training.machine import Machine

_FLOOD_MB = 512
_DRIFT = 0.05
_HOSTILE_MB = 50
_FEWEST_REQUESTS = 100


class Memory(Flags, frozen=True, kw_only=True):
    """Measures memory: over many requests, in a flood of large photographs, and for a malicious picture."""

    requests: int = 20_000
    """Requests of the long run, half of them good."""
    concurrency: int = 4
    """Clients of the long run."""
    factor: float = 20.0
    """Request rate of the flood, as a multiple of the measured capacity in closed loop."""
    seconds: float = 20.0
    """Length of the flood, s."""
    patience_s: float = 5.0
    """Time after which a client of the flood disconnects, from when its request was due, s."""
    capacity_seconds: float = 10.0
    """Length of the measurement of the capacity, s."""
    seed: int = 0
    """Seed of the arrival times."""

    def __post_init__(self) -> None:
        require_positive(self, "concurrency", "factor", "seconds", "patience_s", "capacity_seconds")
        if self.requests < _FEWEST_REQUESTS:
            raise RecipeError(
                "too few requests to measure a drift",
                value=self.requests,
                limit=f"at least {_FEWEST_REQUESTS}",
                remedy="raise --requests",
            )


class LongRun(msgspec.Struct, frozen=True):
    """Memory over many requests."""

    requests: int
    warm_mb: float
    """Memory after the first tenth of the requests, MB."""
    end_mb: float
    """Memory after the last request, MB."""
    course_mb: list[float]
    """Memory after each twentieth of the requests, MB."""
    tallies: list[Tally]

    @property
    def drift(self) -> float:
        """Growth from warm to the end, as a share."""
        return self.end_mb / self.warm_mb - 1

    @property
    def unexpected(self) -> list[Tally]:
        """Requests that did not end as expected of their kind."""
        return [tally for tally in self.tallies if EXPECTED[tally.kind] != tally.word]


class Flood(msgspec.Struct, frozen=True):
    """Memory in a flood of large photographs."""

    capacity_per_s: float
    offered_per_s: float
    words: dict[str, int]
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


class MemoryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the program."""

    machine: Machine
    measured_on: str
    setting: Memory
    network: Network
    photograph: PictureFile
    """The photograph of the flood."""
    own_versions: dict[str, str]
    life: LongRun
    flood: Flood
    hostile: Hostile
    targets: list[Target] = []


def targets(result: MemoryResult) -> list[Target]:
    """The goals."""
    flood, hostile = result.flood, result.hostile
    refused = 0 if hostile.status == 422 else 1
    return [
        at_most("drift over the long life", _DRIFT, result.life.drift),
        at_most("flood, beyond idle", _FLOOD_MB, flood.peak_mb - flood.idle_mb, unit="MB"),
        at_most("hostile WebP that was not refused with 422", 0, refused),
        at_most("hostile WebP, extra memory", _HOSTILE_MB, hostile.extra_mb, unit="MB"),
    ]


def markdown(result: MemoryResult) -> str:
    """The result as a table, then the goals."""
    life, flood, hostile = result.life, result.flood, result.hostile
    rows = [
        [f"{life.requests:,} requests, half of them valid", f"{life.warm_mb:.0f} MB warm", f"{life.end_mb:.0f} MB"],
        [
            f"{flood.offered_per_s:.0f} requests/s of {result.photograph.megapixels:.0f} MP, where "
            f"{flood.capacity_per_s:.1f}/s can be answered",
            f"{flood.idle_mb:.0f} MB idle",
            f"{flood.peak_mb:.0f} MB (at most {flood.high_water_mb:.0f}); {flood.after_mb:.0f} MB after",
        ],
        [f"a WebP of 50 MP in {hostile.num_bytes / 1000:.0f} kB", "", f"{hostile.extra_mb:.1f} MB more"],
    ]
    unexpected = "; ".join(f"{tally.count} {tally.kind}: {tally.word}" for tally in life.unexpected) or "none"
    note = f" {result.setting.note}" if result.setting.note else ""
    return "\n\n".join(
        [
            f"{result.machine}: {result.network}, {result.measured_on}.{note}",
            table(["what", "before", "memory"], rows),
            f"Unexpected outcomes among the {life.requests:,} requests: {unexpected}. Responses in the flood: "
            f"{', '.join(f'{count:,} with status {word}' for word, count in flood.words.items())}.",
            target_lines(result.targets),
        ]
    )
