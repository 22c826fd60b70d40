"""Opens a network file with OpenVINO, which is faster than ONNX Runtime on processors with bfloat16 arithmetic.

Importing this module is cheap: OpenVINO is imported when it is first needed. It reads the ONNX file of the fp32 network
and computes in single precision or in bfloat16; there is no second file.
"""

import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from models.arrays import Singles
from models.errors import BundleError, InputError
from models.session import (
    FEATURES_NAME,
    INPUT_NAME,
    LABEL_HASH_FIELD,
    LOGITS_NAME,
    OUTPUT_KEYS_FIELD,
    NetworkOutput,
    Port,
    checked_output_keys,
)

_NAMES = frozenset({INPUT_NAME, LOGITS_NAME, FEATURES_NAME})


class OpenVinoSession:
    """A network file opened with OpenVINO on a CPU; several threads may call `run` at once.

    Args:
        path: The `.onnx` file.
        bf16: Compute in bfloat16 rather than in single precision.
        num_threads: Threads of one run; None for OpenVINO's default.
        num_runs: Runs that compute at the same time; a further one waits.

    Raises:
        BundleError: The file does not load, or its inputs, outputs or metadata are not those of a bundle.
        InputError: OpenVINO is not installed, or the processor has no bfloat16 arithmetic.
    """

    providers = ("OpenVINO",)

    def __init__(self, path: Path, *, bf16: bool = False, num_threads: int | None = None, num_runs: int = 1) -> None:
        if bf16:
            require_bf16()
        options: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": "bf16" if bf16 else "f32",
            "NUM_STREAMS": num_runs,
            "ENABLE_CPU_PINNING": False,  # threads on fixed cores wait for the decoders that run there
        }
        if num_threads is not None:
            options["INFERENCE_NUM_THREADS"] = num_threads * num_runs  # of all streams
        core = _core()
        try:
            model = core.read_model(path)
            ports = [[_port(each) for each in side] for side in (model.inputs, model.outputs)]
            self.output_keys = checked_output_keys(path, _metadata(model), *ports)
            self._network = core.compile_model(model, "CPU", options)
        except RuntimeError as error:  # OpenVINO's errors have no class of their own
            raise BundleError(
                f"{path.name} does not load as an ONNX network",
                value=str(error).strip().rpartition("\n")[2][:200],
                remedy="export the network again, or fetch the bundle again",
            ) from error
        self._idle: list[Any] = []

    def run(self, pixels: Singles) -> NetworkOutput:
        """Runs a batch of shape (batch, 3, height, width), normalized float32."""
        try:  # appending and popping need no lock
            request = self._idle.pop()
        except IndexError:
            request = self._network.create_infer_request()
        found = request.infer({INPUT_NAME: np.ascontiguousarray(pixels)}, share_inputs=True)
        output = NetworkOutput(found[LOGITS_NAME], found[FEATURES_NAME])
        self._idle.append(request)
        return output


def require_bf16() -> None:
    """Raises an InputError unless OpenVINO is installed and the processor computes in bfloat16."""
    if not has_bf16():
        raise InputError(
            "this processor does not compute in bfloat16",
            limit="a processor with AMX or AVX512-BF16",
            remedy="leave out the precision bf16",
        )


def has_bf16() -> bool:
    """Returns whether the processor computes in bfloat16 (AMX or AVX512-BF16); OpenVINO would emulate it silently.

    Raises:
        InputError: OpenVINO is not installed.
    """
    return "BF16" in _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def bf16_is_faster() -> bool:
    """Returns whether networks run faster in bfloat16 than in single precision: with AMX, or with AMD's AVX512-BF16.

    Intel's AVX512-BF16 alone, as in a virtual machine that hides AMX, is slower than single precision
    (benchmarks/LOG.md).
    """
    flags = processor_flags()
    return "amx_bf16" in flags or ("avx512_bf16" in flags and "AuthenticAMD" in flags)


def processor_flags() -> frozenset[str]:
    """Returns the vendor and the flags of the processor, as Linux names them; empty on other systems."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return frozenset(
            word for line in lines if line.startswith(("vendor_id", "flags")) for word in line.partition(":")[2].split()
        )
    return frozenset()


@cache
def _core() -> Any:
    """Returns the one Core of this process, which lives as long as it.

    OpenVINO's plugin for CPUs gives the thread that loads it another stack for signals, and unmaps that with the Core.
    Where Cores end in another order or thread than they began, the next signal would end the process: a SIGTERM after
    a reload, for example. Every program opens its first network before it starts threads.

    Raises:
        InputError: OpenVINO is not installed.
    """
    # Not its telemetry, which writes to the home folder and sends data when it is imported.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        import openvino
    except ImportError as error:
        raise InputError(
            "OpenVINO cannot be imported",
            value=error,
            remedy="install the extra serve-openvino, or start with --provider cpu",
        ) from error
    return openvino.Core()


def _port(port: Any) -> Port:
    names = port.get_names()
    kind = port.get_element_type()
    shape = port.get_partial_shape()
    return Port(
        next(iter(names & _NAMES), ", ".join(sorted(names))),
        "tensor(float)" if kind.get_type_name() == "f32" else f"tensor({kind.to_dtype()})",
        tuple(side.get_length() if side.is_static else None for side in shape) if shape.rank.is_static else (),
    )


def _metadata(model: Any) -> dict[str, str]:
    """Returns the metadata of an ONNX file, which OpenVINO keeps under "framework"."""
    return {
        field: model.get_rt_info(["framework", field]).astype(str)
        for field in (OUTPUT_KEYS_FIELD, LABEL_HASH_FIELD)
        if model.has_rt_info(["framework", field])
    }
