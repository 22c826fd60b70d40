"""Scheduling policies: single pictures on a CPU, dynamic batches on a GPU."""

from typing import Final, Literal, NamedTuple, Protocol

import msgspec

RunMode = Literal["latency", "throughput"]
"""Which session a run uses: `latency` gives a single run all cores, `throughput` is for concurrent runs."""

# A GPU runs only these batch sizes. All of them are warmed up, so that no shape is new under load.
_BATCH_SIZES: Final = (1, 2, 4, 8, 16, 32)
# More threads would speed up a single picture little. An estimate, not yet measured on large machines.
_MAX_LATENCY_THREADS: Final = 16


def padded_batch_size(num_pictures: int, batch_sizes: tuple[int, ...]) -> int:
    """Returns the smallest batch size that holds the pictures."""
    return next(size for size in batch_sizes if size >= num_pictures)


class NextRun(NamedTuple):
    """The run to start now."""

    num_pictures: int
    mode: RunMode


class SchedulingPolicy(Protocol):
    """Decides what runs next."""

    @property
    def num_workers(self) -> int:
        """Maximum number of concurrent runs."""
        ...

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The batch sizes that runs use, ascending; each is warmed up."""
        ...

    @property
    def num_threads_by_mode(self) -> dict[RunMode, int | None]:
        """Threads of a run in each mode that the policy uses; None leaves the number to ONNX Runtime."""
        ...

    def choose(self, num_waiting: int, running: tuple[RunMode, ...], *, alone: bool) -> NextRun | None:
        """Chooses the next run.

        Args:
            num_waiting: Pictures in the queue.
            running: The modes of the runs in flight.
            alone: Whether the service works on no other picture than the first one in the queue.

        Returns:
            The run, or None if the queue is empty or the device is fully used.
        """
        ...

    def describe(self) -> str:
        """Describes the policy in a few words, for the log, `/model` and the metrics."""
        ...


class CpuPolicy(msgspec.Struct, frozen=True):
    """Batch size 1: a single picture uses all cores; under load each core runs one picture.

    Measured with EfficientNet-B4 in fp32 on two cores. A batch of 8 took 178 ms per picture on one thread; pictures run
    one by one took 144 to 150 ms. Two concurrent runs with one thread each reached 10.8 pictures/s; consecutive runs
    with two threads reached 9.2.
    """

    num_cores: int
    batch_sizes: tuple[int, ...] = (1,)

    @property
    def num_workers(self) -> int:
        """One per core."""
        return self.num_cores

    @property
    def num_threads_by_mode(self) -> dict[RunMode, int | None]:
        """See `SchedulingPolicy.num_threads_by_mode`."""
        threads: dict[RunMode, int | None] = {"throughput": 1}
        if self.num_cores > 1:
            threads["latency"] = min(self.num_cores, _MAX_LATENCY_THREADS)
        return threads

    def choose(self, num_waiting: int, running: tuple[RunMode, ...], *, alone: bool) -> NextRun | None:
        """See `SchedulingPolicy.choose`."""
        if num_waiting == 0 or "latency" in running or len(running) >= self.num_cores:
            return None
        return NextRun(1, "latency" if alone and not running and self.num_cores > 1 else "throughput")

    def describe(self) -> str:
        """See `SchedulingPolicy.describe`."""
        if self.num_cores == 1:
            return "1 run on 1 thread"
        latency_threads = self.num_threads_by_mode["latency"]
        return f"1 run on {latency_threads} threads when alone, {self.num_cores} runs on 1 thread each when busy"


class FixedPolicy(msgspec.Struct, frozen=True):
    """Batch size 1, with the number of runs and threads that the operator set."""

    num_workers: int
    num_threads: int
    batch_sizes: tuple[int, ...] = (1,)

    @property
    def num_threads_by_mode(self) -> dict[RunMode, int | None]:
        """See `SchedulingPolicy.num_threads_by_mode`."""
        return {"throughput": self.num_threads}

    def choose(self, num_waiting: int, running: tuple[RunMode, ...], *, alone: bool) -> NextRun | None:  # noqa: ARG002
        """See `SchedulingPolicy.choose`."""
        return NextRun(1, "throughput") if num_waiting and len(running) < self.num_workers else None

    def describe(self) -> str:
        """See `SchedulingPolicy.describe`."""
        return f"{self.num_workers} runs on {self.num_threads} threads each"


class DynamicBatchPolicy(msgspec.Struct, frozen=True):
    """Dynamic batching for a GPU: when a run ends, the pictures in the queue become the next batch.

    A batch never waits to fill up. Two batches are in flight, so that one can be copied while the other runs.
    """

    batch_sizes: tuple[int, ...] = _BATCH_SIZES
    num_workers: int = 2

    @property
    def num_threads_by_mode(self) -> dict[RunMode, int | None]:
        """See `SchedulingPolicy.num_threads_by_mode`."""
        return {"throughput": None}

    def choose(self, num_waiting: int, running: tuple[RunMode, ...], *, alone: bool) -> NextRun | None:  # noqa: ARG002
        """See `SchedulingPolicy.choose`."""
        if num_waiting == 0 or len(running) >= self.num_workers:
            return None
        return NextRun(min(num_waiting, self.batch_sizes[-1]), "throughput")

    def describe(self) -> str:
        """See `SchedulingPolicy.describe`."""
        return f"batches of {', '.join(map(str, self.batch_sizes))}, {self.num_workers} in flight"
