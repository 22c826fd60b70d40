"""Which network of a bundle runs, and where: the CPU's sessions and the GPU's."""

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from models.bundle import Bundle, Precision
from models.errors import InputError
from models.session import NetworkSession, OnnxSession
from serving.scheduling.blocked_layout import rewritten
from serving.scheduling.policies import BatchPlan, CorePlan, FixedPlan, Lane, Plan

_CUDA: Final = "CUDAExecutionProvider"
_CUDA_LIBRARY: Final = "onnxruntime_providers_cuda.dll" if os.name == "nt" else "libonnxruntime_providers_cuda.so"
_CPU: Final = "CPUExecutionProvider"
# HEURISTIC asks cuDNN for its guess; EXHAUSTIVE times every algorithm at each new batch size, and DEFAULT was seen to
# be 50 times slower. The arena grows by what is asked for, and not to the next power of two.
_CUDA_OPTIONS: Final = {"cudnn_conv_algo_search": "HEURISTIC", "arena_extend_strategy": "kSameAsRequested"}
_ORDER_ON_CPU: Final[tuple[Precision, ...]] = ("int8", "fp32", "fp16")
_ORDER_ON_GPU: Final[tuple[Precision, ...]] = ("fp16", "fp32", "int8")

_log = structlog.get_logger(__name__)


def choose_precision(bundle: Bundle, wanted: Precision | None, *, cuda: bool = False) -> Precision:
    """The precision to run: the one that was asked for, else the fastest that the bundle holds for the device.

    A network stands in a bundle only if it passed its gates, so the fastest is also right: int8 on a CPU, fp16 on a
    GPU, else fp32.
    """
    if wanted is not None:
        return wanted
    order = _ORDER_ON_GPU if cuda else _ORDER_ON_CPU
    return next(precision for precision in order if precision in bundle.record.networks)


def choose_plan(*, cuda: bool, num_cores: int, num_threads: int | None, num_runs: int | None) -> Plan:
    """How runs share the device.

    Args:
        cuda: Whether the network runs on a GPU.
        num_cores: What this process may use.
        num_threads: Threads of a run, where the operator chose.
        num_runs: Runs at the same time, where the operator chose.
    """
    if cuda:
        return BatchPlan(num_workers=num_runs or BatchPlan().num_workers)
    if num_threads is None and num_runs is None:
        return CorePlan(num_cores)
    threads = num_threads or max(1, num_cores // (num_runs or 1))
    return FixedPlan(num_runs or max(1, num_cores // threads), threads)


def open_networks(bundle: Bundle, precision: Precision, plan: Plan) -> Mapping[Lane, NetworkSession]:
    """Opens the network of a bundle once for every lane of the plan.

    Raises:
        BundleError: The network does not load or contradicts its bundle.
        InputError: CUDA was asked for and cannot be used; ONNX Runtime itself would silently take the CPU.
    """
    if isinstance(plan, BatchPlan):
        return {lane: _on_cuda(bundle, precision) for lane in plan.threads}
    # What is rewritten takes one picture a run. ONNX Runtime's blocked layout is one of fp32 only.
    faster = _rewritten_for_cpu(bundle, plan) if precision == "fp32" and plan.buckets == (1,) else None
    return faster or _on_cpu(bundle, precision, plan)


def _on_cpu(bundle: Bundle, precision: Precision, plan: Plan, **options: Any) -> dict[Lane, OnnxSession]:
    return {
        lane: bundle.open_session(precision, providers=(_CPU,), num_threads=num_threads, **options)
        for lane, num_threads in plan.threads.items()
    }


def _rewritten_for_cpu(bundle: Bundle, plan: Plan) -> dict[Lane, OnnxSession] | None:
    """The network in a form that is faster on this processor, if there is one and it answers as the original does."""
    try:
        with rewritten(bundle.network_path("fp32"), bundle.record.input) as found:
            if found is None:
                return None
            sessions = _on_cpu(bundle, "fp32", plan, instead=found.path, optimize=False)
            if all(found.probe.agrees(session) for session in sessions.values()):
                return sessions
            reason = "it answers otherwise than the original"
    except Exception as error:  # of ONNX Runtime, whose classes come straight from Exception; the original may run
        reason = " ".join(str(error).split())[:300]
    _log.warning("blocked_layout_left_out", reason=reason)
    return None


def _on_cuda(bundle: Bundle, precision: Precision) -> OnnxSession:
    _load_cuda_libraries()
    session = bundle.open_session(precision, providers=((_CUDA, _CUDA_OPTIONS), _CPU), bind_to="cuda")
    if _CUDA not in session.providers:
        raise InputError(
            "CUDA was asked for and ONNX Runtime cannot use it",
            value=_why_no_cuda(),
            limit=_CUDA,
            remedy='install "onnxruntime-gpu[cuda,cudnn]" in place of onnxruntime, check nvidia-smi, '
            "or start with --provider cpu",
        )
    return session


def _load_cuda_libraries() -> None:
    """Loads CUDA and cuDNN from their wheels, where they are installed that way."""
    import onnxruntime

    onnxruntime.preload_dlls()


def _why_no_cuda() -> str:
    """The library that is missing, as the system's loader names it."""
    import onnxruntime

    library = Path(onnxruntime.__file__).parent / "capi" / _CUDA_LIBRARY
    if not library.exists():
        return "an onnxruntime that was built without CUDA"
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        return str(error)
    return "no GPU that it can use"
