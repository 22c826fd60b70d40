"""Measures how many times as fast one network file is as another."""

import statistics
import time
from pathlib import Path
from typing import Final

import msgspec

from models.session import NetworkSession, OnnxSession
from training.bundling.precisions.ranges import Pixels

_WARM_UP: Final = 3  # runs before the measurement


class Speedup(msgspec.Struct, frozen=True):
    """The speed of two network files, one picture at a time."""

    ratio: float
    """Median over the pairs of the slow file's time divided by the fast file's."""
    fast_ms: float
    """Median time of the fast file."""
    slow_ms: float
    """Median time of the slow file."""
    num_pairs: int


def speedup(fast: Path, slow: Path, pixels: Pixels, *, num_pairs: int, slow_pixels: Pixels | None = None) -> Speedup:
    """Runs both files in turns on one thread, with alternating order, so that other load slows both alike.

    A busy service runs one picture on each core, hence one thread.

    Args:
        fast: The file that should be faster.
        slow: The file to compare with.
        pixels: One picture, shape (1, 3, height, width).
        num_pairs: Number of runs of each file.
        slow_pixels: The picture for the other file, if its input has another size.
    """
    sessions = [OnnxSession(path, num_threads=1) for path in (fast, slow)]
    inputs = (pixels, pixels if slow_pixels is None else slow_pixels)
    for session, picture in [*zip(sessions, inputs, strict=True)] * _WARM_UP:
        session.run(picture)
    pairs = []
    for turn in range(num_pairs):
        order = (0, 1) if turn % 2 else (1, 0)
        seconds = {index: _seconds(sessions[index], inputs[index]) for index in order}
        pairs.append((seconds[0], seconds[1]))
    return Speedup(
        ratio=statistics.median(slow / fast for fast, slow in pairs),
        fast_ms=1e3 * statistics.median(fast for fast, _ in pairs),
        slow_ms=1e3 * statistics.median(slow for _, slow in pairs),
        num_pairs=num_pairs,
    )


def _seconds(session: NetworkSession, pixels: Pixels) -> float:
    start = time.perf_counter()
    session.run(pixels)
    return time.perf_counter() - start
