"""Opens a network file with ONNX Runtime and runs it: pictures -> logits and features.

Importing this module is cheap: ONNX Runtime is imported when the first session is opened.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from models.arrays import Singles
from models.errors import BundleError
from models.taxonomy import label_hash

# ONNX Runtime reads this when it is first imported; otherwise it writes a device id and sends data.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# Names in the network file: export writes them, a session checks them.
INPUT_NAME = "pixels"
LOGITS_NAME = "logits"
FEATURES_NAME = "features"
OUTPUT_KEYS_FIELD = "output_keys"
LABEL_HASH_FIELD = "label_hash"

Provider = str | tuple[str, dict[str, str]]
"""Name of an execution provider of ONNX Runtime, or name and options."""


class NetworkOutput(NamedTuple):
    """The outputs of one run, a row for each picture of the batch."""

    logits: Singles
    """Shape (batch, num_outputs), not calibrated."""
    features: Singles
    """Shape (batch, num_features): the pooled features before the classifier (1,792 for EfficientNet-B4)."""


class NetworkSession(Protocol):
    """Interface of a session, so that tests can replace it."""

    def run(self, pixels: Singles) -> NetworkOutput:
        """Runs a batch of shape (batch, 3, height, width), normalized float32."""
        ...


class OnnxSession:
    """A network file opened with ONNX Runtime; several threads may call `run` at once.

    Args:
        path: The `.onnx` file.
        providers: Execution providers in order of preference.
        num_threads: Threads of one run; None for ONNX Runtime's default.
        bind_to: Device ("cuda") on which to keep buffers for every batch size, so that a run only copies pictures to
            the device and its outputs back. None to let ONNX Runtime allocate them in each run.

    Raises:
        BundleError: The file does not load, or its inputs, outputs or metadata are not those of a bundle.
    """

    def __init__(
        self,
        path: Path,
        *,
        providers: Sequence[Provider] = ("CPUExecutionProvider",),
        num_threads: int | None = None,
        bind_to: str | None = None,
    ) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors are raised as exceptions too
        # A thread that waits for the next operator spins this long before it sleeps. Without spinning, a run with two
        # threads takes longer on an idle host; with ONNX Runtime's default, much longer on a busy one.
        options.add_session_config_entry("session.intra_op.spin_duration_us", "20")
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        # The memory arena for activations stays on although it never shrinks: without it, runs take longer
        # (benchmarks/LOG.md), and on a CPU every run has the same shape.
        if num_threads is not None:
            options.intra_op_num_threads = num_threads
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=list(providers))
        except Exception as error:  # ONNX Runtime's errors derive directly from Exception
            raise BundleError(
                f"{path.name} does not load as an ONNX network",
                value=str(error).partition("\n")[0][:200],
                remedy="export the network again, or fetch the bundle again",
            ) from error
        self._bind_to = bind_to
        self._bound = threading.local()
        self.providers: tuple[str, ...] = tuple(self._session.get_providers())
        metadata = self._session.get_modelmeta().custom_metadata_map
        sides = (self._session.get_inputs(), self._session.get_outputs())
        ports = [[Port(node.name, node.type, tuple(node.shape)) for node in side] for side in sides]
        self.output_keys = checked_output_keys(path, metadata, *ports)

    def run(self, pixels: Singles) -> NetworkOutput:
        """Runs a batch of shape (batch, 3, height, width), normalized float32."""
        if self._bind_to is not None:
            by_shape: dict[tuple[int, ...], _Buffers] = self._bound.__dict__.setdefault("by_shape", {})
            if pixels.shape not in by_shape:
                by_shape[pixels.shape] = _Buffers(self._session, pixels.shape, self._bind_to)
            return by_shape[pixels.shape].run(pixels)
        logits, features = self._session.run([LOGITS_NAME, FEATURES_NAME], {INPUT_NAME: pixels})
        return NetworkOutput(logits, features)


class _Buffers:
    """Input and output buffers on a device for one batch size; used by one thread."""

    def __init__(self, session: Any, shape: tuple[int, ...], device: str) -> None:
        from onnxruntime import OrtValue

        self._session, self._binding = session, session.io_binding()
        self._pixels = OrtValue.ortvalue_from_shape_and_type(shape, np.float32, device, 0)
        self._binding.bind_ortvalue_input(INPUT_NAME, self._pixels)
        for name in (LOGITS_NAME, FEATURES_NAME):
            self._binding.bind_output(name, device)

    def run(self, pixels: Singles) -> NetworkOutput:
        """Copies the pictures to the device, runs the network, and copies the outputs back."""
        self._pixels.update_inplace(np.ascontiguousarray(pixels))
        self._session.run_with_iobinding(self._binding)
        logits, features = self._binding.copy_outputs_to_cpu()
        return NetworkOutput(logits, features)


class Port(NamedTuple):
    """An input or output of a network, as ONNX Runtime describes it."""

    name: str
    type: str
    """Such as "tensor(float)"."""
    shape: tuple[int | str | None, ...]
    """A word or None stands for any length."""


def checked_output_keys(
    path: Path, metadata: Mapping[str, str], inputs: Sequence[Port], outputs: Sequence[Port]
) -> tuple[str, ...]:
    """Returns the names of a network's outputs, which its metadata hold with their hash.

    Raises:
        BundleError: Its inputs, outputs or metadata are not those of a bundle's network.
    """
    try:
        keys = msgspec.json.decode(metadata.get(OUTPUT_KEYS_FIELD, "[]"), type=tuple[str, ...])
    except msgspec.DecodeError:
        keys = ()
    if not keys or metadata.get(LABEL_HASH_FIELD) != label_hash(keys):
        raise BundleError(
            f"{path.name} lacks the names of its outputs, or their hash is wrong",
            limit=f"metadata {OUTPUT_KEYS_FIELD} and {LABEL_HASH_FIELD}",
            remedy="export the network with training/export.py",
        )
    _require_interface(path, inputs, {port.name: port for port in outputs}, len(keys))
    return keys


def _require_interface(path: Path, inputs: Sequence[Port], outputs: Mapping[str, Port], num_outputs: int) -> None:
    if {port.name for port in inputs} != {INPUT_NAME} or not {LOGITS_NAME, FEATURES_NAME} <= outputs.keys():
        raise BundleError(
            f"{path.name} does not have the inputs and outputs of a bundle's network",
            value=f"{sorted(port.name for port in inputs)} -> {sorted(outputs)}",
            limit=f"{INPUT_NAME} -> {LOGITS_NAME}, {FEATURES_NAME}",
            remedy="export the network with training/export.py",
        )
    shape = list(inputs[0].shape)
    if inputs[0].type != "tensor(float)" or len(shape) != 4 or isinstance(shape[0], int) or shape[1] != 3:
        raise BundleError(
            f"{path.name} does not take pictures in the shape of a bundle's network",
            value=f"{inputs[0].type} of {shape}",
            limit="tensor(float) of [any number of pictures, 3, height, width]",
            remedy="export the network with training/export.py",
        )
    logits = outputs[LOGITS_NAME].shape
    width = logits[-1] if logits else "no"
    if width != num_outputs:
        raise BundleError(
            f"in {path.name} the number of outputs differs from the number of output names",
            value=f"{width} outputs",
            limit=f"{num_outputs}, as in its metadata",
            remedy="export the network again",
        )
