"""Controls one decoding child: starts it, sends commands, ends it."""

import asyncio
import ctypes
import math
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import Final, TypeVar

from models.arrays import Singles
from models.errors import BotanifyError
from models.preprocess import InputSpec
from serving.engine.decoding.messages import (
    MAX_MESSAGE_BYTES,
    Command,
    Cost,
    Done,
    Failed,
    Ping,
    Ready,
    Reply,
    SharedArea,
    Step,
    as_line,
    read_reply,
)

_ROOT: Final = Path(__file__).resolve().parents[2]
# A child decodes untrusted data, so it gets only the variables that Python needs and none of the service's secrets.
_INHERITED_VARIABLES: Final = {
    "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "PYTHONHOME", "LD_LIBRARY_PATH", "LD_PRELOAD",
}  # fmt: skip
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# For glibc, mallopt(3): keeps the memory of ordinary pictures for the next one. By default malloc returned it after
# each picture, and new pages took 6 of the 8 ms of a decode. `child` returns the memory of large pictures.
_KEEP_PAGES: Final = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "50331648"}
_START_TIMEOUT_S: Final = 60.0  # 0.5 s in measurements; longer with a cold disk or on a busy machine
_EXIT_GRACE_S: Final = 1.0  # how long a child that has closed its connection may take to exit
# A child with work that gets no processor time for this long is suspended or blocked. Even on a machine with a hundred
# busy processes per core it gets some.
_FROZEN_S: Final = 3.0
_SHORTEST_WAIT_S: Final = 0.05  # between two looks at the processor time of a child
# Signals that end a process because of what it did itself. Others, such as SIGKILL, are sent by people or by the kernel
# when the memory of the machine is exhausted.
_OWN_FAULTS: Final = {
    signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP,
}  # fmt: skip
# Smaller pictures are copied on the event loop, in 0.3 ms at most. Larger ones take longer, because they touch new
# pages.
_LARGE_BYTES: Final = 8_000_000

Clock = Callable[[], float]
"""Gives the processor time of a process, seconds."""
_Reply = TypeVar("_Reply", Ready, Cost, Done)


