"""One decoding child as the service sees it: started, asked, and ended."""

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
from serving.decoding.messages import Cost, Decode, Done, Forget, Order, ReadHeader, Ready, Refused
from serving.decoding.shared_area import SharedArea

_ROOT: Final = Path(__file__).resolve().parents[2]
# A child decodes the bytes of strangers: it is told what a Python needs to start, and none of the service's secrets.
_PASSED_ON: Final = {
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
# For glibc, mallopt(3): the memory of an ordinary picture is kept for the next one. Left to itself malloc gave it back
# after each, and fresh pages took 6 ms of a picture that decodes in 8. What a large one took, `child` gives back.
_KEEP_PAGES: Final = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "50331648"}
_START_S: Final = 60.0  # 0.5 s were measured; a cold disk and a busy machine take longer
_LEAVE_S: Final = 1.0  # between a process's last word and its end
_FIRST_LOOK_S, _LAST_LOOK_S = 0.001, 0.05
# Smaller pictures are copied within the event loop, 0.3 ms at most; larger ones touch fresh pages, which takes longer.
_LARGE_BYTES: Final = 8_000_000

Pixels = npt.NDArray[np.float32]
_Reply = TypeVar("_Reply", Ready, Cost, Done)


class ChildHangs(ChildLost):
    """The child takes too long; `settle` kills it."""

    code = "child_hangs"


class ChildProcess:
    """A running child; made by `start`.

    Args:
        process: The program.
        channel: Its replies.
        area: Shared with it.
        seconds: Longest time for one order.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", channel: Channel, area: SharedArea, seconds: float) -> None:
        self._process, self._channel, self._area, self._seconds = process, channel, area, seconds
        self._asked = self._holds_picture = False
        self.worked_s = 0.0
        """Time that the child worked on its picture, seconds."""

    @classmethod
    async def start(cls, picture_bytes: int, child_bytes: int, seconds: float) -> "ChildProcess":
        """Starts a child and waits until it answers.

        Raises:
            ChildLost: It ends before.
            OSError: The machine has no memory or processes left.
        """
        area = SharedArea.create(picture_bytes)
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                _, channel = await asyncio.get_running_loop().create_unix_connection(Channel, sock=ours)
                process = _launch(theirs, area.descriptor, str(child_bytes), str(seconds))
            except BaseException:
                ours.close()
                area.close()
                raise
        child = cls(process, channel, area, seconds)
        try:
            await child._reply(Ready, _START_S)
        except ChildLost:
            await child.stop(_LEAVE_S)
            raise ChildLost(f"exit status {child.exit_status}") from None
        except BaseException:
            await child.stop(0.0)
            raise
        return child

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """As `subprocess.Popen.returncode`: below zero the signal that ended it."""
        return self._process.returncode

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return not self._channel.lost.is_set()

    async def read_header(self, data: bytes, spec: InputSpec) -> Cost:
        """Hands a picture over and learns what its decode will take.

        Raises:
            PictureError: The picture is refused.
            ChildLost: The child has ended, or takes too long.
        """
        self.worked_s = 0.0
        self._reserve(len(data))
        if len(data) < _LARGE_BYTES:
            self._area.write(data)
        else:
            await asyncio.to_thread(self._area.write, data)
        cost = await self._ask(ReadHeader(len(data), spec), Cost)
        self._holds_picture = True
        return cost

    async def decode(self, spec: InputSpec) -> tuple[Done, Pixels]:
        """Decodes the picture that was handed over.

        Raises:
            PictureError: The picture is refused.
            ChildLost: The child has ended, or takes too long.
        """
        shape = (3, spec.height, spec.width)
        self._reserve(4 * math.prod(shape))
        self._holds_picture = False
        done = await self._ask(Decode(), Done)
        return done, self._area.read_pixels(shape)

    def settle(self) -> None:
        """Makes the child ready for another picture, or ends it if it was left in the middle of an order."""
        if self._asked:
            self.kill()
        elif self._holds_picture:
            self._holds_picture = False
            self._channel.send(Forget())
        self._area.release()

    async def ended(self) -> None:
        """Waits until the child has ended."""
        await self._channel.lost.wait()

    def kill(self) -> None:
        """Ends the child at once."""
        self._process.kill()
        self._channel.abort()

    async def stop(self, grace_s: float) -> None:
        """Ends the child: it is told that nobody will ask again, and killed if it has not left in time."""
        self._channel.close()
        try:
            async with asyncio.timeout(grace_s):
                await self._exit()
        except TimeoutError:
            pass
        finally:
            self._process.kill()  # nothing where it has left
            self._process.wait()
            self._area.close()

    def _reserve(self, num_bytes: int) -> None:
        if not self.is_alive:  # its area may be closed
            raise ChildLost("the child has ended")
        self._area.reserve(num_bytes)

    async def _exit(self) -> None:
        pause_s = _FIRST_LOOK_S
        while self._process.poll() is None:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_LOOK_S)

    async def _ask(self, order: Order, kind: type[_Reply]) -> _Reply:
        started, self._asked = time.perf_counter(), True
        self._channel.send(order)
        try:
            reply = await self._reply(kind, self._seconds)
        except PictureError:
            self._asked = False
            raise
        finally:
            self.worked_s += time.perf_counter() - started
        self._asked = False
        return reply

    async def _reply(self, kind: type[_Reply], seconds: float) -> _Reply:
        try:
            async with asyncio.timeout(seconds):
                reply = await self._channel.receive()
        except TimeoutError:
            raise ChildHangs(f"no reply within {seconds:g} s") from None
        if isinstance(reply, Refused):
            raise reply.error()
        if isinstance(reply, kind):
            return reply
        raise ChildLost(f"{type(reply).__name__} where {kind.__name__} was due")


def _launch(stdin: socket.socket, descriptor: int, *arguments: str) -> "subprocess.Popen[bytes]":
    passed_on = {name: os.environ[name] for name in _PASSED_ON & os.environ.keys()}
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    # -P: modules are never looked for in the working directory. Warnings are about the pictures, which no log names.
    command = [sys.executable, "-P", "-W", "ignore", "-m", "serving.decoding.child", str(descriptor), *arguments]
    return subprocess.Popen(
        command,
        stdin=stdin.fileno(),
        stdout=subprocess.DEVNULL,
        pass_fds=[descriptor],
        env={**passed_on, **_ONE_THREAD, **_KEEP_PAGES, "PYTHONPATH": path},
    )
