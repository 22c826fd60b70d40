"""A decoder pool on an event loop of its own, for synchronous tests."""

import asyncio
import functools
import os
import signal
from pathlib import Path

import msgspec
from PIL import Image

from models.preprocess import InputSpec
from serving.engine.decoding.pool import DecodeLimits, DecoderPool
from serving.metrics import Metrics
from tests.models.pictures import encode, scene
from tests.waiting import until, wait_until

SPEC = InputSpec(height=32, width=32, train_px=32)
SMALL = encode(scene(), "PNG")
RESTARTS = 'botanify_restarts_total{part="decoder"}'
LIMITS = DecodeLimits(picture_bytes=20_000_000, budget_bytes=512_000_000, child_bytes=512_000_000, seconds=20.0)


@functools.cache
def slow_picture():
    """A picture that takes about a tenth of a second to decode."""
    return encode(Image.new("L", (6_000, 3_000), 90), "PNG", compress_level=1)


class RunningPool:
    """A started pool."""

    def __init__(self, num_children, **changes):
        self.metrics = Metrics()
        self.pool = DecoderPool(num_children, msgspec.structs.replace(LIMITS, **changes), self.metrics)
        self._runner = asyncio.Runner()

    def __enter__(self):
        self._runner.__enter__()
        self.run(self.pool.start())
        return self

    def __exit__(self, *raised):
        self.run(self.pool.close())
        self._runner.__exit__(*raised)

    def run(self, coroutine):
        return self._runner.run(coroutine)

    def decode(self, data, spec=SPEC):
        return self.run(self.pool.decode(data, spec))

    def decode_many(self, number, data=SMALL, time=None):
        """Returns what each of several decodes at once gives or raises."""

        async def decode():
            decodes = [self.pool.decode(data, SPEC, time) for _ in range(number)]
            return await asyncio.gather(*decodes, return_exceptions=True)

        return self.run(decode())

    def pids(self):
        return {child.pid for child in self.pool._children}

    def wait_for_all(self, num_children):
        self.run(until(lambda: self.pool.num_alive == num_children))


def stop(pid):
    """Suspends a process, and waits until it is suspended."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: state(pid) == "T")


def state(pid):
    """Returns the kernel's state letter of a process, or None if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return None


def value(metrics, line):
    """Returns the value of a line of the metrics, or 0 if there is none yet."""
    lines = dict(text.rsplit(" ", 1) for text in metrics.text().decode().splitlines() if not text.startswith("#"))
    return float(lines.get(line, 0))


def memory(pid, key):
    """Returns a line of /proc/PID/status in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))
