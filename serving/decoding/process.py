"""Controls one decoding child: starts it, sends commands, ends it."""

import asyncio
import math
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from models.errors import PictureError
from models.preprocess import InputSpec
from serving.decoding.channel import Channel, ChildLost
from serving.decoding.messages import Command, Cost, Decode, Discard, Done, Failed, ReadHeader, Ready
from serving.decoding.shared_area import SharedArea

_ROOT: Final = Path(__file__).resolve().parents[2]
# A child decodes untrusted data, so it gets only the variables that Python needs and none of the service's secrets.
_INHERITED_VARIABLES: Final = {
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TMPDIR",
    "PYTHONHOME",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
}
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# For glibc, mallopt(3): keeps the memory of ordinary pictures for the next one. By default malloc returned it after
# each picture, and new pages took 6 of the 8 ms of a decode. `child` returns the memory of large pictures.
_KEEP_PAGES: Final = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "50331648"}
_START_TIMEOUT_S: Final = 60.0  # 0.5 s in measurements; longer with a cold disk or on a busy machine
_EXIT_GRACE_S: Final = 1.0  # how long a child that has closed its connection may take to exit
_FIRST_POLL_S, _LONGEST_POLL_S = 0.001, 0.05
# Smaller pictures are copied on the event loop, in 0.3 ms at most. Larger ones take longer, because they touch new
# pages.
_LARGE_BYTES: Final = 8_000_000

Pixels = npt.NDArray[np.float32]
_Reply = TypeVar("_Reply", Ready, Cost, Done)


class ChildHangs(ChildLost):
    """The child exceeds its time limit; `reset` kills it."""

    code = "child_hangs"


class ChildProcess:
    """A running child; create it with `start`.

    Args:
        process: The child.
        channel: The connection to it.
        area: The memory shared with it.
        seconds: Time limit of one command.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", channel: Channel, area: SharedArea, seconds: float) -> None:
        self._process, self._channel, self._area, self._seconds = process, channel, area, seconds
        self._is_busy = self._holds_picture = False
        self.decode_s = 0.0
        """Time that the child has worked on the current picture, seconds."""

    @classmethod
    async def start(cls, picture_bytes: int, child_bytes: int, seconds: float) -> "ChildProcess":
        """Starts a child and waits until it is ready.

        Raises:
            ChildLost: The child exits before it is ready.
            OSError: The system has no memory or processes left.
        """
        area = SharedArea.create(picture_bytes)
        service_end, child_end = socket.socketpair()
        with child_end:
            try:
                _, channel = await asyncio.get_running_loop().create_unix_connection(Channel, sock=service_end)
                process = _launch(child_end, area.descriptor, str(child_bytes), str(seconds))
            except BaseException:
                service_end.close()
                area.close()
                raise
        child = cls(process, channel, area, seconds)
        try:
            await child._receive(Ready, _START_TIMEOUT_S)
        except ChildLost:
            await child.stop(_EXIT_GRACE_S)
            raise ChildLost(f"exit status {child.exit_status}") from None
        except BaseException:
            await child.stop(0.0)
            raise
        return child

    @property
    def pid(self) -> int:
        """Process ID."""
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """`subprocess.Popen.returncode`, which is negative if a signal ended the child."""
        return self._process.returncode

    @property
    def is_alive(self) -> bool:
        """Whether the child accepts commands."""
        return not self._channel.lost.is_set()

    async def read_header(self, data: bytes, spec: InputSpec) -> Cost:
        """Passes a picture to the child and returns the memory that its decode needs.

        Raises:
            PictureError: The picture is refused.
            ChildLost: The child has ended or exceeds its time limit.
        """
        self.decode_s = 0.0
        self._reserve(len(data))
        if len(data) < _LARGE_BYTES:
            self._area.write(data)
        else:
            await asyncio.to_thread(self._area.write, data)
        cost = await self._request(ReadHeader(len(data), spec), Cost)
        self._holds_picture = True
        return cost

    async def decode(self, spec: InputSpec) -> tuple[Done, Pixels]:
        """Decodes the picture whose header was read.

        Raises:
            PictureError: The picture is refused.
            ChildLost: The child has ended or exceeds its time limit.
        """
        shape = (3, spec.height, spec.width)
        self._reserve(4 * math.prod(shape))
        self._holds_picture = False
        done = await self._request(Decode(), Done)
        return done, self._area.read_pixels(shape)

    def reset(self) -> None:
        """Prepares the child for the next picture, or kills it if a command was interrupted."""
        if self._is_busy:
            self.kill()
        elif self._holds_picture:
            self._holds_picture = False
            self._channel.send(Discard())
        self._area.release()

    async def wait(self) -> None:
        """Waits until the child has ended."""
        await self._channel.lost.wait()

    def kill(self) -> None:
        """Kills the child."""
        self._process.kill()
        self._channel.abort()

    async def stop(self, grace_s: float) -> None:
        """Asks the child to exit, and kills it if it has not done so within `grace_s`."""
        self._channel.close()
        try:
            async with asyncio.timeout(grace_s):
                await self._wait_for_exit()
        except TimeoutError:
            pass
        finally:
            self._process.kill()  # does nothing if it has exited
            self._process.wait()
            self._area.close()

    def _reserve(self, num_bytes: int) -> None:
        if not self.is_alive:  # the area may be closed
            raise ChildLost("the child has ended")
        self._area.reserve(num_bytes)

    async def _wait_for_exit(self) -> None:
        pause_s = _FIRST_POLL_S
        while self._process.poll() is None:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_POLL_S)

    async def _request(self, command: Command, kind: type[_Reply]) -> _Reply:
        started, self._is_busy = time.perf_counter(), True
        self._channel.send(command)
        try:
            reply = await self._receive(kind, self._seconds)
        except PictureError:
            self._is_busy = False
            raise
        finally:
            self.decode_s += time.perf_counter() - started
        self._is_busy = False
        return reply

    async def _receive(self, kind: type[_Reply], seconds: float) -> _Reply:
        try:
            async with asyncio.timeout(seconds):
                reply = await self._channel.receive()
        except TimeoutError:
            raise ChildHangs(f"no reply within {seconds:g} s") from None
        if isinstance(reply, Failed):
            raise reply.error()
        if isinstance(reply, kind):
            return reply
        raise ChildLost(f"the child sent {type(reply).__name__} instead of {kind.__name__}")


def _launch(stdin: socket.socket, descriptor: int, *arguments: str) -> "subprocess.Popen[bytes]":
    inherited = {name: os.environ[name] for name in _INHERITED_VARIABLES & os.environ.keys()}
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    # -P keeps the working directory off the module path. -W ignore keeps warnings about pictures out of the log.
    command = [sys.executable, "-P", "-W", "ignore", "-m", "serving.decoding.child", str(descriptor), *arguments]
    return subprocess.Popen(
        command,
        stdin=stdin.fileno(),
        stdout=subprocess.DEVNULL,
        pass_fds=[descriptor],
        env={**inherited, **_ONE_THREAD, **_KEEP_PAGES, "PYTHONPATH": path},
    )
