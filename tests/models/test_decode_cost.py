"""The memory that a picture takes is estimated from its header, neither too low nor much too high."""

import io
import os
import random
import struct
import subprocess
import sys

import numpy as np
import pillow_heif
import pytest
from PIL import Image

from models.decode_cost import decode_cost
from models.errors import PictureError
from models.file_structure import webp_canvas
from models.preprocess import InputSpec, picture_to_input
from tests.make import ROOT
from tests.models.pictures import FORMATS, as_camera_file, claiming_size, encode, exif, foliage, png, png_chunk, scene

SPEC = InputSpec(height=380, width=380, train_px=380)


def cost(data):
    return decode_cost(data, SPEC)


def test_large_jpegs_cost_their_reduced_size():
    full, half, quarter = (
        cost(claiming_size("JPEG", size)) for size in ((1_500, 1_500), (3_000, 3_000), (6_000, 6_000))
    )
    assert full == half
    assert quarter == full


def test_jpegs_in_several_scans_cost_their_coefficients():
    image = scene((2_000, 1_000))
    plain = cost(encode(image, "JPEG"))
    full_chroma = cost(encode(image, "JPEG", progressive=True))
    half_chroma = cost(encode(image, "JPEG", progressive=True, subsampling="4:2:0"))
    grey = cost(encode(image.convert("L"), "JPEG", progressive=True))
    bytes_of_a_pixel = [(dear - plain) / 2e6 for dear in (full_chroma, half_chroma)]
    assert bytes_of_a_pixel == pytest.approx([6, 3], abs=0.1)
    assert grey < cost(encode(image.convert("L"), "JPEG")) + 4e6


def split_scans(data):
    """A baseline JPEG whose header says that its first component has its own scan."""
    at = data.index(b"\xff\xda")
    return data[:at] + b"\xff\xda" + struct.pack(">HB", 8, 1) + b"\x01\x00\x00\x3f\x00" + data[at + 14 :]


def test_baseline_jpegs_can_have_several_scans():
    data = encode(scene((2_000, 1_000)), "JPEG")
    assert cost(split_scans(data)) - cost(data) == pytest.approx(6 * 2e6, rel=0.05)


@pytest.mark.parametrize("file_format", ["JPEG", "PNG"])
def test_a_rotated_picture_is_in_memory_twice(file_format):
    image = scene((1_000, 700))
    assert cost(as_camera_file(image, file_format, 6)) - cost(encode(image, file_format)) == pytest.approx(
        4 * 1_000 * 700, rel=0.05
    )


def test_exif_after_the_pixels_of_a_png_may_rotate_it():
    rows = [bytes(3_000)] * 1_000
    late = png((1_000, 1_000), 8, 2, rows, behind=png_chunk(b"eXIf", exif(6)[6:]))
    assert cost(late) - cost(png((1_000, 1_000), 8, 2, rows)) == pytest.approx(4e6, rel=0.05)


@pytest.mark.parametrize("file_format", ["PNG", "WEBP", "HEIF", "AVIF"])
def test_transparency_costs_more(file_format):
    opaque = scene()
    transparent = opaque.convert("RGBA")
    transparent.putalpha(opaque.convert("L"))
    assert cost(encode(transparent, file_format)) > cost(encode(opaque, file_format)) + 96 * 64


@pytest.mark.parametrize(("file_format", "weight"), [("WEBP", 16), ("HEIF", 9), ("AVIF", 12)])
def test_a_frame_costs_its_weight_for_each_pixel(file_format, weight):
    more, fewer = (cost(claiming_size(file_format, (side, 1_000))) for side in (2_000, 1_000))
    assert more - fewer == weight * 1_000_000


@pytest.mark.filterwarnings("ignore")  # our own errors cover what Pillow warns of
@pytest.mark.parametrize("file_format", FORMATS)
def test_refusals_by_header_are_those_of_the_decoder(file_format):
    data = as_camera_file(foliage((40, 24)), file_format, 6)
    generator = random.Random(f"{file_format} header")
    num_refused = 0
    for _ in range(300):
        damaged = bytearray(data)
        for _ in range(generator.randrange(1, 6)):
            damaged[generator.randrange(min(len(data), 400))] = generator.randrange(256)
        refusal = why_refused(decode_cost, bytes(damaged))
        num_refused += refusal is not None
        assert refusal is None or refusal == why_refused(picture_to_input, bytes(damaged))
    assert num_refused > 10


