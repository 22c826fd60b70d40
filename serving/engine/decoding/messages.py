"""The messages between the service and a decoding child: one line of JSON each.

The service sends a `Step` for the header and receives the `Cost`. Once that much memory is granted it sends that which
decodes. The child keeps nothing between commands. Bytes and pixels are passed through a `SharedArea`, memory that both
map, rather than through a pipe.
"""

import mmap
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Annotated, Final, Literal

import msgspec
import numpy as np

from models.arrays import Singles
from models.errors import PictureError, TooManyPixels, UnreadableImage, UnsupportedFormat
from models.exif import Capture
from models.preprocess import InputSpec

MAX_MESSAGE_BYTES: Final = 65_536  # real messages take a few hundred bytes; a child that sends more is broken
Natural = Annotated[int, msgspec.Meta(ge=0)]
# Stays mapped between pictures, because new pages cost about 1 ms per MB. Most photographs are smaller.
_KEPT_BYTES: Final = 8 * 2**20
_ERRORS: Final = {kind.code: kind for kind in (PictureError, UnsupportedFormat, UnreadableImage, TooManyPixels)}


class Step(msgspec.Struct, frozen=True, tag=True):
    """Command: a step with the picture in the shared area."""

    kind: Literal["header", "decode"]
    """`header` replies the `Cost`; `decode` replaces the picture in the area by its pixels and replies `Done`."""
    num_bytes: Natural
    """Size of the picture."""
    spec: InputSpec
    memory_bytes: Natural
    """Memory that is granted for the step; the child cannot take more."""


class Ping(msgspec.Struct, frozen=True, tag=True):
    """Command: reply `Ready`."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The first message of a child, sent once it has started; also the reply to `Ping`."""


class Cost(msgspec.Struct, frozen=True, tag=True):
    """Reply: the memory that the decode needs, as `models.decode_cost` estimates it."""

    num_bytes: Natural


class Done(msgspec.Struct, frozen=True, tag=True):
    """Reply: the pixels are in the shared area, float32 `chw`, in the size of the requested input."""

    format: str
    width: Natural
    """Width of the upright original, px."""
    height: Natural
    """Height of the upright original, px."""
    capture: Capture
    is_cut_off: bool
    """Whether the file lacks its end, see `models.preprocess.Picture`."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Reply: the fields of a `PictureError`."""

    code: str
    problem: str
    value: str | None
    limit: str | None
    remedy: str | None

    @classmethod
    def of(cls, error: PictureError) -> "Failed":
        """Converts an error to a message."""
        value = None if error.value is None else str(error.value)
        return cls(error.code, error.problem, value, error.limit, error.remedy)

    def error(self) -> PictureError:
        """Converts the message back to an error."""
        kind = _ERRORS.get(self.code, PictureError)
        return kind(self.problem, value=self.value, limit=self.limit, remedy=self.remedy)


Command = Step | Ping
Reply = Ready | Cost | Done | Failed
read_command: Final[Callable[[bytes], Command]] = msgspec.json.Decoder(Command).decode
read_reply: Final[Callable[[bytes], Reply]] = msgspec.json.Decoder(Reply).decode


def as_line(message: Command | Reply) -> bytes:
    """Encodes a message; JSON without indentation has no line end within."""
    return msgspec.json.encode(message) + b"\n"


class SharedArea:
    """Memory behind the descriptor of an in-memory file, which is passed to another process and mapped by both."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, os.fstat(descriptor).st_size)

    @classmethod
    def create(cls, num_bytes: int) -> "SharedArea":
        """Creates an area; its pages take memory only once they are written."""
        if sys.platform != "linux":
            with tempfile.TemporaryFile() as unnamed:
                descriptor = os.dup(unnamed.fileno())
            os.ftruncate(descriptor, num_bytes)
            return cls(descriptor)
        import fcntl

        descriptor = os.memfd_create("botanify-decoding", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, num_bytes)
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

    def write_pixels(self, pixels: Singles) -> None:
        """Writes an array at the start."""
        np.frombuffer(self._map, np.float32, pixels.size).reshape(pixels.shape)[:] = pixels

    def read_pixels(self, shape: tuple[int, int, int]) -> Singles:
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
