"""The program of one decoding child: it takes orders on its standard input, a socket, and replies there.

It holds no secret, may use a bounded amount of memory and time, and ends when the service that started it is gone.
"""

import ctypes
import math
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pillow_heif

# The plugins of the accepted formats, imported now: Pillow would import all it has for the first picture.
from PIL import AvifImagePlugin, JpegImagePlugin, MpoImagePlugin, PngImagePlugin, WebPImagePlugin  # noqa: F401

from models.decode_cost import decode_cost
from models.errors import PictureError, UnreadableImage
from models.preprocess import InputSpec, picture_to_input
from serving.cores import lower_priority
from serving.decoding.messages import Cost, Decode, Done, Order, ReadHeader, Ready, Refused, Reply, pack, read_order
from serving.decoding.shared_area import SharedArea

_STATUS: Final = Path("/proc/self/status")
_TIDY_BYTES: Final = 48_000_000  # a photograph of 12 megapixels takes 25 to 40 MB, and less time on warm pages


def main() -> None:
    """Serves until standard input ends. Arguments: descriptor of the area, bytes and seconds a picture may take."""
    lower_priority()
    descriptor, child_bytes, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    for number in (signal.SIGINT, signal.SIGHUP):  # meant for the service, which a terminal does not tell apart from us
        signal.signal(number, signal.SIG_IGN)
    pillow_heif.options.DECODE_THREADS = AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    decoder = _Decoder(SharedArea(descriptor), child_bytes, seconds)
    _limit(resource.RLIMIT_CORE, 0)
    if sys.platform == "linux":
        _limit(resource.RLIMIT_DATA, _data_bytes() + child_bytes)
    with suppress(BrokenPipeError, ConnectionResetError), socket.socket(fileno=0) as service:
        _serve(service, decoder)


def _serve(service: socket.socket, decoder: "_Decoder") -> None:
    service.sendall(pack(Ready()))
    orders = service.makefile("rb")
    while (order := read_order(orders)) is not None:
        reply = decoder.follow(order)
        if reply is not None:
            service.sendall(pack(reply))
        decoder.tidy()


class _Decoder:
    """Follows orders; holds one picture at most."""

    def __init__(self, area: SharedArea, child_bytes: int, seconds: float) -> None:
        self._area, self._child_bytes, self._seconds = area, child_bytes, seconds
        self._held: tuple[bytes, InputSpec] | None = None
        self._used_bytes = 0
        self._malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it

    def follow(self, order: Order) -> Reply | None:
        """Gives the reply, if the order has one."""
        if isinstance(order, ReadHeader):
            return self._attempt(lambda: self._read_header(order))
        held, self._held = self._held, None
        if isinstance(order, Decode) and held is not None:
            return self._attempt(lambda: self._decode(*held))
        return None

    def tidy(self) -> None:
        """Gives memory back to the machine after a picture that took much: malloc was seen to keep 150 MB."""
        if self._held is None and self._used_bytes > _TIDY_BYTES and self._malloc_trim is not None:
            self._used_bytes = 0
            self._malloc_trim(0)

    def _read_header(self, order: ReadHeader) -> Cost:
        self._area.reserve(order.num_bytes)
        data = self._area.read(order.num_bytes)
        cost = decode_cost(data, order.spec)
        self._held, self._used_bytes = (data, order.spec), cost.num_bytes
        return Cost(cost.num_bytes)

    def _decode(self, data: bytes, spec: InputSpec) -> Done:
        pixels, picture = picture_to_input(data, spec)
        self._area.reserve(pixels.nbytes)
        self._area.write_pixels(pixels)
        return Done(picture.format, picture.width, picture.height)

    def _attempt(self, step: Callable[[], Reply]) -> Reply:
        _limit(resource.RLIMIT_CPU, math.ceil(time.process_time() + self._seconds) + 1)
        try:
            return step()
        except PictureError as error:
            return Refused.of(error)
        except MemoryError:
            return Refused.of(self._too_large())
        except Exception as error:  # whatever a decoder raises for hostile bytes, it is the picture's fault
            value, remedy = type(error).__name__, "send the original photograph again"
            return Refused.of(UnreadableImage("the picture does not decode", value=value, remedy=remedy))

    def _too_large(self) -> UnreadableImage:
        return UnreadableImage(
            "the picture needs more memory than one picture may use",
            limit=f"at most {self._child_bytes // 1_000_000} megabytes",
            remedy="send a smaller version",
        )


def _limit(kind: int, value: int) -> None:
    """Sets a limit that can be raised again, as far as this machine lets us."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _data_bytes() -> int:
    """What counts towards RLIMIT_DATA now (proc_pid_status(5), VmData)."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmData:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
