"""Children that crash or misbehave, and cancelled decodes: only the affected picture fails."""

import asyncio
import os
import signal
import socket
import sys
import threading
from contextlib import suppress

import pytest

from models.errors import UnreadableImage
from serving.engine.decoding import pool, process
from serving.engine.decoding.messages import MAX_MESSAGE_BYTES, SharedArea
from serving.engine.decoding.process import ChildLost, ChildProcess
from serving.errors import NotReady
from tests.serving.decoding.running_pool import (
    RESTARTS,
    SMALL,
    SPEC,
    RunningPool,
    slow_picture,
    state,
    stop,
    value,
)
from tests.waiting import until, wait_until

GRANTED = "botanify_decode_bytes"
DEEP = b'{"type":"Ready","x":' + b"[" * 60_000 + b"\n"


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


def assert_sound(running):
    """Checks that it decodes, and that no memory is still granted."""
    assert running.decode(SMALL).format == "PNG"
    assert value(running.metrics, GRANTED) == 0


# ---- lost children


OUTSIDE, OWN = [signal.SIGKILL, signal.SIGTERM, signal.SIGXCPU], [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS]


@pytest.mark.parametrize("number", [*OUTSIDE, *OWN])
def test_picture_whose_child_is_lost_is_decoded_by_another(one, pid, number):
    restarts = value(one.metrics, RESTARTS)
    stop(pid)
    task = begin(one)
    os.kill(pid, number)
    with suppress(ProcessLookupError):  # SIGKILL ends a suspended process too
        os.kill(pid, signal.SIGCONT)
    assert outcome(one, task).format == "PNG"
    assert pid not in one.pids()
    assert value(one.metrics, RESTARTS) == restarts + 1
    assert_sound(one)


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        ((signal.SIGKILL, signal.SIGKILL), NotReady),
        ((signal.SIGKILL, signal.SIGSEGV), NotReady),
        ((signal.SIGABRT, signal.SIGKILL), NotReady),
        ((signal.SIGSEGV, signal.SIGABRT), UnreadableImage),
    ],
)
def test_picture_is_refused_only_if_it_ended_two_children_itself(one, pid, signals, expected):
    async def lose_two():
        task = asyncio.create_task(one.pool.decode(slow_picture(), SPEC))
        for number in signals:
            await until(lambda: any(child._is_interrupted and child.is_alive for child in one.pool._children))
            (child,) = one.pool._children
            os.kill(child.pid, number)
            await until(lambda lost=child: not lost.is_alive)
        return await asyncio.gather(task, return_exceptions=True)

    (failure,) = one.run(lose_two())
    assert type(failure) is expected
    told = {
        NotReady: "two processes that decoded the picture have ended: try again in 1 second.",
        UnreadableImage: "the PNG picture crashes its decoder (expected a complete, undamaged file): "
        "send the original photograph again.",
    }
    assert str(failure) == told[expected]
    assert_sound(one)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_child_may_die_between_header_and_pixels(one, pid, number):
    async def kill_while_waiting_for_memory():
        async with one.pool._budget.grant(10**12):
            task = asyncio.create_task(one.pool.decode(SMALL, SPEC))
            await until(one.pool._budget._turn.locked)
            os.kill(pid, number)
            wait_until(lambda: state(pid) in {None, "Z"})  # the event loop has not noticed it yet
        return await asyncio.gather(task, return_exceptions=True)

    (decoded,) = one.run(kill_while_waiting_for_memory())
    assert decoded.format == "PNG"
    assert_sound(one)


def test_child_into_whose_memory_a_cancelled_decode_still_writes_gets_no_other_picture(one, pid, monkeypatch):
    begun, may_end = threading.Event(), threading.Event()

    def write(_area, _data):
        begun.set()
        assert may_end.wait(60)

    async def cancel_while_writing():
        task = asyncio.create_task(one.pool.decode(SMALL, SPEC))
        await until(begun.is_set)
        task.cancel()
        await asyncio.wait({task})

    with monkeypatch.context() as patched:
        patched.setattr(process, "_LARGE_BYTES", 0)
        patched.setattr(SharedArea, "write", write)
        one.run(cancel_while_writing())
        may_end.set()
    assert_sound(one)
    assert pid not in one.pids()


