"""Limits of time and memory of a decode."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest
from PIL import Image

from models.errors import PictureError, TooManyPixels, UnreadableImage
from serving.engine.decoding.messages import Cost
from serving.engine.decoding.process import ChildProcess, DecodeTime
from tests.models.hostile import (
    jpeg_with_comments,
    jpeg_with_exif_bomb,
    jpeg_with_scans,
    long_png,
    png_with_chunks,
    png_with_text,
    webp_with_frames,
    with_box_entries,
)
from tests.models.pictures import claiming_size, encode, foliage
from tests.serving.decoding.running_pool import RESTARTS, SMALL, SPEC, RunningPool, memory, slow_picture, stop, value

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits and tells its memory")


def refusal(running, data):
    """What the service says of a picture that it cannot read."""
    with pytest.raises(UnreadableImage) as refused:
        running.decode(data)
    return str(refused.value)


def reset_peak(pid):
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def test_picture_over_the_time_limit_is_refused_and_its_child_killed():
    with RunningPool(1, seconds=0.02) as running:
        (pid,) = running.pids()
        assert refusal(running, slow_picture()) == (
            "the PNG picture takes too long to decode (expected at most 0.02 seconds for all pictures of a request): "
            "send a smaller version, or fewer pictures."
        )
        running.wait_for_all(1)
        assert pid not in running.pids()
        assert value(running.metrics, RESTARTS) == 1


def test_pictures_of_a_request_share_its_time():
    with RunningPool(2) as running:
        whole = running.pool.decode_time()
        running.run(running.pool.decode(slow_picture(), SPEC, whole))
        of_one = whole.seconds - whole.left_s
        assert of_one > 0
        shared = DecodeTime(2.5 * of_one)
        outcomes = running.decode_many(5, slow_picture(), shared)
        assert UnreadableImage in {type(outcome) for outcome in outcomes}
        assert -0.5 < shared.left_s < 0.1


def test_time_counts_only_while_a_child_works():
    with RunningPool(1, seconds=0.3) as running:
        (pid,) = running.pids()
        stop(pid)
        threading.Timer(1.0, os.kill, (pid, signal.SIGCONT)).start()
        assert running.decode(SMALL).format == "PNG"
        assert running.pids() == {pid}


def test_picture_over_the_memory_limit_is_refused():
    with RunningPool(1, child_bytes=40_000_000) as running:
        (pid,) = running.pids()
        assert refusal(running, long_png(10_000, 4_000)) == (
            "the picture needs more memory than one picture may use (expected at most 40 megabytes): "
            "send a smaller version, or save it as a JPEG that is not progressive."
        )
        with pytest.raises(TooManyPixels):  # reading this header would take 8 bytes per pixel
            running.decode(claiming_size("WEBP", (16_000, 16_000)))
        assert running.decode(SMALL).format == "PNG"
        assert running.pids() == {pid}


@on_linux
def test_child_has_limits_of_memory_time_and_core_files():
    with RunningPool(1, seconds=7.0) as running:
        (pid,) = running.pids()
        running.decode(SMALL)
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
        soft = {line[:26].strip(): line[26:47].strip() for line in lines}
        assert int(soft["Max data size"]) - memory(pid, "VmData") < 45_000_000
        assert 7 < int(soft["Max cpu time"]) < 20
        assert soft["Max core file size"] == "0"


@on_linux
def test_picture_gets_no_more_memory_than_was_granted(one, pid, monkeypatch):
    monkeypatch.setattr(ChildProcess, "read_header", claims_little)
    assert refusal(one, long_png(5_000, 4_000)) == (
        "the picture needs more memory than its header says (expected at most 3 megabytes): send a smaller version, "
        "or save it as a JPEG that is not progressive."
    )
    assert one.decode(SMALL).format == "PNG"
    assert one.pids() == {pid}


async def claims_little(_child, _data, _spec, _memory_bytes, _time):
    return Cost(3_000_000)


@on_linux
@pytest.mark.parametrize(
    ("draw", "refusal"),
    [
        (lambda: jpeg_with_comments(1_000_000), "too many markers"),
        (lambda: jpeg_with_scans(3_000, (2_000, 1_500)), "too many scans"),
        (jpeg_with_exif_bomb, None),
        (lambda: long_png(1, 1_000_000), "too long"),
        (lambda: long_png(200, 65_000), None),
        (lambda: png_with_chunks(500_000), "too many chunks"),
        (lambda: png_with_text(40), None),
        (lambda: webp_with_frames(200_000), "too many chunks"),
        (lambda: with_box_entries("AVIF", 500_000), "too many bytes of description"),
        (lambda: with_box_entries("HEIF", 500_000), "too many bytes of description"),
    ],
    ids=["comments", "scans", "EXIF", "rows", "long", "chunks", "texts", "frames", "AVIF boxes", "HEIC boxes"],
)
def test_hostile_file_takes_no_more_memory_than_was_granted(one, pid, draw, refusal):
    data, granted = draw(), []
    with pytest.MonkeyPatch.context() as patch:
        grant = one.pool._budget.grant
        patch.setattr(one.pool._budget, "grant", lambda num_bytes: granted.append(num_bytes) or grant(num_bytes))
        reset_peak(pid)
        before = memory(pid, "VmRSS")
        with pytest.raises(PictureError, match=refusal) if refusal else nullcontext():
            one.decode(data)
    assert memory(pid, "VmHWM") - before < max(granted)
    assert one.pids() == {pid}


BOMB = """
import sys
from PIL import Image
Image.new("RGB", (8_000, 6_250), (90, 140, 60)).save(sys.stdout.buffer, "WEBP", quality=80, method=0)
"""


@on_linux
def test_webp_of_50_megapixels_is_refused_with_little_memory(one, pid):
    bomb = subprocess.run([sys.executable, "-c", BOMB], capture_output=True, check=True).stdout
    assert len(bomb) < 200_000
    processes = (pid, os.getpid())
    for number in processes:
        reset_peak(number)
    before = sum(memory(number, "VmRSS") for number in processes)
    with pytest.raises(TooManyPixels, match=r"50\.0 megapixels"):
        one.decode(bomb)
    assert sum(memory(number, "VmHWM") for number in processes) - before < 20_000_000
    assert one.pids() == {pid}


@on_linux
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
        assert [decoded.format for decoded in running.decode_many(3)] == ["PNG"] * 3


def test_the_time_left_is_shared_by_the_steps_that_run():
    time, clock_s = DecodeTime(6.0), [10.0, 20.0]
    with time.step(lambda: clock_s[0]):
        assert (time.left_s, time.lasts_s) == (6, 6)
        with time.step(lambda: clock_s[1]):
            assert (time.left_s, time.lasts_s) == (6, 3)
            clock_s[:] = [11.0, 21.0]
            assert (time.left_s, time.lasts_s) == (4, 2)
            clock_s[1] = 26.0
            assert (time.left_s, time.lasts_s) == (-1, 0)
    assert (time.left_s, time.lasts_s) == (-1, 0)
