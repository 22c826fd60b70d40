"""A server with all its processes: started together, weighed together, ended together."""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final

import psutil  # type: ignore[import-untyped]

_MB: Final = 1e6
_POLL_S: Final = 0.05


class ProcessTree:
    """A process, and all that it starts; used with `with`, at whose end all are killed.

    SIGTERM ends the `with` as Ctrl-C does: a server that is left behind would disturb whatever is measured next.

    Args:
        command: Program and arguments.
        environment: Of the process, complete.
        log: File for what it writes.
        folder: Where it runs.
    """

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str], log: Path, folder: Path) -> None:
        with log.open("wb") as stream:
            self._main = subprocess.Popen(
                command,
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # what an ended parent leaves behind still belongs to the session
            )
        self._known: dict[int, psutil.Process] = {self._main.pid: psutil.Process(self._main.pid)}
        self._on_sigterm: Any = None

    @property
    def alive(self) -> bool:
        """Whether its first process runs."""
        return self._main.poll() is None

    def members(self) -> list[psutil.Process]:
        """All its processes that run now, the children of ended ones too."""
        for process in list(self._known.values()):
            with suppress(psutil.Error):
                self._known.update((child.pid, child) for child in process.children(recursive=True))
        for pid in psutil.pids():
            with suppress(OSError, psutil.Error):
                if pid not in self._known and os.getsid(pid) == self._main.pid:
                    self._known[pid] = psutil.Process(pid)
        return [process for process in self._known.values() if _runs(process)]

    def memory_mb(self) -> float:
        """Memory of all processes, pages that several share counted once (proportional set size)."""
        total = 0
        for process in self.members():
            with suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total / _MB

    def core_s(self) -> float:
        """Processor time of all processes that run now, seconds."""
        total = 0.0
        for process in self.members():
            with suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def reset_high_water(self) -> None:
        """Makes the kernel forget how large each process once was (proc(5), clear_refs)."""
        for process in self.members():
            with suppress(OSError):
                Path(f"/proc/{process.pid}/clear_refs").write_text("5")

    def high_water_mb(self) -> float:
        """The most that each process held since the last reset, summed; an upper bound of what all held at once."""
        return sum(_high_water_kb(process.pid) for process in self.members()) / 1000

    def end(self, grace_s: float = 15.0) -> int:
        """Asks the first process to end, waits, then kills what is left.

        Returns:
            How many processes it left behind.
        """
        self.members()
        if self.alive:
            self._main.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while self.alive and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        time.sleep(2 * _POLL_S)  # children that were told to end as well get a moment for it
        left = [process for process in self.members() if process.pid != self._main.pid]
        self._kill()
        return len(left)

    def _kill(self) -> None:
        members = self.members()
        for process in members:
            with suppress(psutil.Error):
                process.kill()
        self._main.wait()
        psutil.wait_procs(members, timeout=5)

    def __enter__(self) -> "ProcessTree":
        if threading.current_thread() is threading.main_thread():
            self._on_sigterm = signal.signal(signal.SIGTERM, _interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()
        if self._on_sigterm is not None:
            signal.signal(signal.SIGTERM, self._on_sigterm)


class MemoryWatch:
    """Weighs a server again and again, in a thread of its own, and keeps the most.

    Args:
        tree: What to weigh.
        interval_s: Time between two weighings. Each takes a few milliseconds a process.
    """

    def __init__(self, tree: ProcessTree, interval_s: float = 0.5) -> None:
        self._tree, self._interval_s, self._stop = tree, interval_s, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak_mb = 0.0

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.peak_mb = max(self.peak_mb, self._tree.memory_mb())
            self._stop.wait(self._interval_s)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _high_water_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)
