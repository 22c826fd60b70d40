"""Rewrites a network so that it runs faster on this processor, with the same output.

ONNX Runtime optimizes a network when it opens it. This module saves the optimized graph, has it rewritten in a process
of its own (`rewriting`) and opens the result. The rewritten graph uses internal operators of ONNX Runtime, which may
change between versions. So it is used only if it opens and reproduces the original's output; otherwise the original
runs, and the log gives the reason.
"""

import mmap
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
from serving.scheduling import rewriting

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
        reference = _reference(OnnxSession(path, num_threads=1, optimized_copy=path_in_memory), spec)
        if not _leaves_blocked_layout(file.fileno()):
            yield None
            return
        rewritten = rewriting.rewrite(file.fileno())
        if not rewritten.num_scalings:
            yield None
            return
        _log.info("blocked_layout", num_scalings=rewritten.num_scalings, num_into_weights=rewritten.num_into_weights)
        yield RewrittenNetwork(path_in_memory, reference)


def _reference(original: NetworkSession, spec: InputSpec) -> Reference:
    pixels = np.random.default_rng(0).standard_normal((1, 3, spec.height, spec.width), dtype=np.float32)
    return Reference(pixels, original.run(pixels))


def _leaves_blocked_layout(descriptor: int) -> bool:
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
        return content.find(_LEAVES_BLOCKED_LAYOUT) >= 0
