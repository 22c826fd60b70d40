"""Pictures decoded in child processes, and the budget of their memory."""

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import uvloop
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from models.errors import InputError, PictureError, TooManyPixels, UnreadableImage, UnsupportedFormat
from models.preprocess import picture_to_input
from serving.engine.decoding import process
from serving.engine.decoding.pool import ByteBudget
from serving.errors import NotReady, TooLarge
from serving.metrics import Metrics
from tests.make import ran
from tests.models.pictures import FORMATS, as_camera_file, claiming_size, encode, foliage, scene
from tests.serving.decoding.running_pool import SPEC, RunningPool, state, value
from tests.waiting import wait_until


@pytest.mark.parametrize("file_format", FORMATS)
def test_pixels_equal_those_of_a_decode_in_process(running, file_format):
    data = as_camera_file(foliage((240, 160)), file_format, 6)
    decoded = running.decode(data)
    pixels, picture = picture_to_input(data, SPEC)
    np.testing.assert_array_equal(decoded.pixels, pixels)
    assert (decoded.width, decoded.height, decoded.format) == (picture.width, picture.height, file_format)
    assert (decoded.width, decoded.height) == (240, 160)


REFUSED = {
    UnsupportedFormat: [b"", b"GIF89a nothing else"],
    TooManyPixels: [claiming_size("WEBP", (16_000, 16_000)), claiming_size("JPEG", (65_000, 65_000))],
    UnreadableImage: [encode(foliage((96, 64)), name)[:400] for name in FORMATS]
    + [encode(foliage((96, 64)), "PNG")[:-4_000]],
}


@pytest.mark.parametrize(("kind", "data"), [(kind, data) for kind, files in REFUSED.items() for data in files])
def test_errors_are_passed_on_unchanged(running, kind, data):
    with pytest.raises(PictureError) as in_process:
        picture_to_input(data, SPEC)
    with pytest.raises(PictureError) as in_child:
        running.decode(data)
    assert type(in_child.value) is type(in_process.value) is kind
    for part in ("problem", "value", "limit", "remedy"):
        assert getattr(in_child.value, part) == getattr(in_process.value, part)
    assert str(in_child.value) == str(in_process.value)


def test_picture_is_freed_at_once(running):
    refused, cancelled, decoded = (encode(scene(), "PNG") for _ in range(3))
    refused = refused[:-60]

    async def decode_all():
        await running.pool.decode(decoded, SPEC)
        with contextlib.suppress(PictureError):
            await running.pool.decode(refused, SPEC)
        task = asyncio.create_task(running.pool.decode(cancelled, SPEC))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})

    gc.collect()
    gc.disable()  # large pictures must not wait for a garbage collection
    try:
        before = [sys.getrefcount(data) for data in (refused, cancelled, decoded)]
        running.run(decode_all())
        assert [sys.getrefcount(data) for data in (refused, cancelled, decoded)] == before
    finally:
        gc.enable()


def test_too_large_file_is_refused_before_it_reaches_a_child(running):
    with pytest.raises(TooLarge, match="at most 20000000 bytes"):
        running.decode(encode(scene(), "PNG") + bytes(20_000_000))


def test_pictures_are_counted_and_timed():
    with RunningPool(1) as running:
        running.decode(encode(scene(), "PNG"))
        for refused in (encode(scene(), "WEBP")[:100], b"nothing"):
            with pytest.raises(PictureError):
                running.decode(refused)
        metrics = running.metrics
        assert value(metrics, 'botanify_pictures_total{format="PNG"}') == 1
        assert value(metrics, 'botanify_decode_failures_total{code="unreadable_image",format="WEBP"}') == 1
        assert value(metrics, 'botanify_decode_failures_total{code="unsupported_format",format="unknown"}') == 1
        assert value(metrics, 'botanify_stage_seconds_count{stage="decode"}') == 2
        assert value(metrics, 'botanify_stage_seconds_sum{stage="decode"}') > 0
        assert value(metrics, "botanify_decode_bytes") == 0


on_both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


@on_both_loops
def test_asyncio_and_uvloop_are_supported(run):
    async def test():
        running = RunningPool(1)
        await running.pool.start()
        decoded = await running.pool.decode(encode(scene(), "PNG"), SPEC)
        pids = running.pids()
        await running.pool.close()
        return decoded, pids

    decoded, pids = run(test())
    assert (decoded.width, decoded.height) == (96, 64)
    assert [state(pid) for pid in pids] == [None]


def above_stderr(pid):
    """Returns what the descriptors of a process stand for, but for the standard streams."""
    return {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir() if int(link.name) > 2}


@on_both_loops
def test_child_has_no_descriptor_of_the_service_but_its_area(run, tmp_path):
    async def test():
        running = RunningPool(1)
        await running.pool.start()
        (pid,) = running.pids()
        targets = above_stderr(pid)
        await running.pool.close()
        return targets

    with (tmp_path / "secret").open("w") as secret:
        os.set_inheritable(secret.fileno(), True)
        targets = run(test())
    assert len(targets) == 1, targets  # the mapping of the area has a descriptor of its own


def test_closed_pool_has_no_processes_and_refuses_pictures():
    with RunningPool(2) as running:
        pids = running.pids()
        assert {state(pid) for pid in pids} <= {"S", "R"}
        assert len(pids) == running.pool.num_alive == 2
        running.run(running.pool.close())
        assert [state(pid) for pid in pids] == [None, None]
        assert running.pool.num_alive == 0
        with pytest.raises(NotReady):
            running.decode(encode(scene(), "PNG"))


