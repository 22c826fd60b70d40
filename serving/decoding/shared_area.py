"""Memory that the service and one decoding child share, so that pictures and pixels need not cross a pipe."""

import mmap
import os
import sys
import tempfile
from typing import Final

import numpy as np
import numpy.typing as npt

# Pages that stay after a picture: to touch fresh ones costs about 1 ms a MB, and most photographs are smaller.
_KEPT_BYTES: Final = 8 * 2**20


class SharedArea:
    """An area of memory behind a file descriptor that may be handed to another process; both map it.

    Args:
        descriptor: An open file that lives in memory, at least one byte long.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, os.fstat(descriptor).st_size)

    @classmethod
    def create(cls, num_bytes: int) -> "SharedArea":
        """Makes an area; its pages take memory once they are written to."""
        descriptor = _open_memory()
        os.ftruncate(descriptor, num_bytes)
        if sys.platform == "linux":
            import fcntl

            # A child that cut its file short would end the service with SIGBUS.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        return cls(descriptor)

    def reserve(self, num_bytes: int) -> None:
        """Makes the area this large at least. The other side does the same when it learns the size."""
        if num_bytes > os.fstat(self.descriptor).st_size:
            os.ftruncate(self.descriptor, num_bytes)
        if num_bytes > len(self._map):
            self._map = mmap.mmap(self.descriptor, num_bytes)

    def write(self, data: bytes) -> None:
        """Puts bytes at the start; lets go of Python's lock meanwhile."""
        np.frombuffer(self._map, np.uint8, len(data))[:] = np.frombuffer(data, np.uint8)

    def read(self, num_bytes: int) -> bytes:
        """A copy of the bytes at the start."""
        return self._map[:num_bytes]

    def write_pixels(self, pixels: npt.NDArray[np.float32]) -> None:
        """Puts an array at the start."""
        np.frombuffer(self._map, np.float32, pixels.size).reshape(pixels.shape)[:] = pixels

    def read_pixels(self, shape: tuple[int, int, int]) -> npt.NDArray[np.float32]:
        """A copy of the array at the start."""
        return np.frombuffer(self._map, np.float32, int(np.prod(shape))).reshape(shape).copy()

    def release(self) -> None:
        """Gives back the memory of all but the first few megabytes."""
        if len(self._map) > _KEPT_BYTES and hasattr(mmap, "MADV_REMOVE"):
            self._map.madvise(mmap.MADV_REMOVE, _KEPT_BYTES)

    def close(self) -> None:
        """Closes the file; the memory goes with this object, which a thread may still write to."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1  # or a late `reserve` would change a file that is none of ours


def _open_memory() -> int:
    if sys.platform == "linux":
        return os.memfd_create("botanify-decoding", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as unnamed:
        return os.dup(unnamed.fileno())
