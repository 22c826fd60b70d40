"""Runs a network file on many pictures: one picture on each core, as a busy service does.

A batch would give other last bits, and an int8 network rounds these to other values. The figures of a bundle are those
of pictures that run alone, so every picture here is a run of its own, on one thread.
"""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from models.session import NetworkOutput, NetworkSession


def num_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_side_by_side(session: NetworkSession, batches: Iterable[npt.NDArray[np.float32]]) -> Iterator[NetworkOutput]:
    """Yields the outputs of each batch.

    Args:
        session: The network file, opened with `num_threads=1`.
        batches: Network inputs, each of shape (batch, 3, height, width).
    """

    def run_alone(picture: npt.NDArray[np.float32]) -> NetworkOutput:
        return session.run(picture[None])

    with ThreadPoolExecutor(num_cores()) as pool:
        for pixels in batches:
            found = pool.map(run_alone, pixels)
            yield NetworkOutput(*(np.concatenate(each) for each in zip(*found, strict=True)))
