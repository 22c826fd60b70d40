"""How runs share the device: one picture a run on a CPU, growing batches on a GPU."""

from typing import Final, Literal, NamedTuple, Protocol

import msgspec

Lane = Literal["wide", "narrow"]
"""Which of the opened networks runs: the one over all cores, or one over a single core."""

# Nothing but these sizes ever runs on a GPU, and each is warmed up, so no shape is new under load.
_BUCKETS: Final = (1, 2, 4, 8, 16, 32)
# Beyond these a single picture gains little from further threads; a starting point, to be measured on larger machines.
_MOST_WIDE_THREADS: Final = 16


def bucket_of(num_pictures: int, buckets: tuple[int, ...]) -> int:
    """The smallest bucket that holds so many pictures."""
    return next(bucket for bucket in buckets if bucket >= num_pictures)


class Choice(NamedTuple):
    """The run to begin now."""

    num_pictures: int
    lane: Lane


class Plan(Protocol):
    """A rule for the next run."""

    @property
    def num_workers(self) -> int:
        """Runs at the same time, at most."""
        ...

    @property
    def buckets(self) -> tuple[int, ...]:
        """The batch sizes that ever run, in order; each is warmed up."""
        ...

    @property
    def threads(self) -> dict[Lane, int | None]:
        """Threads of a run in each lane that is ever chosen; None leaves them to ONNX Runtime."""
        ...

    def choose(self, num_waiting: int, running: tuple[Lane, ...], *, alone: bool) -> Choice | None:
        """Says what to run next.

        Args:
            num_waiting: Pictures that wait; at least one.
            running: The lanes of the runs in flight.
            alone: Whether the first picture that waits is the only one in the whole service.

        Returns:
            The run, or nothing while the device is full.
        """
        ...

    def describe(self) -> str:
        """The plan in a few words, for logs, `/model` and the metrics."""
        ...


class CorePlan(msgspec.Struct, frozen=True):
    """Batch 1, as suits a CPU: one run over all cores when alone, one run a core when busy.

    Two cores, EfficientNet-B4 in fp32: a batch of 8 took 178 ms a picture on one thread against 144 to 150 alone; two
    runs of one thread gave 10.8 pictures/s against 9.2 of one run after another on two threads.
    """

    num_cores: int
    buckets: tuple[int, ...] = (1,)

    @property
    def num_workers(self) -> int:
        """One a core."""
        return self.num_cores

    @property
    def threads(self) -> dict[Lane, int | None]:
        """As `Plan.threads`."""
        threads: dict[Lane, int | None] = {"narrow": 1}
        if self.num_cores > 1:
            threads["wide"] = min(self.num_cores, _MOST_WIDE_THREADS)
        return threads

    def choose(self, num_waiting: int, running: tuple[Lane, ...], *, alone: bool) -> Choice | None:
        """As `Plan.choose`."""
        if num_waiting == 0 or "wide" in running or len(running) >= self.num_cores:
            return None
        return Choice(1, "wide" if alone and not running and self.num_cores > 1 else "narrow")

    def describe(self) -> str:
        """As `Plan.describe`."""
        if self.num_cores == 1:
            return "1 run on 1 thread"
        return f"1 run on {self.threads['wide']} threads when alone, {self.num_cores} runs on 1 thread each when busy"


class FixedPlan(msgspec.Struct, frozen=True):
    """Batch 1 with as many runs of as many threads as the operator asked for."""

    num_workers: int
    num_threads: int
    buckets: tuple[int, ...] = (1,)

    @property
    def threads(self) -> dict[Lane, int | None]:
        """As `Plan.threads`."""
        return {"narrow": self.num_threads}

    def choose(self, num_waiting: int, running: tuple[Lane, ...], *, alone: bool) -> Choice | None:  # noqa: ARG002
        """As `Plan.choose`."""
        return Choice(1, "narrow") if num_waiting and len(running) < self.num_workers else None

    def describe(self) -> str:
        """As `Plan.describe`."""
        return f"{self.num_workers} runs on {self.num_threads} threads each"


class BatchPlan(msgspec.Struct, frozen=True):
    """Continuous batching, as suits a GPU: whatever waits when a run ends is the next batch.

    Nothing ever waits for a batch to fill. Two batches are in flight, so that one is copied while the other runs.
    """

    buckets: tuple[int, ...] = _BUCKETS
    num_workers: int = 2

    @property
    def threads(self) -> dict[Lane, int | None]:
        """As `Plan.threads`."""
        return {"narrow": None}

    def choose(self, num_waiting: int, running: tuple[Lane, ...], *, alone: bool) -> Choice | None:  # noqa: ARG002
        """As `Plan.choose`."""
        if num_waiting == 0 or len(running) >= self.num_workers:
            return None
        return Choice(min(num_waiting, self.buckets[-1]), "narrow")

    def describe(self) -> str:
        """As `Plan.describe`."""
        return f"batches of {', '.join(map(str, self.buckets))}, {self.num_workers} in flight"
