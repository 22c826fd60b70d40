"""Children that crash or misbehave, and cancelled decodes: only the affected picture fails."""

import asyncio
import os
import signal
import socket
import sys
import time

import pytest
from PIL import Image

from models.errors import UnreadableImage
from serving.decoding.channel import Channel, ChildLost
from tests.models.pictures import encode
from tests.serving.decoding.running_pool import (
    RESTARTS,
    SMALL,
    SPEC,
    RunningPool,
    memory,
    stop,
    until,
    until_on_loop,
    value,
)

GRANTED = "botanify_decode_bytes"


def begin(running, data=SMALL):
    """Starts a decode and returns its task once the child has received its command."""

    async def begin():
        task = asyncio.create_task(running.pool.decode(data, SPEC))
        await asyncio.sleep(0.02)
        return task

    return running.run(begin())


def outcome(running, task):
    async def wait():
        return await asyncio.gather(task, return_exceptions=True)

    return running.run(wait())[0]


# ---- crashes


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT, signal.SIGXCPU])
def test_child_killed_while_decoding_fails_one_picture(one, pid, number):
    restarts = value(one.metrics, RESTARTS)
    stop(pid)
    task = begin(one)
    os.kill(pid, number)
    os.kill(pid, signal.SIGCONT)
    failure = outcome(one, task)
    assert type(failure) is UnreadableImage
    assert str(failure) == (
        "the PNG picture crashed its decoder (expected a complete, undamaged file): send the original photograph again."
    )
    assert one.decode(SMALL).format == "PNG"
    assert pid not in one.pids()
    assert value(one.metrics, RESTARTS) == restarts + 1
    assert value(one.metrics, GRANTED) == 0


def test_memory_is_returned_if_a_child_dies_while_decoding_pixels(one, pid):
    async def kill_in_the_middle():
        large = encode(Image.new("RGB", (5_000, 4_000), "red"), "PNG", compress_level=1)
        task = asyncio.create_task(one.pool.decode(large, SPEC))
        await until_on_loop(lambda: value(one.metrics, GRANTED) > 80_000_000)
        os.kill(pid, signal.SIGKILL)
        return await asyncio.gather(task, return_exceptions=True)

    (failure,) = one.run(kill_in_the_middle())
    assert type(failure) is UnreadableImage
    assert value(one.metrics, GRANTED) == 0


def test_death_of_an_idle_child_fails_no_picture(one, pid):
    os.kill(pid, signal.SIGSEGV)
    one.run(until_on_loop(lambda: pid not in one.pids()))
    assert one.decode(SMALL).format == "PNG"


def test_dead_child_is_replaced_without_a_request(one, pid):
    os.kill(pid, signal.SIGKILL)
    one.run(until_on_loop(lambda: one.pool.num_alive == 0))
    one.wait_for_all(1)
    assert pid not in one.pids()


def test_failed_start_is_retried(one, pid, monkeypatch, capfd):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        os.kill(pid, signal.SIGKILL)
        one.run(until_on_loop(lambda: one.pool.num_alive == 0))
        one.run(asyncio.sleep(0.4))
        assert one.pool.num_alive == 0
    one.wait_for_all(1)
    assert one.decode(SMALL).format == "PNG"


def test_child_ignores_the_signals_of_a_terminal(one, pid):
    for number in (signal.SIGINT, signal.SIGHUP):
        os.kill(pid, number)
    assert one.decode(SMALL).format == "PNG"
    assert one.pids() == {pid}


# ---- cancellation


async def cancelled(task):
    task.cancel()
    return (await asyncio.gather(task, return_exceptions=True))[0]


def test_cancelled_decode_that_waits_for_a_child_never_starts(one, pid):
    failures = value(one.metrics, 'botanify_decode_failures_total{code="unreadable_image",format="PNG"}')
    stop(pid)
    first, waiting = begin(one), begin(one, SMALL[:100])
    assert isinstance(one.run(cancelled(waiting)), asyncio.CancelledError)
    os.kill(pid, signal.SIGCONT)
    assert outcome(one, first).format == "PNG"
    assert one.decode(SMALL).format == "PNG"
    assert value(one.metrics, 'botanify_decode_failures_total{code="unreadable_image",format="PNG"}') == failures


def test_cancelled_decode_waits_for_its_child(one, pid):
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


def test_cancelled_decode_of_a_hanging_child_ends_at_the_time_limit():
    with RunningPool(1, seconds=0.3) as running:
        (pid,) = running.pids()
        stop(pid)
        task = begin(running)
        started = time.monotonic()
        assert isinstance(running.run(cancelled(task)), asyncio.CancelledError)
        assert time.monotonic() - started < 2
        running.wait_for_all(1)
        assert running.decode(SMALL).format == "PNG"


@pytest.mark.skipif(sys.platform != "linux", reason="reads memory from /proc")
def test_cancelled_decode_that_waits_for_memory_ends_at_once():
    with RunningPool(1, picture_bytes=50_000_000) as running:
        (pid,) = running.pids()
        running.decode(SMALL)
        before = memory(pid, "RssAnon")

        async def cancel_while_waiting():
            async with running.pool._budget.grant(10**12):
                task = asyncio.create_task(running.pool.decode(SMALL + bytes(40_000_000), SPEC))
                await until_on_loop(lambda: memory(pid, "RssAnon") - before > 35_000_000)
                assert not task.done()
                return await cancelled(task)

        assert isinstance(running.run(cancel_while_waiting()), asyncio.CancelledError)
        until(lambda: memory(pid, "RssAnon") - before < 5_000_000)
        assert running.decode(SMALL).format == "PNG"
        assert running.pids() == {pid}


# ---- invalid replies


@pytest.mark.parametrize(
    "sent",
    [b"\xff\xff\xff\xff", b"\0\0\0\x03abc", b"\0\0\0\x01\x80", b"\0\0\0\x00x"],
    ids=["too long", "not MessagePack", "unknown type", "longer than its prefix"],
)
def test_child_that_sends_an_invalid_message_is_disconnected(sent):
    async def listen():
        ours, theirs = socket.socketpair()
        with theirs:
            _, channel = await asyncio.get_running_loop().create_unix_connection(Channel, sock=ours)
            theirs.send(sent)
            with pytest.raises(ChildLost):
                async with asyncio.timeout(5):
                    await channel.receive()
            assert channel.lost.is_set()

    asyncio.run(listen())
