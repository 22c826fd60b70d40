"""Decoders on an event loop of their own, so that plain tests can drive them."""

import asyncio
import os
import signal
import time
from pathlib import Path

import msgspec

from models.preprocess import InputSpec
from serving.decoding.pool import DecodeLimits, Decoders
from serving.metrics import Metrics
from tests.models.pictures import encode, scene

SPEC = InputSpec(height=32, width=32, train_px=32)
SMALL = encode(scene(), "PNG")
RESTARTS = 'botanify_restarts_total{part="decoder"}'
LIMITS = DecodeLimits(picture_bytes=20_000_000, budget_bytes=512_000_000, child_bytes=512_000_000, seconds=20.0)


class Running:
    """Started decoders."""

    def __init__(self, num_children, **changes):
        self.metrics = Metrics()
        self.decoders = Decoders(num_children, msgspec.structs.replace(LIMITS, **changes), self.metrics)
        self._runner = asyncio.Runner()

    def __enter__(self):
        self._runner.__enter__()
        self.run(self.decoders.start())
        return self

    def __exit__(self, *raised):
        self.run(self.decoders.close())
        self._runner.__exit__(*raised)

    def run(self, coroutine):
        return self._runner.run(coroutine)

    def decode(self, data, spec=SPEC):
        return self.run(self.decoders.decode(data, spec))

    def pids(self):
        return {child.pid for child in self.decoders._children}

    def wait_for_all(self, num_children):
        self.run(on_the_loop(lambda: self.decoders.num_alive == num_children))


def stop(pid):
    """Stops a process, and waits until it stands still."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state(pid) == "T")


def state(pid):
    """The kernel's letter for what a process does; `None` once there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return None


async def on_the_loop(holds):
    """Waits until something holds, while the event loop goes on."""
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  # it happens in another process
            await asyncio.sleep(0.005)


def until(holds, seconds=10):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def value(metrics, line):
    """The value of one line of the metrics, 0 where it has not been counted yet."""
    lines = dict(text.rsplit(" ", 1) for text in metrics.text().decode().splitlines() if not text.startswith("#"))
    return float(lines.get(line, 0))


def memory(pid, key):
    """A line of the kernel's account of a process, bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))
