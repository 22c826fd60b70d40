"""Draws pictures, and writes files that no library would write."""

import io
import struct
import zlib

import numpy as np
import pillow_heif
from PIL import ExifTags, Image, ImageCms

from models.preprocess import InputSpec, read_picture

pillow_heif.register_heif_opener()

FORMATS = ("JPEG", "PNG", "WEBP", "HEIF", "AVIF")
LANDSCAPE, PORTRAIT = (96, 64), (64, 96)
SPEC = InputSpec(height=32, width=32, train_px=32)
RED, GREEN, BLUE = (220, 30, 40), (30, 180, 60), (30, 60, 200)


def scene(size=LANDSCAPE):
    """A picture that differs from all its rotations and mirror images: red increases to the right, green downwards."""
    width, height = size
    hw3 = np.full((height, width, 3), 90, dtype=np.uint8)
    hw3[..., 0] = np.linspace(20, 235, width)[None, :]
    hw3[..., 1] = np.linspace(20, 235, height)[:, None]
    return Image.fromarray(hw3)


def foliage(size, seed=1):
    """A picture with the coarse and fine structure of a photograph."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize(
        size, Image.Resampling.BICUBIC
    )
    fine = random.normal(0, 6, (size[1], size[0], 3))
    return Image.fromarray(np.clip(np.asarray(coarse) + fine, 0, 255).astype(np.uint8))


def encode(image, file_format, **options):
    """The picture as a file, in the best quality of the format."""
    if file_format == "JPEG":
        options = {"quality": 95, "subsampling": 0, **options}
    if file_format in {"HEIF", "AVIF"}:
        options = {"quality": 90, **options}
    if file_format == "WEBP":
        options = {"lossless": True, **options}
    stream = io.BytesIO()
    image.save(stream, file_format, **options)
    return stream.getvalue()


def as_stored(image, orientation):
    """The rows and columns that a camera stores for an upright picture (CIPA DC-008, tag 274), without Pillow."""
    upright = np.asarray(image)
    turned = upright.swapaxes(0, 1)
    stored = {
        1: upright,  # row 0 is the top, column 0 the left side
        2: upright[:, ::-1],  # top, right
        3: upright[::-1, ::-1],  # bottom, right
        4: upright[::-1],  # bottom, left
        5: turned,  # left, top
        6: turned[::-1],  # right, top
        7: turned[::-1, ::-1],  # right, bottom
        8: turned[:, ::-1],  # left, bottom
    }
    return Image.fromarray(np.ascontiguousarray(stored[orientation]))


def exif(orientation):
    tags = Image.Exif()
    tags[ExifTags.Base.Orientation] = orientation
    return tags.tobytes()


def exif_with_entries(*entries):
    """EXIF of one big-endian directory with the entries (tag, type, count, four bytes), valid or not."""
    directory = struct.pack(">H", len(entries))
    directory += b"".join(struct.pack(">HHI", tag, kind, count) + value for tag, kind, count, value in sorted(entries))
    return b"Exif\0\0MM\0*\0\0\0\x08" + directory + b"\0\0\0\0"


# XYZ of red, green and blue for the white D50, as profiles have them.
DISPLAY_P3 = ((0.5151, 0.2412, -0.0011), (0.2919, 0.6922, 0.0419), (0.1572, 0.0666, 0.7841))


def color_profile(*primaries):
    """The profile of sRGB, or one with these primaries and its curve (ICC.1:2022, 7.3 and 10.31)."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    for name, values in zip((b"rXYZ", b"gXYZ", b"bXYZ"), primaries, strict=False):
        at = int.from_bytes(data[data.index(name) + 4 :][:4]) + 8
        data[at : at + 12] = struct.pack(">3i", *(round(value * 65_536) for value in values))
    return bytes(data)


def as_camera_file(image, file_format, orientation):
    """The file of a rotated camera: it shows `image` only after its EXIF orientation is applied."""
    return encode(as_stored(image, orientation), file_format, exif=exif(orientation))


def png_chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(size, depth, color_type, rows, *chunks, behind=b""):
    """A PNG of given bit depth and color type (0 gray, 2 RGB, 3 palette, 4 gray and alpha, 6 RGBA), rows unfiltered."""
    header = struct.pack(">IIBBBBB", *size, depth, color_type, 0, 0, 0)
    parts = [png_chunk(b"IHDR", header), *chunks, png_chunk(b"IDAT", zlib.compress(b"".join(b"\0" + r for r in rows)))]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + behind + png_chunk(b"IEND", b"")


def claiming_size(file_format, size):
    """A file of a few hundred bytes whose header states a picture of `size`."""
    width, height = size
    if file_format == "PNG":
        return png(size, 8, 2, [b"\0" * 300])
    small = bytearray(encode(scene((64, 64)), file_format))
    if file_format == "JPEG":
        at = small.index(b"\xff\xc0") + 5
        small[at : at + 4] = struct.pack(">HH", height, width)
    elif file_format == "WEBP":  # VP8L: 14 bits for each side minus 1
        at = small.index(b"VP8L") + 9
        rest = small[at + 3] & 0xF0
        small[at : at + 4] = struct.pack("<I", (width - 1) | (height - 1) << 14 | rest << 24)
    else:
        plain, wanted = struct.pack(">II", 64, 64), struct.pack(">II", width, height)
        assert plain in small
        small = small.replace(plain, wanted)
    return bytes(small)


def seen(data, *points):
    """The mode and colors of the picture at (x, y) points."""
    image = read_picture(data).image
    assert image.mode == "RGB"
    return [image.getpixel(point) for point in points]


def difference(first, second):
    """Mean absolute difference of two pictures or arrays."""
    return float(np.abs(np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)).mean())
