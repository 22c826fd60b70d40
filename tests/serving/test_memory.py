"""Freed memory goes back to the operating system."""

import ctypes
import sys

import numpy as np
import psutil
import pytest

from serving.machine import return_freed_memory


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc's malloc_trim"
)
def test_memory_between_pieces_in_use_is_returned():
    pieces = [np.ones(8_000, np.uint8) for _ in range(20_000)]  # too small for pages of their own
    kept = pieces[::100]
    del pieces
    before = psutil.Process().memory_info().rss
    return_freed_memory()
    assert before - psutil.Process().memory_info().rss > 50_000_000
    assert all(piece[0] == 1 for piece in kept)
