"""The program that a decoding child runs. It receives commands and sends replies over a socket, its standard input.

A child holds no secrets, has limits of memory and time, and exits when the service exits.
"""

import math
import os
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

# Importing the plugins of the accepted formats keeps Pillow from importing all plugins for the first picture.
from PIL import AvifImagePlugin, JpegImagePlugin, MpoImagePlugin, PngImagePlugin, WebPImagePlugin  # noqa: F401

from models.decode_cost import decode_cost
from models.errors import PictureError, UnreadableImage
from models.preprocess import InputSpec, picture_to_input
from serving.engine.decoding.messages import (
    Command,
    Cost,
    Done,
    Failed,
    Ping,
    Ready,
    Reply,
    SharedArea,
    as_line,
    read_command,
)
from serving.engine.machine import return_freed_memory

_STATUS: Final = Path("/proc/self/status")
# Address space beyond what is granted, for the threads and tables of a decoder: the first HEIC takes 10 MB.
_SLACK_BYTES: Final = 32_000_000
_TRIM_BYTES: Final = 48_000_000  # a 12 MP photograph takes 25 to 40 MB, and decodes faster if its pages stay mapped


def main() -> None:
    """Decodes until standard input closes. Arguments: descriptor of the shared area, bytes and seconds per picture."""
    descriptor = int(sys.argv[1])
    child_bytes = int(sys.argv[2])
    seconds = float(sys.argv[3])
    # uvloop passes on all that the service can inherit: it ignores `close_fds`.
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX"))
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to children too; the service handles them
        signal.signal(number, signal.SIG_IGN)
    pillow_heif.options.DECODE_THREADS = AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    decoder = _Decoder(SharedArea(descriptor), child_bytes, seconds)
    _limit(resource.RLIMIT_CORE, 0)
    with suppress(BrokenPipeError, ConnectionResetError), socket.socket(fileno=0) as service:
        service.sendall(as_line(Ready()))
        for line in service.makefile("rb"):
            service.sendall(as_line(decoder.handle(read_command(line))))
            decoder.trim_memory()


class _Decoder:
    """Executes commands; keeps nothing between them."""

    def __init__(self, area: SharedArea, child_bytes: int, seconds: float) -> None:
        self._area = area
        self._child_bytes = child_bytes
        self._seconds = seconds
        self._used_bytes = 0

    def handle(self, command: Command) -> Reply:
        """Executes a command and returns its reply."""
        if isinstance(command, Ping):
            return Ready()
        self._area.reserve(command.num_bytes)
        self._used_bytes = command.memory_bytes
        step = self._read_header if command.kind == "header" else self._decode
        return self._with_limits(lambda: step(self._area.read(command.num_bytes), command.spec), command.memory_bytes)

    def trim_memory(self) -> None:
        """Returns memory to the system after a large picture."""
        if self._used_bytes > _TRIM_BYTES:
            self._used_bytes = 0
            return_freed_memory()

    def _read_header(self, data: bytes, spec: InputSpec) -> Cost:
        cost = decode_cost(data, spec)
        if cost > self._child_bytes:
            raise _too_large("the picture needs more memory than one picture may use", self._child_bytes)
        return Cost(cost)

    def _decode(self, data: bytes, spec: InputSpec) -> Done:
        pixels, picture = picture_to_input(data, spec)
        self._area.reserve(pixels.nbytes)
        self._area.write_pixels(pixels)
        return Done(picture.format, picture.width, picture.height, picture.capture, picture.is_cut_off)

    def _with_limits(self, step: Callable[[], Reply], memory_bytes: int) -> Reply:
        """Runs a step with limits of memory and CPU time, and turns its errors into a reply.

        The limit of memory is what was granted, and a little: a file that needs more than its header says gets no more.
        """
        if sys.platform == "linux":  # VmData counts toward RLIMIT_DATA, see proc_pid_status(5)
            line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmData:"))
            _limit(resource.RLIMIT_DATA, int(line.split()[1]) * 1024 + memory_bytes + _SLACK_BYTES)
        _limit(resource.RLIMIT_CPU, math.ceil(time.process_time() + self._seconds) + 1)
        try:
            return step()
        except PictureError as error:
            return Failed.of(error)
        except MemoryError:
            return Failed.of(_too_large("the picture needs more memory than its header says", memory_bytes))
        except Exception:  # decoders raise many kinds of errors for damaged or hostile files
            return Failed.of(UnreadableImage.damaged("the picture cannot be decoded"))


def _too_large(problem: str, num_bytes: int) -> UnreadableImage:
    limit = f"at most {num_bytes // 1_000_000} megabytes"
    remedy = "send a smaller version, or save it as a JPEG that is not progressive"
    return UnreadableImage(problem, limit=limit, remedy=remedy)


def _limit(kind: int, value: int) -> None:
    """Sets a soft limit, which can be raised again, within the hard limit."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


if __name__ == "__main__":
    main()
