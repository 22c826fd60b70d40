"""Opens a network of a bundle, in the precision that is the fastest on this machine unless another is asked for."""

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from models.bundle import Bundle
from models.bundle_record import BundleRecord, Precision, Provider
from models.errors import InputError
from models.openvino_session import bf16_is_faster
from models.session import NetworkSession
from serving.engine.scheduler import RunMode, SchedulingPolicy

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