class DecodeTime:
    """Counts the processor time of one request against its limit. Its pictures may be decoded at the same time.

    Processor time, not elapsed time: on a busy machine, or if a process is suspended, an innocent picture takes long.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._spent_s = 0.0
        self._running: list[tuple[Clock, float]] = []

    @property
    def left_s(self) -> float:
        """Seconds left, after the steps that are running too; negative if the limit is exceeded."""
        return self.seconds - self._spent_s - sum(clock() - start for clock, start in self._running)

    @property
    def lasts_s(self) -> float:
        """Seconds for which the time left suffices at least, however busy the children are."""
        return max(0.0, self.left_s) / max(1, len(self._running))

    @contextmanager
    def step(self, clock: Clock) -> Iterator[None]:
        """Counts the processor time of a process while the context lasts."""
        running = clock, clock()
        self._running.append(running)
        try:
            yield
        finally:
            self._running.remove(running)
            self._spent_s += clock() - running[1]


def processor_clock(pid: int) -> Clock:
    """Returns the processor clock of another process, see clock_getcpuclockid(3); elapsed time if there is none.

    Once the process has ended, the clock stands still.
    """
    number = ctypes.c_int()
    if sys.platform != "linux" or ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(number)):
        return time.monotonic
    last_s = 0.0

    def read() -> float:
        nonlocal last_s
        with suppress(OSError):  # the process has ended
            last_s = time.clock_gettime(number.value)
        return last_s

    return read


class ChildLost(BotanifyError):
    """The child has ended."""

    code = "child_lost"


class ChildCrashed(ChildLost):
    """The child has ended because of what it did itself."""

    code = "child_crashed"


class OutOfTime(BotanifyError):
    """The request has used up its `DecodeTime`; `reset` kills the child."""

    code = "out_of_time"


class ChildProcess:
    """A running child; create it with `start`."""

    def __init__(
        self, process: Process, replies: asyncio.StreamReader, commands: asyncio.StreamWriter, area: SharedArea
    ) -> None:
        self._process = process
        self._replies = replies
        self._commands = commands
        self._area = area
        self._exit = asyncio.create_task(process.wait())
        self._clock = processor_clock(process.pid)
        self._turn = asyncio.Lock()  # one command at a time: a ping, or a step of a picture
        self._is_interrupted = False
        self.replied_at = perf_counter()
        """When the child last replied, on the clock of `time.perf_counter`."""
        self.decode_s = 0.0
        """Time that the child has worked on the current picture, seconds."""

    @classmethod
    async def start(cls, picture_bytes: int, child_bytes: int, seconds: float) -> "ChildProcess":
        """Starts a child and waits until it is ready.

        Raises:
            ChildLost: The child exits before it is ready.
            OSError: The system has no memory or processes left.
            RuntimeError: It has no threads left, of which asyncio needs one to learn of an exit (Python 3.11).
        """
        with ExitStack() as undo:
            area = undo.enter_context(closing(SharedArea.create(picture_bytes)))
            service_end, child_end = socket.socketpair()
            with child_end:
                replies, commands = await asyncio.open_unix_connection(sock=service_end, limit=MAX_MESSAGE_BYTES)
                undo.enter_context(closing(commands))
                process = await _launch(child_end, area.descriptor, str(child_bytes), str(seconds))
            undo.pop_all()
        child = cls(process, replies, commands, area)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                _expected(await child.receive(), Ready)
        except (ChildLost, TimeoutError):
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
        """Negative if a signal ended the child, None while it runs."""
        return self._process.returncode

    @property
    def is_alive(self) -> bool:
        """Whether the child accepts commands.

        A suspended one, and one that closed its socket after half a line, count as alive until the next `ping`.
        """
        is_connected = not self._commands.is_closing() and not self._replies.at_eof()
        return is_connected and self._process.returncode is None

    @property
    def is_busy(self) -> bool:
        """Whether the child executes a command."""
        return self._turn.locked()

    async def read_header(self, data: bytes, spec: InputSpec, memory_bytes: int, time: DecodeTime) -> Cost:
        """Returns the memory that the decode of a picture needs, with the memory that is granted for the header.

        Raises:
            PictureError: The picture is refused.
            ChildCrashed: The child has ended because of what it did itself.
            ChildLost: The child has ended for another reason, or is suspended.
            OutOfTime: The request has no time left.
        """
        return await self._step(data, Step("header", len(data), spec, memory_bytes), Cost, time)

    async def decode(self, data: bytes, spec: InputSpec, memory_bytes: int, time: DecodeTime) -> tuple[Done, Singles]:
        """Decodes a picture with the memory that is granted.

        Raises:
            As `read_header`.
        """
        shape = (3, spec.height, spec.width)
        self._reserve(4 * math.prod(shape))
        done = await self._step(data, Step("decode", len(data), spec, memory_bytes), Done, time)
        return done, self._area.read_pixels(shape)

    async def ping(self) -> None:
        """Kills the child if it does not reply."""
        async with self._turn:
            try:
                async with asyncio.timeout(_FROZEN_S):
                    self._send(Ping())
                    _expected(await self.receive(), Ready)
                self.replied_at = perf_counter()
            except (ChildLost, TimeoutError):
                self.kill()
            except asyncio.CancelledError:
                self.kill()  # its reply would be taken for that to the next command
                raise

    def reset(self) -> None:
        """Prepares the child for the next picture, or kills it if a command was interrupted."""
        if self._is_interrupted:
            self.kill()
        self.decode_s = 0.0
        self._area.release()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Waits until the child has ended, or as long as `timeout_s`."""
        await asyncio.wait({self._exit}, timeout=timeout_s)

    async def receive(self) -> Reply:
        """Waits for the next reply.

        Raises:
            ChildLost: The child has ended, or sent what is no reply.
        """
        try:
            return read_reply(await self._replies.readline())
        except (ValueError, RecursionError, ConnectionError) as error:  # no message, or a line that is too long
            self._commands.transport.abort()
            raise ChildLost("the child has ended") from error

    def kill(self) -> None:
        """Kills the child."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._commands.transport.abort()  # nobody may use the child from now on

    async def stop(self, grace_s: float) -> None:
        """Asks the child to exit, and kills it if it has not done so within `grace_s`."""
        self._commands.close()
        try:
            await self.wait(grace_s)
        finally:
            self.kill()
            self._area.close()
        await self.wait()

    def _reserve(self, num_bytes: int) -> None:
        if not self.is_alive:  # the area may be closed
            raise ChildLost("the child has ended")
        self._area.reserve(num_bytes)

    def _send(self, command: Command) -> None:
        if not self.is_alive:  # uvloop raises RuntimeError for a write to a closed connection
            raise ChildLost("the child has ended")
        self._commands.write(as_line(command))

    async def _step(self, data: bytes, command: Command, kind: type[_Reply], time: DecodeTime) -> _Reply:
        """Passes a picture to the child, sends a command about it, and returns the reply."""
        started = perf_counter()
        async with self._turn:
            try:
                _require_time(time)
                await self._write(data)
                self._is_interrupted = True
                with time.step(self._clock):
                    self._send(command)
                    reply = await self._watch(time)
                self._is_interrupted = not isinstance(reply, kind | Failed)
                return _expected(reply, kind)
            except ChildCrashed:
                raise
            except ChildLost as error:
                if await self._has_crashed():
                    raise ChildCrashed(f"exit status {self.exit_status}") from error
                raise
            finally:
                self.replied_at = perf_counter()
                self.decode_s += self.replied_at - started

    async def _write(self, data: bytes) -> None:
        self._reserve(len(data))
        if len(data) < _LARGE_BYTES:
            self._area.write(data)
        else:
            self._is_interrupted = True  # a cancellation does not end the thread, which goes on writing
            await asyncio.to_thread(self._area.write, data)

    async def _watch(self, time: DecodeTime) -> Reply:
        """Waits for the reply as long as the request has time and the child makes progress."""
        clock_s = self._clock()
        progress_at = perf_counter()
        while True:
            try:
                async with asyncio.timeout(max(_SHORTEST_WAIT_S, min(time.lasts_s, _FROZEN_S))):
                    return await self.receive()
            except TimeoutError:
                last_s = clock_s
                clock_s = self._clock()
                now = perf_counter()
            _require_time(time)
            if clock_s > last_s:
                progress_at = now
            elif now - progress_at >= _FROZEN_S:
                self.kill()
                raise ChildLost(f"no processor time for {_FROZEN_S:g} s")

    async def _has_crashed(self) -> bool:
        """Whether the child, which is lost, has ended because of what it did itself."""
        await self.wait(_EXIT_GRACE_S)
        status = self.exit_status
        return status is not None and (status >= 0 or -status in _OWN_FAULTS)


def _require_time(time: DecodeTime) -> None:
    if time.left_s <= 0.0:
        raise OutOfTime(f"more than {time.seconds:g} s of processor time")


def _expected(reply: Reply, kind: type[_Reply]) -> _Reply:
    """Returns a reply of the kind that was expected, or raises the error that it carries."""
    if isinstance(reply, Failed):
        raise reply.error()
    if isinstance(reply, kind):
        return reply
    raise ChildCrashed(f"the child sent {type(reply).__name__} instead of {kind.__name__}")


async def _launch(stdin: socket.socket, descriptor: int, *arguments: str) -> Process:
    inherited = {name: os.environ[name] for name in _INHERITED_VARIABLES & os.environ.keys()}
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    # -P keeps the working directory off the module path. -W ignore keeps warnings about pictures out of the log.
    command = [sys.executable, "-P", "-W", "ignore", "-m", "serving.engine.decoding.child", str(descriptor), *arguments]
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=stdin.fileno(),
        stdout=asyncio.subprocess.DEVNULL,
        pass_fds=[descriptor],
        env={**inherited, **_ONE_THREAD, **_KEEP_PAGES, "PYTHONPATH": path},
    )
