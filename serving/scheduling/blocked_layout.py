"""Rewrites a network so that it runs faster on this processor, with the same output.

ONNX Runtime optimizes a network when it opens it. This module saves the optimized graph, rewrites it (`blocked_graph`)
and opens the result. The rewritten graph uses internal operators of ONNX Runtime, which may change between versions.
So it is used only if it opens and reproduces the original's output; otherwise the original runs, and the log gives
the reason.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import structlog

from models.preprocess import InputSpec
from models.session import NetworkOutput, NetworkSession, OnnxSession

_LEAVES_BLOCKED_LAYOUT: Final = b"ReorderOutput"
# Largest difference, relative to the largest value. A different order of additions changed values by 1e-6.
_TOLERANCE: Final = 1e-4

_log = structlog.get_logger(__name__)


class Reference(NamedTuple):
    """A random input and the original network's output for it."""

    pixels: npt.NDArray[np.float32]
    output: NetworkOutput

    def matches(self, session: NetworkSession) -> bool:
        """Whether a session's output is the same within the tolerance."""
        pairs = zip(session.run(self.pixels), self.output, strict=True)
        return all(np.abs(actual - expected).max() <= _TOLERANCE * np.abs(expected).max() for actual, expected in pairs)


class RewrittenNetwork(NamedTuple):
    """A network file that takes one picture per run. Only this process on this processor can use it."""

    path: Path
    """Valid until the context of `rewritten_network` ends."""
    reference: Reference


@contextmanager
def rewritten_network(path: Path, spec: InputSpec) -> Iterator[RewrittenNetwork | None]:
    """Rewrites a network for this processor.

    Args:
        path: The network file.
        spec: The network's input.

    Returns:
        The rewritten network, to be opened without further optimization until the context ends; None if there is
        nothing to rewrite or the system has no in-memory files.

    Raises:
        Exception: Any error of ONNX Runtime; its classes derive from Exception directly.
    """
    if not hasattr(os, "memfd_create"):
        yield None
        return
    # In memory, because the root file system of a container may be read-only.
    with os.fdopen(os.memfd_create("botanify-network"), "r+b") as file:
        path_in_memory = Path(f"/proc/self/fd/{file.fileno()}")
        # No variable holds this session, so that its weights are freed before further sessions are opened.
        yield _rewrite(path_in_memory, OnnxSession(path, num_threads=1, optimized_copy=path_in_memory), spec)


def _rewrite(path: Path, original: OnnxSession, spec: InputSpec) -> RewrittenNetwork | None:
    """Rewrites the optimized graph at `path` in place; `original` is its session."""
    optimized = path.read_bytes()
    if _LEAVES_BLOCKED_LAYOUT not in optimized:
        return None
    from serving.scheduling.blocked_graph import keep_blocked  # imports onnx, which takes half a second

    rewritten = keep_blocked(optimized, block_size(path))
    if not rewritten.num_scalings:
        return None
    pixels = np.random.default_rng(0).standard_normal((1, 3, spec.height, spec.width), dtype=np.float32)
    path.write_bytes(rewritten.file)
    _log.info("blocked_layout", num_scalings=rewritten.num_scalings, num_into_weights=rewritten.num_into_weights)
    return RewrittenNetwork(path, Reference(pixels, original.run(pixels)))


def block_size(scratch: Path) -> int:
    """Returns the number of channels per block in ONNX Runtime's blocked layout on this processor.

    Args:
        scratch: A file to overwrite.
    """
    import onnxruntime

    from serving.scheduling.blocked_graph import one_convolution, read_block_size

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # no warning that the file is specific to this processor
    options.optimized_model_filepath = str(scratch)
    onnxruntime.InferenceSession(one_convolution(), options, providers=["CPUExecutionProvider"])
    return read_block_size(scratch.read_bytes())