def why_refused(function, data):
    try:
        function(data, SPEC)
    except PictureError as error:
        return type(error), str(error)


@pytest.mark.parametrize(
    "options", [{"lossless": True}, {"lossless": False}, {"lossless": False, "exif": exif(1)}], ids=str
)
def test_canvas_of_a_webp_is_read_from_its_first_chunk(options):
    for size in ((1, 1), (257, 16), (300, 700)):
        data = encode(scene(size), "WEBP", **options)
        assert webp_canvas(data)[:2] == size
        assert webp_canvas(data[:25]) is None


def test_a_webp_of_another_kind_has_no_canvas():
    data = encode(scene(), "WEBP")
    assert webp_canvas(data.replace(b"VP8L", b"VP8Q")) is None
    assert webp_canvas(encode(scene(), "PNG")) is None


# ---- estimates and measurements

# Each picture has a process of its own: what other pictures leave in memory changes its growth by a fifth either way,
# depending on their order. Encoders leave memory too, so they run elsewhere.
MEASURE = """
import ctypes, sys
from pathlib import Path
import pillow_heif
from PIL import AvifImagePlugin
from models.preprocess import InputSpec, picture_to_input
pillow_heif.options.DECODE_THREADS = AvifImagePlugin.DEFAULT_MAX_THREADS = 1
spec = InputSpec(height=380, width=380, train_px=380)
def memory(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))
for path in sorted(Path(sys.argv[1]).iterdir()):
    picture_to_input(path.read_bytes(), spec)
data = Path(sys.argv[2]).read_bytes()
ctypes.CDLL(None).malloc_trim(0)
Path("/proc/self/clear_refs").write_text("5")
before = memory("VmRSS")
picture_to_input(data, spec)
print(memory("VmHWM") - before + 2 * len(data))
"""
# Of the decoder processes of the service, see serving/engine/decoding/process.py.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "50331648"}


def measured_pictures():
    image = foliage((1_600, 1_600))
    alpha = image.convert("RGBA")
    alpha.putalpha(image.convert("L"))
    fast = {"PNG": {"compress_level": 1}, "WEBP": {"method": 0, "quality": 50}, "AVIF": {"speed": 10}}
    yield "baseline.jpg", encode(image, "JPEG", subsampling="4:2:0")
    yield "grey.jpg", encode(image.convert("L"), "JPEG", subsampling=-1)
    yield "progressive.jpg", encode(image, "JPEG", subsampling="4:2:0", progressive=True)
    yield "progressive in full chroma.jpg", encode(image, "JPEG", progressive=True)
    yield "turned.jpg", as_camera_file(image, "JPEG", 6)
    yield "turned.png", as_camera_file(image.resize((1_200, 900)), "PNG", 6)
    for mode in ("RGB", "RGBA", "LA", "P", "L"):
        yield f"{mode}.png", encode(alpha.convert(mode), "PNG", **fast["PNG"])
    yield "16 bits.png", encode(Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257), "PNG")
    # Not smaller: most of the estimate of a small one is a sum of what is not needed at one time.
    yield "RGB.heic", encode(image, "HEIF", quality=50)
    deep = pillow_heif.from_bytes("RGB;16", image.size, (np.asarray(image).astype(np.uint16) << 8).tobytes())
    deep.save(stream := io.BytesIO(), quality=50, chroma="422")
    yield "10 bits.heic", stream.getvalue()
    for picture in (image, alpha):
        for lossless in (False, True):
            yield f"{picture.mode} {lossless}.webp", encode(picture, "WEBP", **{**fast["WEBP"], "lossless": lossless})
        yield f"{picture.mode}.avif", encode(picture, "AVIF", **fast["AVIF"])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="resets the peak of memory in /proc")
def test_estimates_are_between_0_9_and_1_6_times_the_measured_memory(tmp_path):
    first, measured = tmp_path / "first", tmp_path / "measured"
    first.mkdir()
    for name in FORMATS:
        (first / name).write_bytes(encode(scene(), name))
    shares = {}
    for name, data in measured_pictures():
        measured.write_bytes(data)
        command = [sys.executable, "-W", "ignore", "-c", MEASURE, first, measured]
        peak = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **ALLOCATOR}, capture_output=True, check=True
        ).stdout
        shares[name] = cost(data) / int(peak)
    assert len(shares) > 15
    assert {name: share for name, share in shares.items() if not 0.9 < share < 1.6} == {}
