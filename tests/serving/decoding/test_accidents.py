"""A child that crashes, hangs or wants too much memory costs one picture, and nobody waits longer than need be."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from models.errors import TooManyPixels, UnreadableImage
from serving.decoding.channel import Channel, ChildLost
from tests.models.pictures import claiming_size, encode, foliage, scene
from tests.serving.decoding.running import SPEC, Running, on_the_loop, stop, until, value

SMALL = encode(scene(), "PNG")
RESTARTS = 'botanify_restarts_total{part="decoder"}'
GRANTED = "botanify_decode_bytes"


@pytest.fixture(scope="module")
def one():
    """A single child, so that a test knows which one decodes."""
    with Running(1) as running:
        yield running


@pytest.fixture
def pid(one):
    one.wait_for_all(1)
    (pid,) = one.pids()
    return pid


def begin(running, data=SMALL):
    """Starts a decode and gives its task once the child has its order."""

    async def begin():
        task = asyncio.create_task(running.decoders.decode(data, SPEC))
        await asyncio.sleep(0.02)
        return task

    return running.run(begin())


def outcome(running, task):
    async def wait():
        return await asyncio.gather(task, return_exceptions=True)

    return running.run(wait())[0]


# ---- crashes


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT, signal.SIGXCPU])
def test_a_child_killed_while_it_decodes_costs_one_picture(one, pid, number):
    restarts = value(one.metrics, RESTARTS)
    stop(pid)
    task = begin(one)
    os.kill(pid, number)
    os.kill(pid, signal.SIGCONT)
    failure = outcome(one, task)
    assert type(failure) is UnreadableImage
    assert str(failure) == (
        "the PNG picture made its decoder fail (expected a complete, undamaged file): "
        "send the original photograph again."
    )
    assert one.decode(SMALL).format == "PNG"
    assert pid not in one.pids()
    assert value(one.metrics, RESTARTS) == restarts + 1
    assert value(one.metrics, GRANTED) == 0


def test_memory_is_given_back_when_a_child_dies_in_the_middle_of_the_pixels(one, pid):
    async def kill_in_the_middle():
        large = encode(Image.new("RGB", (5_000, 4_000), "red"), "PNG", compress_level=1)
        task = asyncio.create_task(one.decoders.decode(large, SPEC))
        await on_the_loop(lambda: value(one.metrics, GRANTED) > 80_000_000)
        os.kill(pid, signal.SIGKILL)
        return await asyncio.gather(task, return_exceptions=True)

    (failure,) = one.run(kill_in_the_middle())
    assert type(failure) is UnreadableImage
    assert value(one.metrics, GRANTED) == 0


def test_a_child_that_dies_idle_costs_no_picture(one, pid):
    os.kill(pid, signal.SIGSEGV)
    until(lambda: pid not in one.pids() or one.run(asyncio.sleep(0.01)))
    assert one.decode(SMALL).format == "PNG"


def test_a_dead_child_is_replaced_without_a_request(one, pid):
    os.kill(pid, signal.SIGKILL)
    one.run(on_the_loop(lambda: one.decoders.num_alive == 0))
    one.wait_for_all(1)
    assert pid not in one.pids()


def test_a_start_that_fails_is_tried_again(one, pid, monkeypatch, capfd):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        os.kill(pid, signal.SIGKILL)
        one.run(on_the_loop(lambda: one.decoders.num_alive == 0))
        one.run(asyncio.sleep(0.4))
        assert one.decoders.num_alive == 0
    one.wait_for_all(1)
    assert one.decode(SMALL).format == "PNG"


def test_the_signals_of_a_terminal_are_left_to_the_service(one, pid):
    for number in (signal.SIGINT, signal.SIGHUP):
        os.kill(pid, number)
    assert one.decode(SMALL).format == "PNG"
    assert one.pids() == {pid}


# ---- limits


def test_a_hanging_child_is_killed_in_time():
    with Running(1, seconds=0.3) as running:
        (pid,) = running.pids()
        stop(pid)
        started = time.monotonic()
        with pytest.raises(UnreadableImage, match=r"takes too long to decode \(expected at most 0.3 seconds\)"):
            running.decode(SMALL)
        assert 0.3 <= time.monotonic() - started < 2
        running.wait_for_all(1)
        assert pid not in running.pids()
        assert value(running.metrics, RESTARTS) == 1


def test_more_memory_than_allowed_is_one_clear_refusal():
    with Running(1, child_bytes=40_000_000) as running:
        (pid,) = running.pids()
        large = encode(Image.new("RGB", (5_000, 4_000), "red"), "PNG", compress_level=1)
        with pytest.raises(UnreadableImage) as refused:
            running.decode(large)
        with pytest.raises(TooManyPixels):  # the decoder would take 8 bytes a pixel to read the header
            running.decode(claiming_size("WEBP", (16_000, 16_000)))
        assert str(refused.value) == (
            "the picture needs more memory than one picture may use (expected at most 40 megabytes): "
            "send a smaller version."
        )
        assert running.decode(SMALL).format == "PNG"
        assert running.pids() == {pid}


@pytest.mark.skipif(sys.platform != "linux", reason="reads the limits from /proc")
def test_a_child_is_limited_in_memory_time_and_core_files():
    with Running(1, child_bytes=100_000_000, seconds=7.0) as running:
        (pid,) = running.pids()
        running.decode(SMALL)
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
        soft = {line[:26].strip(): line[26:47].strip() for line in lines}
        assert 100_000_000 < int(soft["Max data size"]) < 200_000_000
        assert 7 < int(soft["Max cpu time"]) < 20
        assert soft["Max core file size"] == "0"


def memory(pid, key):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


BOMB = """
import sys
from PIL import Image
Image.new("RGB", (8_000, 6_250), (90, 140, 60)).save(sys.stdout.buffer, "WEBP", quality=80, method=0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resets the peak of memory in /proc")
def test_a_webp_of_50_megapixels_is_refused_with_little_memory(one, pid):
    bomb = subprocess.run([sys.executable, "-c", BOMB], capture_output=True, check=True).stdout
    assert len(bomb) < 200_000
    processes = (pid, os.getpid())
    for number in processes:
        Path(f"/proc/{number}/clear_refs").write_text("5")  # the peak starts again from here
    before = sum(memory(number, "VmRSS") for number in processes)
    with pytest.raises(TooManyPixels, match=r"50\.0 megapixels"):
        one.decode(bomb)
    assert sum(memory(number, "VmHWM") for number in processes) - before < 20_000_000
    assert one.pids() == {pid}


@pytest.mark.skipif(sys.platform != "linux", reason="reads memory from /proc")
def test_a_child_keeps_no_memory_of_large_pictures(one, pid):
    one.decode(SMALL)
    before = memory(pid, "VmRSS")
    one.decode(encode(foliage((2_000, 1_500)), "AVIF", speed=10))
    one.decode(SMALL)
    assert memory(pid, "VmRSS") - before < 25_000_000


def test_a_picture_that_needs_more_than_the_budget_is_decoded_alone():
    with Running(2, budget_bytes=1) as running:

        async def three():
            return await asyncio.gather(*(running.decoders.decode(SMALL, SPEC) for _ in range(3)))

        assert len(running.run(three())) == 3


# ---- cancellation


async def cancelled(task):
    task.cancel()
    return (await asyncio.gather(task, return_exceptions=True))[0]


def test_a_decode_that_waits_for_a_child_never_starts_once_cancelled(one, pid):
    failures = value(one.metrics, 'botanify_decode_failures_total{code="unreadable_image",format="PNG"}')
    stop(pid)
    first, waiting = begin(one), begin(one, SMALL[:100])
    assert isinstance(one.run(cancelled(waiting)), asyncio.CancelledError)
    os.kill(pid, signal.SIGCONT)
    assert outcome(one, first).format == "PNG"
    assert one.decode(SMALL).format == "PNG"
    assert value(one.metrics, 'botanify_decode_failures_total{code="unreadable_image",format="PNG"}') == failures


def test_a_cancelled_decode_ends_with_its_child(one, pid):
    stop(pid)
    task = begin(one)

    async def cancel_repeatedly():
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.03)
        assert not task.done(), "the child may still use the memory"
        os.kill(pid, signal.SIGCONT)
        return await asyncio.gather(task, return_exceptions=True)

    (failure,) = one.run(cancel_repeatedly())
    assert isinstance(failure, asyncio.CancelledError)
    assert one.decode(SMALL).format == "PNG"
    assert one.pids() == {pid}
    assert value(one.metrics, GRANTED) == 0


