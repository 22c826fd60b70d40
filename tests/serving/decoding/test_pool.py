"""The decoder pool: results equal those of a decode in this process."""

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
from PIL import Image

from models.errors import InputError, PictureError, TooManyPixels, UnreadableImage, UnsupportedFormat
from models.preprocess import InputSpec, picture_to_input
from serving.decoding import process
from serving.errors import NotReady, TooLarge
from tests.models.pictures import FORMATS, as_camera_file, claiming_size, encode, foliage, scene
from tests.serving.decoding.running_pool import LIMITS, SPEC, RunningPool, state, until, value

LARGE_SPEC = InputSpec(height=1_500, width=1_400, train_px=380)  # its pixels exceed the 20 MB of the shared area


@pytest.mark.parametrize("file_format", FORMATS)
def test_pixels_equal_those_of_a_decode_in_process(running, file_format):
    data = as_camera_file(foliage((240, 160)), file_format, 6)
    decoded = running.decode(data)
    pixels, picture = picture_to_input(data, SPEC)
    np.testing.assert_array_equal(decoded.pixels, pixels)
    assert (decoded.width, decoded.height, decoded.format) == (picture.width, picture.height, file_format)
    assert (decoded.width, decoded.height) == (240, 160)


def test_pixels_are_a_writable_copy(running):
    red, blue = (encode(Image.new("RGB", (64, 64), color), "PNG") for color in ("red", "blue"))
    first = running.decode(red).pixels
    kept = first.copy()
    assert (first.dtype, first.shape) == (np.float32, (3, 32, 32))
    assert first.flags.c_contiguous
    assert first.flags.owndata
    first += 0  # writable
    for _ in range(4):  # both children
        assert not np.array_equal(running.decode(blue).pixels, kept)
    np.testing.assert_array_equal(first, kept)


def test_files_of_any_size_are_decoded(running):
    noise = np.random.default_rng(5).integers(0, 256, (2_200, 2_200, 3), dtype=np.uint8)
    large = encode(Image.fromarray(noise), "PNG", compress_level=0)
    assert 14_000_000 < len(large) < LIMITS.picture_bytes
    for data in (large, encode(scene((1, 1)), "PNG"), large):
        np.testing.assert_array_equal(running.decode(data).pixels, picture_to_input(data, SPEC)[0])


def test_input_size_may_change_with_each_picture(running):
    data = encode(scene((1_600, 1_600)), "JPEG")
    for spec in (SPEC, LARGE_SPEC, InputSpec(height=8, width=40, train_px=8, interpolation="bilinear"), LARGE_SPEC):
        np.testing.assert_array_equal(running.decode(data, spec).pixels, picture_to_input(data, spec)[0])


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


def test_refused_picture_does_not_end_its_child(running):
    before = running.pids()
    for data in (encode(scene(), "PNG")[:60], claiming_size("PNG", (50_000, 50_000))):
        with pytest.raises(PictureError):
            running.decode(data)
    running.decode(encode(scene(), "PNG"))
    assert running.pids() == before
    assert value(running.metrics, 'botanify_restarts_total{part="decoder"}') == 0


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


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
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


def test_more_pictures_than_children_are_all_decoded(running):
    data = encode(foliage((1_200, 900)), "JPEG")

    async def many():
        return await asyncio.gather(*(running.pool.decode(data, SPEC) for _ in range(6)))

    results = running.run(many())
    assert len(results) == 6
    assert all(np.array_equal(result.pixels, results[0].pixels) for result in results)


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
    program = "import sys, serving.decoding.child; print(*sorted(sys.modules))"
    listing = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(listing.stdout.split())
    assert "models.preprocess" in loaded
    assert not loaded & {"litestar", "uvicorn", "onnxruntime", "asyncio", "prometheus_client", "structlog", "torch"}


PARENT = """
import asyncio, os, sys
from serving.decoding.pool import DecoderPool
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
    until(lambda: all(state(pid) in {None, "Z"} for pid in pids))
