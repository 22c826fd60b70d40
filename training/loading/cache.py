"""Encoded pictures in memory that all loader processes of a training process share.

Decoded pictures would take twenty times the room. Nothing is ever dropped: with random orders over whole epochs no rule
of replacement does better than keeping what came first.
"""

import multiprocessing
import shutil
from multiprocessing.heap import BufferWrapper
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from models.errors import DataError

_LENGTH_BITS: Final = 24
_LONGEST: Final = 2**_LENGTH_BITS - 1
"""Longer pictures, 16 MiB and more, are not kept."""
_MOST_BYTES: Final = 2 ** (64 - _LENGTH_BITS)
_SHARED_MEMORY: Final = Path("/dev/shm")
_MEMORY: Final = Path("/proc/meminfo")


class EncodedCache:
    """Bytes by row, kept until it is full.

    Any number of processes may read and write; it travels to them when they are started, and its memory is given back
    when the last one ends, however it ends. Reading takes no lock.

    Args:
        num_rows: Rows of the manifest.
        max_bytes: Room for pictures, at most 1 TiB of which is used; taken from the machine only as they come.

    Raises:
        DataError: The machine has less room.
    """

    def __init__(self, num_rows: int, max_bytes: int) -> None:
        max_bytes = min(max_bytes, _MOST_BYTES)
        _require_room(max_bytes + 8 * (num_rows + 1))
        self._words, self._room = BufferWrapper(8 * (num_rows + 1)), BufferWrapper(max(max_bytes, 1))
        self._lock = multiprocessing.get_context("spawn").Lock()  # a fork server's processes take it too
        self._max_bytes = max_bytes
        self._map()
        self._table[:] = 0

    def __getstate__(self) -> dict[str, Any]:
        """Each process maps the same memory itself."""
        return {name: value for name, value in self.__dict__.items() if name not in {"_table", "_bytes"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._map()

    @property
    def used_bytes(self) -> int:
        """How much of the room is taken."""
        return int(self._table[-1])

    def get(self, row: int) -> bytes | None:
        """The bytes of a picture, if they are kept."""
        word = int(self._table[row])
        if word == 0:
            return None
        start = word >> _LENGTH_BITS
        return bytes(self._bytes[start : start + (word & _LONGEST)])

    def put(self, row: int, data: bytes) -> bool:
        """Keeps the bytes of a picture.

        Returns:
            Whether they are kept: not when the room is taken.
        """
        if not 0 < len(data) <= _LONGEST:
            return False
        with self._lock:
            if self._table[row]:
                return True
            start = self.used_bytes
            if start + len(data) > self._max_bytes:
                return False
            self._bytes[start : start + len(data)] = data
            self._table[-1] = start + len(data)
        with self._lock:  # once more: releasing it puts the bytes before the word, on every kind of processor
            self._table[row] = start << _LENGTH_BITS | len(data)
        return True

    def _map(self) -> None:
        # Of each row start and length in one word, so that no reader sees one without the other; 0: not kept. The last
        # word counts the bytes that are taken.
        self._table: npt.NDArray[np.uint64] = np.frombuffer(self._words.create_memoryview(), np.uint64)
        self._bytes = self._room.create_memoryview()


def _require_room(num_bytes: int) -> None:
    """Before anything is taken: shared memory that the machine does not have ends the process without a word."""
    for where, free in _free_bytes().items():
        if num_bytes > free:
            raise DataError(
                "the cache of encoded pictures does not fit in memory",
                value=f"{num_bytes / 1e9:.2f} GB",
                limit=f"at most {free / 1e9:.2f} GB, which {where}",
                remedy="make data.cache_gb smaller, or give the machine (or container) more shared memory",
            )


def _free_bytes() -> dict[str, int]:
    free = {}
    if _SHARED_MEMORY.is_dir():
        free[f"{_SHARED_MEMORY} has left"] = shutil.disk_usage(_SHARED_MEMORY).free
    if _MEMORY.is_file():
        lines = dict(line.split(":") for line in _MEMORY.read_text().splitlines())
        free["the machine has left"] = int(lines["MemAvailable"].split()[0]) * 1024
    return free