def test_killed_child_is_not_alive_at_once(one, pid):
    (child,) = one.pool._children
    assert child.is_alive

    async def kill():
        child.kill()
        return child.is_alive

    assert not one.run(kill())
    one.run(until(lambda: pid not in one.pids()))


def test_pictures_of_children_that_are_suspended_together_are_decoded(monkeypatch):
    monkeypatch.setattr(process, "_FROZEN_S", 0.5)
    with RunningPool(2) as running:
        pids = running.pids()
        for pid in pids:
            stop(pid)
        assert [decoded.format for decoded in running.decode_many(3)] == ["PNG"] * 3
        assert not pids & running.pids()


def test_suspended_child_is_replaced_without_a_request(one, pid, monkeypatch):
    monkeypatch.setattr(process, "_FROZEN_S", 0.5)
    stop(pid)
    one.run(until(lambda: one.pool.num_alive == 0))
    one.wait_for_all(1)
    assert pid not in one.pids()


def test_failed_start_is_retried(one, pid, monkeypatch, capfd):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        os.kill(pid, signal.SIGKILL)
        one.run(until(lambda: one.pool.num_alive == 0))
        one.run(asyncio.sleep(0.4))
        assert one.pool.num_alive == 0
    one.wait_for_all(1)
    assert_sound(one)


def test_child_ignores_the_signals_of_a_terminal(one, pid):
    for number in (signal.SIGINT, signal.SIGHUP):
        os.kill(pid, number)
    assert_sound(one)
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
    assert_sound(one)
    assert value(one.metrics, 'botanify_decode_failures_total{code="unreadable_image",format="PNG"}') == failures


def test_cancelled_decode_waits_for_its_child(one, pid, monkeypatch):
    monkeypatch.setattr(pool, "_CANCEL_GRACE_S", 60)
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
    assert_sound(one)
    assert one.pids() == {pid}


def test_cancelled_decode_of_a_hanging_child_ends_soon():
    with RunningPool(1) as running:
        (pid,) = running.pids()
        stop(pid)
        task = begin(running)
        assert isinstance(running.run(cancelled(task)), asyncio.CancelledError)
        assert running.pool.num_alive == 0
        running.wait_for_all(1)
        assert_sound(running)


def test_cancelled_decode_that_waits_for_memory_ends_at_once(one, pid):
    async def cancel_while_waiting():
        async with one.pool._budget.grant(10**12):
            task = asyncio.create_task(one.pool.decode(SMALL, SPEC))
            await until(one.pool._budget._turn.locked)
            return await cancelled(task)

    assert isinstance(one.run(cancel_while_waiting()), asyncio.CancelledError)
    assert_sound(one)
    assert one.pids() == {pid}


# ---- invalid replies


@pytest.mark.parametrize(
    "sent",
    [b" " * 70_000, b"abc\n", b"{}\n", b"\n", b'{"type":"Failed"}\n', b"\xff\n", DEEP],
    ids=["too long", "not JSON", "no type", "nothing", "without its fields", "not UTF-8", "deep"],
)
def test_child_that_sends_an_invalid_message_is_disconnected(sent):
    async def listen():
        ours, theirs = socket.socketpair()
        replies, commands = await asyncio.open_unix_connection(sock=ours, limit=MAX_MESSAGE_BYTES)
        running = await asyncio.create_subprocess_exec("sleep", "60")
        child = ChildProcess(running, replies, commands, SharedArea.create(1))
        with theirs:
            theirs.send(sent)
            with pytest.raises(ChildLost):
                async with asyncio.timeout(5):
                    await child.receive()
            assert not child.is_alive
        await child.stop(0.0)

    asyncio.run(listen())
