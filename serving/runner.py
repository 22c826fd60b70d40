"""Network runs for prepared pictures: which provider, how many at a time, how many pictures a run."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from models.bundle import Bundle, Precision
from models.errors import InputError
from models.session import NetworkSession, OnnxSession
from serving.metrics import Metrics
from serving.threads import Threads

Array = npt.NDArray[np.float32]
_CUDA: Final = "CUDAExecutionProvider"
_CPU: Final = "CPUExecutionProvider"


class Runner:
    """Runs pictures through the network, off the event loop.

    On the CPU every picture is a run of its own: a batch of 8 was measured to take 178 ms a picture against 144 alone.

    Args:
        session: The network.
        num_runs: Runs at the same time.
        batched: Whether the pictures of one request share a run; right for a GPU.
        metrics: Times every run.
    """

    def __init__(self, session: NetworkSession, *, num_runs: int, batched: bool, metrics: Metrics) -> None:
        self._session, self._batched, self._metrics = session, batched, metrics
        self._threads = Threads(num_runs, "run")

    async def run(self, inputs: Sequence[Array]) -> Array:
        """Gives the logits of some pictures.

        Args:
            inputs: At least one picture as (3, height, width), normalized.

        Returns:
            Shape (num_pictures, num_outputs).
        """
        batch = np.stack(inputs)
        size = len(batch) if self._batched else 1
        rows = [await self._threads.call(self._run, batch[at : at + size]) for at in range(0, len(batch), size)]
        return np.concatenate(rows)

    def close(self) -> None:
        """Drops the runs that have not started."""
        self._threads.close()

    def _run(self, pixels: Array) -> Array:
        with self._metrics.stage("run"):
            return self._session.run(pixels).logits


def choose_precision(bundle: Bundle, wanted: Precision | None) -> Precision:
    """The precision to run: the one that was asked for, else the first that the bundle holds of fp32, fp16, int8."""
    if wanted is not None:
        return wanted
    order: tuple[Precision, ...] = ("fp32", "fp16", "int8")
    return next(precision for precision in order if precision in bundle.record.networks)


def open_session(bundle: Bundle, precision: Precision, *, cuda: bool, num_threads: int) -> OnnxSession:
    """Opens the network of a bundle where it shall run.

    Raises:
        BundleError: The network does not load or contradicts its bundle.
        InputError: CUDA was asked for and cannot be used; ONNX Runtime itself would silently take the CPU.
    """
    if not cuda:
        return bundle.open_session(precision, providers=(_CPU,), num_threads=num_threads)
    _load_cuda_libraries()
    session = bundle.open_session(precision, providers=(_CUDA, _CPU), num_threads=num_threads)
    if _CUDA not in session.providers:
        raise InputError(
            "CUDA was asked for and ONNX Runtime cannot use it",
            value=", ".join(session.providers),
            limit=_CUDA,
            remedy='install "onnxruntime-gpu[cuda,cudnn]" in place of onnxruntime, check nvidia-smi, '
            "or start with --provider cpu",
        )
    return session


def _load_cuda_libraries() -> None:
    """Loads CUDA and cuDNN from their wheels, where they are installed that way."""
    import onnxruntime

    onnxruntime.preload_dlls()
