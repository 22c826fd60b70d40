"""Limits of a child's memory and time."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from models.errors import TooManyPixels, UnreadableImage
from tests.models.pictures import claiming_size, encode, foliage
from tests.serving.decoding.running_pool import RESTARTS, SMALL, SPEC, RunningPool, memory, stop, value


def test_hanging_child_is_killed_at_the_time_limit():
    with RunningPool(1, seconds=0.3) as running:
        (pid,) = running.pids()
        stop(pid)
        started = time.monotonic()
        with pytest.raises(UnreadableImage, match=r"takes too long to decode \(expected at most 0.3 seconds\)"):
            running.decode(SMALL)
        assert 0.3 <= time.monotonic() - started < 2
        running.wait_for_all(1)
        assert pid not in running.pids()
        assert value(running.metrics, RESTARTS) == 1


def test_picture_over_the_memory_limit_is_refused():
    with RunningPool(1, child_bytes=40_000_000) as running:
        (pid,) = running.pids()
        large = encode(Image.new("RGB", (5_000, 4_000), "red"), "PNG", compress_level=1)
        with pytest.raises(UnreadableImage) as refused:
            running.decode(large)
        with pytest.raises(TooManyPixels):  # reading this header would take 8 bytes per pixel
            running.decode(claiming_size("WEBP", (16_000, 16_000)))
        assert str(refused.value) == (
            "the picture needs more memory than one picture may use (expected at most 40 megabytes): "
            "send a smaller version."
        )
        assert running.decode(SMALL).format == "PNG"
        assert running.pids() == {pid}


@pytest.mark.skipif(sys.platform != "linux", reason="reads the limits from /proc")
def test_child_has_limits_of_memory_time_core_files_and_priority():
    with RunningPool(1, child_bytes=100_000_000, seconds=7.0) as running:
        (pid,) = running.pids()
        running.decode(SMALL)
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
        soft = {line[:26].strip(): line[26:47].strip() for line in lines}
        assert 100_000_000 < int(soft["Max data size"]) < 200_000_000
        assert 7 < int(soft["Max cpu time"]) < 20
        assert soft["Max core file size"] == "0"
        assert os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, 0)


BOMB = """
import sys
from PIL import Image
Image.new("RGB", (8_000, 6_250), (90, 140, 60)).save(sys.stdout.buffer, "WEBP", quality=80, method=0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resets the peak of memory in /proc")
def test_webp_of_50_megapixels_is_refused_with_little_memory(one, pid):
    bomb = subprocess.run([sys.executable, "-c", BOMB], capture_output=True, check=True).stdout
    assert len(bomb) < 200_000
    processes = (pid, os.getpid())
    for number in processes:
        Path(f"/proc/{number}/clear_refs").write_text("5")  # resets the peak
    before = sum(memory(number, "VmRSS") for number in processes)
    with pytest.raises(TooManyPixels, match=r"50\.0 megapixels"):
        one.decode(bomb)
    assert sum(memory(number, "VmHWM") for number in processes) - before < 20_000_000
    assert one.pids() == {pid}


@pytest.mark.skipif(sys.platform != "linux", reason="reads memory from /proc")
def test_child_returns_the_memory_of_large_pictures():
    with RunningPool(1) as running:
        (pid,) = running.pids()
        running.decode(SMALL)
        before = memory(pid, "VmRSS")
        # After the first picture malloc serves the second one from its heap, and would keep all of it.
        running.decode(encode(Image.new("RGB", (4_000, 3_000), "red"), "JPEG", progressive=True))
        running.decode(encode(foliage((2_400, 1_600)), "AVIF", speed=10))
        running.decode(SMALL)
        assert memory(pid, "VmRSS") - before < 25_000_000


def test_picture_that_exceeds_the_budget_is_decoded_alone():
    with RunningPool(2, budget_bytes=1) as running:

        async def three():
            return await asyncio.gather(*(running.pool.decode(SMALL, SPEC) for _ in range(3)))

        assert len(running.run(three())) == 3
