"""Opens a network of a bundle: chooses its precision and scheduling policy, and creates its CPU or GPU sessions."""

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from models.bundle import Bundle
from models.bundle_record import BundleRecord, Precision
from models.errors import InputError
from models.session import NetworkSession, OnnxSession
from serving.scheduling.blocked_layout import rewritten_network
from serving.scheduling.policies import CpuPolicy, DynamicBatchPolicy, FixedPolicy, RunMode, SchedulingPolicy

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