def test_a_cancelled_decode_of_a_hanging_child_ends_in_time():
    with Running(1, seconds=0.3) as running:
        (pid,) = running.pids()
        stop(pid)
        task = begin(running)
        started = time.monotonic()
        assert isinstance(running.run(cancelled(task)), asyncio.CancelledError)
        assert time.monotonic() - started < 2
        running.wait_for_all(1)
        assert running.decode(SMALL).format == "PNG"


def test_a_decode_that_waits_for_memory_ends_at_once_when_cancelled(one, pid):
    async def cancel_while_waiting():
        async with one.decoders._budget.grant(10**12):
            task = asyncio.create_task(one.decoders.decode(SMALL + bytes(10_000_000), SPEC))
            await asyncio.sleep(0.3)
            assert not task.done()
            assert memory(pid, "VmRSS") - before > 8_000_000, "the child holds the picture meanwhile"
            return await cancelled(task)

    one.decode(SMALL)
    before = memory(pid, "VmRSS")
    assert isinstance(one.run(cancel_while_waiting()), asyncio.CancelledError)
    until(lambda: memory(pid, "VmRSS") - before < 2_000_000)
    assert one.decode(SMALL).format == "PNG"
    assert one.pids() == {pid}


# ---- a child that is no longer ours


@pytest.mark.parametrize(
    "words",
    [b"\xff\xff\xff\xff", b"\0\0\0\x03abc", b"\0\0\0\x01\x80", b"\0\0\0\x00x"],
    ids=["too long", "no message", "of no kind", "longer than it says"],
)
def test_a_child_that_breaks_the_rules_is_cut_off(words):
    async def listen():
        ours, theirs = socket.socketpair()
        with theirs:
            _, channel = await asyncio.get_running_loop().create_unix_connection(Channel, sock=ours)
            theirs.send(words)
            with pytest.raises(ChildLost):
                async with asyncio.timeout(5):
                    await channel.receive()
            assert channel.lost.is_set()

    asyncio.run(listen())
