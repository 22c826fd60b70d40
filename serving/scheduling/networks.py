"""Opens a network of a bundle: chooses its precision and scheduling policy, and creates its CPU or GPU sessions."""

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec
import structlog

from models.bundle import Bundle
from models.bundle_record import BundleRecord, Precision
from models.errors import InputError
from models.session import NetworkSession, OnnxSession
from serving.scheduling.blocked_layout import rewritten_network

# ---- Scheduling policies: single pictures on a CPU, dynamic batches on a GPU.

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


_CUDA: Final = "CUDAExecutionProvider"
_CUDA_LIBRARY: Final = "onnxruntime_providers_cuda.dll" if os.name == "nt" else "libonnxruntime_providers_cuda.so"
_CPU: Final = "CPUExecutionProvider"
# HEURISTIC takes the algorithm that cuDNN suggests. EXHAUSTIVE times every algorithm at each new batch size, and
# DEFAULT was 50 times slower. The arena grows by the requested size rather than to the next power of two.
_CUDA_OPTIONS: Final = {"cudnn_conv_algo_search": "HEURISTIC", "arena_extend_strategy": "kSameAsRequested"}
_CPU_PREFERENCE: Final[tuple[Precision, ...]] = ("int8", "fp32", "fp16")
_GPU_PREFERENCE: Final[tuple[Precision, ...]] = ("fp16", "fp32", "int8")

_log = structlog.get_logger(__name__)


def choose_precision(record: BundleRecord, requested: Precision | None, *, cuda: bool = False) -> Precision:
    """Returns the requested precision, or else the fastest one in the bundle for the device.

    The fastest is int8 on a CPU and fp16 on a GPU. A bundle contains them only if they passed their accuracy checks at
    export.
    """
    if requested is not None:
        return requested
    order = _GPU_PREFERENCE if cuda else _CPU_PREFERENCE
    return next(precision for precision in order if precision in record.networks)


def choose_policy(*, cuda: bool, num_cores: int, num_threads: int | None, num_runs: int | None) -> SchedulingPolicy:
    """Returns the scheduling policy for the device.

    Args:
        cuda: Whether the network runs on a GPU.
        num_cores: Cores that this process may use.
        num_threads: Threads per run, if the operator set them.
        num_runs: Concurrent runs, if the operator set them.
    """
    if cuda:
        return DynamicBatchPolicy(num_workers=num_runs or DynamicBatchPolicy().num_workers)
    if num_threads is None and num_runs is None:
        return CpuPolicy(num_cores)
    threads = num_threads or max(1, num_cores // (num_runs or 1))
    return FixedPolicy(num_runs or max(1, num_cores // threads), threads)


def open_networks(
    bundle: Bundle, precision: Precision, policy: SchedulingPolicy, *, rewrite: bool = True
) -> Mapping[RunMode, NetworkSession]:
    """Opens the network of a bundle once for each mode of the policy.

    Args:
        bundle: The bundle.
        precision: Which of its networks to open.
        policy: Gives the modes.
        rewrite: Whether to rewrite the network for this processor if it can be.

    Raises:
        BundleError: The network does not load or contradicts its bundle.
        InputError: CUDA was requested and cannot be used; ONNX Runtime would silently fall back to the CPU.
    """
    if isinstance(policy, DynamicBatchPolicy):
        return {mode: _open_on_cuda(bundle, precision) for mode in policy.num_threads_by_mode}
    # The rewritten network takes one picture per run, and ONNX Runtime has a blocked layout for fp32 only.
    can_rewrite = rewrite and precision == "fp32" and policy.batch_sizes == (1,)
    rewritten = _open_rewritten(bundle, policy) if can_rewrite else None
    return rewritten or _open_on_cpu(bundle, precision, policy)


def _open_on_cpu(
    bundle: Bundle, precision: Precision, policy: SchedulingPolicy, **options: Any
) -> dict[RunMode, OnnxSession]:
    return {
        mode: bundle.open_session(precision, providers=(_CPU,), num_threads=num_threads, **options)
        for mode, num_threads in policy.num_threads_by_mode.items()
    }


def _open_rewritten(bundle: Bundle, policy: SchedulingPolicy) -> dict[RunMode, OnnxSession] | None:
    """Opens the rewritten network. Returns None if nothing was rewritten, it does not open or its output differs."""
    try:
        with rewritten_network(bundle.network_path("fp32"), bundle.record.input) as rewritten:
            if rewritten is None:
                return None
            sessions = _open_on_cpu(bundle, "fp32", policy, instead=rewritten.path, optimize=False)
            if all(rewritten.reference.matches(session) for session in sessions.values()):
                return sessions
            reason = "its output differs from the original network's"
    except Exception as error:  # ONNX Runtime's errors derive from Exception only; the original network may still run
        reason = " ".join(str(error).split())[:300]
    _log.warning("blocked_layout_left_out", reason=reason)
    return None


def _open_on_cuda(bundle: Bundle, precision: Precision) -> OnnxSession:
    _load_cuda_libraries()
    session = bundle.open_session(precision, providers=((_CUDA, _CUDA_OPTIONS), _CPU), bind_to="cuda")
    if _CUDA not in session.providers:
        raise InputError(
            "CUDA was requested and ONNX Runtime cannot use it",
            value=_missing_cuda_reason(),
            limit=_CUDA,
            remedy='install "onnxruntime-gpu[cuda,cudnn]" in place of onnxruntime, check nvidia-smi, '
            "or start with --provider cpu",
        )
    return session


def _load_cuda_libraries() -> None:
    """Loads CUDA and cuDNN from their Python wheels, if these are installed."""
    import onnxruntime

    onnxruntime.preload_dlls()


def _missing_cuda_reason() -> str:
    """Returns why CUDA cannot be used, usually the loader's message about a missing library."""
    import onnxruntime

    library = Path(onnxruntime.__file__).parent / "capi" / _CUDA_LIBRARY
    if not library.exists():
        return "this onnxruntime was built without CUDA"
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        return str(error)
    return "no usable GPU was found"
