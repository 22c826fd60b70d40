"""How many times as fast one network file is as another, in one run on one machine."""

import statistics
import time
from pathlib import Path
from typing import Final

import msgspec

from models.session import NetworkSession, OnnxSession
from training.release.precisions.ranges import Pixels

_WARM_UP: Final = 3  # runs whose time does not count


class Speedup(msgspec.Struct, frozen=True):
    """Two files against one another, one picture at a time."""

    ratio: float
    """Median over the pairs of the slow file's time by the fast one's."""
    fast_ms: float
    """Median time of the file that is hoped to be faster."""
    slow_ms: float
    """Median time of the other."""
    num_pairs: int


def speedup(fast: Path, slow: Path, pixels: Pixels, *, num_pairs: int, num_threads: int = 1) -> Speedup:
    """Runs both in turn, now one first and now the other, so that whatever else the machine does slows both alike.

    Args:
        fast: The file that is hoped to be faster.
        slow: The file it is held against.
        pixels: One picture, shape (1, 3, height, width).
        num_pairs: How often each runs.
        num_threads: Threads of a run; a busy service runs one picture on each core.
    """
    sessions = [OnnxSession(path, num_threads=num_threads) for path in (fast, slow)]
    for session in sessions * _WARM_UP:
        session.run(pixels)
    pairs = []
    for turn in range(num_pairs):
        order = (0, 1) if turn % 2 else (1, 0)
        seconds = {which: _seconds(sessions[which], pixels) for which in order}
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
