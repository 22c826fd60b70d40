"""Opens a network of a bundle, and decides what runs next: single pictures on a CPU, dynamic batches on a GPU."""

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from models.bundle import Bundle
from models.bundle_record import BundleRecord, Precision, Provider
from models.errors import InputError
from models.openvino_session import bf16_is_faster
from models.session import NetworkSession

RunMode = Literal["latency", "throughput"]
"""Which session a run uses: `latency` gives a single run all cores, `throughput` is for concurrent runs."""

# A GPU runs only these batch sizes. All of them are warmed up, so that no shape is new under load.
_BATCH_SIZES: Final = (1, 2, 4, 8, 16, 32)
# More threads would speed up a single picture little. An estimate, not yet measured on large machines.
_MAX_LATENCY_THREADS: Final = 16
_CUDA: Final = "CUDAExecutionProvider"
_CUDA_LIBRARY: Final = "onnxruntime_providers_cuda.dll" if os.name == "nt" else "libonnxruntime_providers_cuda.so"
_CPU: Final = "CPUExecutionProvider"
# HEURISTIC takes the algorithm that cuDNN suggests. EXHAUSTIVE times every algorithm at each new batch size, and
# DEFAULT was 50 times slower. The arena grows by the requested size rather than to the next power of two. Tensor Cores
# read NHWC; in another format cuDNN converts the maps before and after each convolution.
_CUDA_OPTIONS: Final = {
    "cudnn_conv_algo_search": "HEURISTIC",
    "arena_extend_strategy": "kSameAsRequested",
    "prefer_nhwc": "1",
}


class SchedulingPolicy(msgspec.Struct, frozen=True):
    """Decides what runs next. A batch never waits to fill up: when a run ends, the queue becomes the next one."""

    num_workers: int
    """Maximum number of concurrent runs."""
    num_threads_by_mode: dict[RunMode, int | None]
    """Threads of a run in each mode; None leaves the number to ONNX Runtime."""
    batch_sizes: tuple[int, ...] = (1,)
    """The batch sizes that runs use, ascending; each is warmed up."""

    def choose(self, running: tuple[RunMode, ...], *, alone: bool) -> RunMode | None:
        """Returns the mode of the next run, or None if the device is fully used.

        Args:
            running: The modes of the runs in flight.
            alone: Whether the service works on no other picture than the first one in the queue.
        """
        if "latency" in running or len(running) >= self.num_workers:
            return None
        takes_all_cores = alone and not running and "latency" in self.num_threads_by_mode
        return "latency" if takes_all_cores else "throughput"

    def describe(self) -> str:
        """Describes the policy in a few words, for the log, `/model` and the metrics."""
        num_threads = self.num_threads_by_mode["throughput"]
        if num_threads is None:
            return f"batches of {', '.join(map(str, self.batch_sizes))}, {self.num_workers} in flight"
        if "latency" in self.num_threads_by_mode:
            latency_threads = self.num_threads_by_mode["latency"]
            return f"1 run on {latency_threads} threads when alone, {self.num_workers} runs on 1 thread each when busy"
        if self.num_workers == num_threads == 1:
            return "1 run on 1 thread"
        return f"{self.num_workers} runs on {num_threads} threads each"


def cpu_policy(num_cores: int) -> SchedulingPolicy:
    """Batch size 1: a single picture uses all cores; under load each core runs one picture.

    Measured with EfficientNet-B4 in fp32 on two cores. A batch of 8 took 178 ms per picture on one thread; pictures run
    one by one took 144 to 150 ms. Two concurrent runs with one thread each reached 10.8 pictures/s; consecutive runs
    with two threads reached 9.2.
    """
    threads: dict[RunMode, int | None] = {"throughput": 1}
    if num_cores > 1:
        threads["latency"] = min(num_cores, _MAX_LATENCY_THREADS)
    return SchedulingPolicy(num_cores, threads)


def choose_policy(*, cuda: bool, num_cores: int, num_threads: int | None, num_runs: int | None) -> SchedulingPolicy:
    """Returns the scheduling policy for the device.

    Args:
        cuda: Whether the network runs on a GPU.
        num_cores: Cores that this process may use.
        num_threads: Threads per run, if the operator set them.
        num_runs: Concurrent runs, if the operator set them.
    """
    if cuda:  # by default two batches in flight, so that one can be copied while the other runs
        return SchedulingPolicy(num_runs or 2, {"throughput": None}, _BATCH_SIZES)
    if num_threads is None and num_runs is None:
        return cpu_policy(num_cores)
    threads = num_threads or max(1, num_cores // (num_runs or 1))
    return SchedulingPolicy(num_runs or max(1, num_cores // threads), {"throughput": threads})


def choose_precision(record: BundleRecord, requested: Precision | None, provider: Provider = "cpu") -> Precision:
    """Returns the requested precision, or else the fastest one in the bundle for the provider and this processor.

    The fastest is fp32 on a CPU, fp16 on a GPU, and bf16 with OpenVINO on a processor that is faster in it. A bundle
    contains them only if they passed their accuracy checks at export.

    Raises:
        InputError: bf16 was requested for another provider than OpenVINO, or OpenVINO is not installed.
    """
    if requested == "bf16" and provider != "openvino":
        raise InputError(
            "only OpenVINO runs the precision bf16",
            value=f"--provider {provider}",
            remedy="start the service with --provider openvino, or choose another precision",
        )
    if requested is not None:
        return requested
    if provider == "openvino" and "bf16" in record.networks and bf16_is_faster():
        return "bf16"
    order: tuple[Precision, ...] = ("fp16", "fp32") if provider == "cuda" else ("fp32", "fp16")
    return next(precision for precision in order if precision in record.networks)


def open_networks(
    bundle: Bundle, precision: Precision, policy: SchedulingPolicy, provider: Provider
) -> Mapping[RunMode, NetworkSession]:
    """Opens the network of a bundle once for each mode of the policy; that of a GPU leaves the threads to ONNX Runtime.

    Raises:
        BundleError: The network does not load or contradicts its bundle.
        InputError: The provider or the precision cannot be used here; ONNX Runtime would silently fall back to the CPU.
    """
    networks: dict[RunMode, NetworkSession] = {}
    for mode, num_threads in policy.num_threads_by_mode.items():
        if provider == "cuda":
            networks[mode] = _open_on_cuda(bundle, precision)
        elif provider == "openvino":
            num_runs = 1 if mode == "latency" else policy.num_workers
            networks[mode] = bundle.open_session(precision, openvino=True, num_threads=num_threads, num_runs=num_runs)
        else:
            networks[mode] = bundle.open_session(precision, providers=(_CPU,), num_threads=num_threads)
    return networks


def _open_on_cuda(bundle: Bundle, precision: Precision) -> NetworkSession:
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
