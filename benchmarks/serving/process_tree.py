"""A server with all its processes: starts it, measures memory and CPU time, and stops it."""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil  # type: ignore[import-untyped]

_MB: Final = 1e6
_POLL_S: Final = 0.05


class ProcessTree:
    """A process and all its descendants, as a context manager that kills them at the end.

    SIGTERM raises KeyboardInterrupt within the block, so that no server is left to disturb the next measurement.

    Args:
        command: Program and arguments.
        environment: All environment variables of the process.
        log: File for its output.
        folder: Its working directory.
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
                start_new_session=True,  # orphaned processes still belong to the session
            )
        self._known: dict[int, psutil.Process] = {self._main.pid: psutil.Process(self._main.pid)}
        self._on_sigterm: Any = None

    @property
    def alive(self) -> bool:
        """Whether the main process runs."""
        return self._main.poll() is None

    def members(self) -> list[psutil.Process]:
        """All processes that run now, orphaned ones too."""
        _add_members(self._known, self._main.pid)
        return [process for process in self._known.values() if _runs(process)]

    def memory_mb(self) -> float:
        """Memory of all processes, shared pages counted once (proportional set size), MB."""
        total = 0
        for process in self.members():
            with suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total / _MB

    def core_s(self) -> float:
        """CPU time of all processes that run now, s."""
        total = 0.0
        for process in self.members():
            with suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def reset_high_water(self) -> None:
        """Resets the kernel's peak memory of each process (proc(5), clear_refs)."""
        for process in self.members():
            with suppress(OSError):
                Path(f"/proc/{process.pid}/clear_refs").write_text("5")

    def high_water_mb(self) -> float:
        """Sum of the peaks of all processes since the last reset, MB: an upper bound of the peak of the sum."""
        return sum(_high_water_kb(process.pid) for process in self.members()) / 1000

    def end(self, grace_s: float = 15.0) -> int:
        """Sends SIGTERM to the main process, waits, then kills all processes that are left.

        Returns:
            Number of processes that were left.
        """
        self.members()
        if self.alive:
            self._main.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while self.alive and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        time.sleep(2 * _POLL_S)  # time for children that are ending as well
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
            self._on_sigterm = signal.signal(signal.SIGTERM, signal.default_int_handler)
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        if self._on_sigterm is not None:
            signal.signal(signal.SIGTERM, self._on_sigterm)


class MemoryWatch:
    """Measures the memory of a server repeatedly in a thread, and keeps the peak.

    Args:
        tree: The server.
        interval_s: Time between two measurements, each of which takes a few milliseconds per process.
    """

    def __init__(self, tree: ProcessTree, interval_s: float = 0.5) -> None:
        self._tree, self._interval_s, self._stop = tree, interval_s, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak_mb = 0.0

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.peak_mb = max(self.peak_mb, self._tree.memory_mb())
            self._stop.wait(self._interval_s)


def free_port() -> int:
    """A free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


def _add_members(known: dict[int, psutil.Process], session: int) -> None:
    """Adds the descendants of the known processes, and all processes of a session."""
    for process in list(known.values()):
        with suppress(psutil.Error):
            known.update((child.pid, child) for child in process.children(recursive=True))
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):
            if pid not in known and os.getsid(pid) == session:
                known[pid] = psutil.Process(pid)


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
