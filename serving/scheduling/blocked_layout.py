"""The network rewritten for this very processor, where that wins time and changes no answer.

ONNX Runtime optimizes a network when it opens it; its result is taken, rewritten once more (`blocked_graph`), and
opened in its place. Operators of the runtime's own layout may change with it. So the rewritten network is used only if
it opens and answers as the original does; else the original runs, and the log says why.
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

_LEAVES_BLOCKS: Final = b"ReorderOutput"
# Of the largest logit. The two differ by the order of additions, which was seen to change 1e-6 of it.
_TOLERANCE: Final = 1e-4

_log = structlog.get_logger(__name__)


class Probe(NamedTuple):
    """A picture of noise and what the original network says of it."""

    pixels: npt.NDArray[np.float32]
    answer: NetworkOutput

    def agrees(self, session: NetworkSession) -> bool:
        """Whether another session says the same."""
        pairs = zip(session.run(self.pixels), self.answer, strict=True)
        return all(np.abs(given - wanted).max() <= _TOLERANCE * np.abs(wanted).max() for given, wanted in pairs)


class Rewritten(NamedTuple):
    """A network file for this process and this processor, for one picture a run."""

    path: Path
    """Holds until the context ends."""
    probe: Probe


@contextmanager
def rewritten(path: Path, spec: InputSpec) -> Iterator[Rewritten | None]:
    """Rewrites a network for this processor.

    Args:
        path: The network file.
        spec: What it expects.

    Returns:
        What to open without further optimization, until the context ends; None where nothing is to be won, or this
        system has no files in memory.

    Raises:
        Exception: Whatever ONNX Runtime raises, also of classes that derive from nothing else.
    """
    if not hasattr(os, "memfd_create"):
        yield None
        return
    # In memory: the root file system of a container may be read-only.
    with os.fdopen(os.memfd_create("botanify-network"), "r+b") as file:
        here = Path(f"/proc/self/fd/{file.fileno()}")
        # The session is not kept by a name: its weights would be held beside those of all that are opened next.
        yield _rewrite(here, OnnxSession(path, num_threads=1, optimized_copy=here), spec)


def _rewrite(here: Path, original: OnnxSession, spec: InputSpec) -> Rewritten | None:
    optimized = here.read_bytes()
    if _LEAVES_BLOCKS not in optimized:
        return None
    from serving.scheduling.blocked_graph import keep_blocked  # takes half a second

    faster = keep_blocked(optimized, block_size(here))
    if not faster.num_scalings:
        return None
    pixels = np.random.default_rng(0).standard_normal((1, 3, spec.height, spec.width), dtype=np.float32)
    here.write_bytes(faster.file)
    _log.info("blocked_layout", num_scalings=faster.num_scalings, num_into_weights=faster.num_into_weights)
    return Rewritten(here, Probe(pixels, original.run(pixels)))


def block_size(scratch: Path) -> int:
    """Channels in a block of ONNX Runtime's layout on this processor; for use once a session was opened.

    Args:
        scratch: A file that is overwritten.
    """
    import onnxruntime

    from serving.scheduling.blocked_graph import one_convolution, read_block_size

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # it warns that the file is for this processor
    options.optimized_model_filepath = str(scratch)
    onnxruntime.InferenceSession(one_convolution(), options, providers=["CPUExecutionProvider"])
    return read_block_size(scratch.read_bytes())