def test_close_ends_waiting_and_running_decodes():
    slow = encode(foliage((1_500, 1_000)), "PNG", compress_level=1)
    with RunningPool(1) as running:

        async def close_meanwhile():
            decodes = [asyncio.create_task(running.pool.decode(slow, SPEC)) for _ in range(3)]
            await asyncio.sleep(0.01)
            await running.pool.close()
            return await asyncio.gather(*decodes, return_exceptions=True)

        assert [type(outcome) for outcome in running.run(close_meanwhile())] == [NotReady] * 3


def test_failure_to_start_any_child_is_one_clear_error(monkeypatch, capfd):
    monkeypatch.setattr(process, "_ROOT", process._ROOT / "nowhere")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    running = RunningPool(2)

    async def start():
        with pytest.raises(InputError, match=r"no decoder process starts \(got exit status 1"):
            await running.pool.start()

    asyncio.run(start())
    assert running.pool.num_alive == 0


def test_child_ignores_the_working_directory_and_gets_no_secrets(tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise RuntimeError('modules of the working directory')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BOTANIFY_API_KEYS", "secret words")
    with RunningPool(1) as running:
        (pid,) = running.pids()
        assert b"secret words" not in Path(f"/proc/{pid}/environ").read_bytes()
        assert running.decode(encode(scene(), "PNG")).format == "PNG"


def test_child_imports_neither_web_framework_nor_onnxruntime():
    program = "import sys, serving.engine.decoding.child; print(*sorted(sys.modules))"
    listing = ran(sys.executable, "-c", program, check=True)
    loaded = set(listing.stdout.split())
    assert "models.preprocess" in loaded
    assert not loaded & {"litestar", "uvicorn", "onnxruntime", "asyncio", "prometheus_client", "structlog", "torch"}


PARENT = """
import asyncio, os, sys
from serving.engine.decoding.pool import DecoderPool
from serving.metrics import Metrics
from tests.serving.decoding.running_pool import LIMITS, SPEC

async def main():
    pool = DecoderPool(2, LIMITS, Metrics())
    await pool.start()
    decode = asyncio.create_task(pool.decode(sys.stdin.buffer.read(), SPEC))
    await asyncio.sleep(0.05)
    print(*(child.pid for child in pool._children), flush=True)
    await decode
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("data", [encode(scene(), "PNG"), encode(foliage((1_500, 1_000)), "PNG", compress_level=1)])
def test_children_of_a_killed_service_exit(data):
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(process._ROOT)}
    ) as service:
        service.stdin.write(data)
        service.stdin.close()
        pids = [int(word) for word in service.stdout.readline().split()]
        assert len(pids) == 2
        service.kill()
    wait_until(lambda: all(state(pid) in {None, "Z"} for pid in pids))


class SharedBudget(RuleBasedStateMachine):
    """Requests for the memory of a budget of 100 bytes, in the order in which they come."""

    def __init__(self):
        super().__init__()
        self.runner, self.metrics = asyncio.Runner(), Metrics()
        self.budget = ByteBudget(100, self.metrics.decode_bytes)
        self.requests = []  # [bytes, whether it holds them, what ends it, task], the oldest first

    async def hold(self, request):
        async with self.budget.grant(request[0]):
            request[1] = True
            await request[2].wait()

    async def begin(self, num_bytes):
        request = [num_bytes, False, asyncio.Event()]
        self.requests.append([*request, None])
        self.requests[-1][3] = asyncio.create_task(self.hold(self.requests[-1]))

    async def settled(self, num_steps=10):
        for _ in range(num_steps):
            await asyncio.sleep(0)

    @rule(num_bytes=st.sampled_from([1, 10, 60, 90, 100, 1_000]))
    def ask(self, num_bytes):
        self.runner.run(self.begin(num_bytes))

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), number=st.integers(1, 2), num_steps=st.integers(0, 3), is_cancelled=st.booleans())
    def leave(self, data, number, num_steps, is_cancelled):
        """One ends, and soon after perhaps another one, which may just be granted its memory, is canceled or ends."""
        for _ in range(min(number, len(self.requests))):
            request = self.requests.pop(data.draw(st.integers(0, len(self.requests) - 1)))
            request[3].cancel() if is_cancelled or not request[1] else request[2].set()
            self.runner.run(self.settled(num_steps))

    @invariant()
    def is_granted_in_order_as_far_as_it_goes(self):
        self.runner.run(self.settled())
        held = [num_bytes for num_bytes, is_held, *_ in self.requests if is_held]
        waiting = [num_bytes for num_bytes, is_held, *_ in self.requests if not is_held]
        assert [each[1] for each in self.requests] == [True] * len(held) + [False] * len(waiting)
        assert value(self.metrics, "botanify_decode_bytes") == sum(held)
        assert sum(held) <= 100 or len(held) == 1
        assert not waiting or (held and sum(held) + waiting[0] > 100)

    def teardown(self):
        for _, _, _, task in self.requests:
            task.cancel()
        self.requests.clear()
        self.is_granted_in_order_as_far_as_it_goes()
        self.runner.close()


test_requests_share_a_budget_in_their_order = SharedBudget.TestCase
test_requests_share_a_budget_in_their_order.settings = settings(max_examples=25, stateful_step_count=15)
