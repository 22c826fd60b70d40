"""Memory shared by the service and a decoding child, so that they do not send pictures and pixels through a pipe."""

import mmap
import os
import sys
import tempfile
from typing import Final

import numpy as np
import numpy.typing as npt

# Stays mapped between pictures, because new pages cost about 1 ms per MB. Most photographs are smaller.
_KEPT_BYTES: Final = 8 * 2**20


class SharedArea:
    """Memory behind a file descriptor that is passed to another process, mapped by both.

    Args:
        descriptor: An open in-memory file of at least one byte.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, os.fstat(descriptor).st_size)

    @classmethod
    def create(cls, num_bytes: int) -> "SharedArea":
        """Creates an area; its pages take memory only once they are written."""
        descriptor = _open_memory()
        os.ftruncate(descriptor, num_bytes)
        if sys.platform == "linux":
            import fcntl

            # Forbids shrinking: if a child truncated the file, the service would crash with SIGBUS.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        return cls(descriptor)

    def reserve(self, num_bytes: int) -> None:
        """Grows the area to at least this size. The other process must do the same."""
        if num_bytes > os.fstat(self.descriptor).st_size:
            os.ftruncate(self.descriptor, num_bytes)
        if num_bytes > len(self._map):
            self._map = mmap.mmap(self.descriptor, num_bytes)

    def write(self, data: bytes) -> None:
        """Writes bytes at the start; releases the GIL while copying."""
        np.frombuffer(self._map, np.uint8, len(data))[:] = np.frombuffer(data, np.uint8)

    def read(self, num_bytes: int) -> bytes:
        """Returns a copy of the bytes at the start."""
        return self._map[:num_bytes]

    def write_pixels(self, pixels: npt.NDArray[np.float32]) -> None:
        """Writes an array at the start."""
        np.frombuffer(self._map, np.float32, pixels.size).reshape(pixels.shape)[:] = pixels

    def read_pixels(self, shape: tuple[int, int, int]) -> npt.NDArray[np.float32]:
        """Returns a copy of the array at the start."""
        return np.frombuffer(self._map, np.float32, int(np.prod(shape))).reshape(shape).copy()

    def release(self) -> None:
        """Frees all but the first `_KEPT_BYTES` of the memory."""
        if len(self._map) > _KEPT_BYTES and hasattr(mmap, "MADV_REMOVE"):
            self._map.madvise(mmap.MADV_REMOVE, _KEPT_BYTES)

    def close(self) -> None:
        """Closes the file. The mapping stays until this object is freed, because a thread may still write to it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1  # so that a late `reserve` cannot change another file that reuses the number


def _open_memory() -> int:
    if sys.platform == "linux":
        return os.memfd_create("botanify-decoding", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as unnamed:
        return os.dup(unnamed.fileno())
