"""Estimates from a picture's header how much memory its decoding takes, so that the memory can be reserved first.

The weights are peaks of resident memory, measured on drawn pictures of 12 megapixels and on photographs. They hold for
files whose pixels match their header; against other files the decoder needs a hard memory limit.
"""

from typing import Final

from PIL import Image, JpegImagePlugin

from models.exif import exif_orientation
from models.file_structure import jpeg_scans, sniff_format, webp_canvas
from models.preprocess import (
    InputSpec,
    checked_format,
    needed_side_px,
    open_picture,
    reduce_scale,
)

# Peak bytes a pixel of the formats that are not decoded straight into Pillow's picture. WebP: two canvases, the frame,
# the picture. HEIF and AVIF: planes, interleaved RGB, the picture; AVIF with full chroma and 10 bits takes 13.5.
_FRAME_WEIGHTS: Final = {"WEBP": 16.0, "HEIF": 9.0, "AVIF": 12.0}
_DEEP_WEIGHTS: Final = {"HEIF": 5.0}  # more than 8 bits, for whose planes and RGB two bytes are taken
_ALPHA_WEIGHTS: Final = {"WEBP": 1.0, "HEIF": 1.0, "AVIF": 2.5}
# Bytes a pixel of Pillow's pictures by mode; Pillow pads RGB to four.
_MODE_WEIGHTS: Final = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2}
_RGB_WEIGHT: Final = 4
_COEFFICIENT_BYTES: Final = 2  # libjpeg keeps the coefficients of a JPEG with several scans until the last scan is read
# Bytes a pixel of the network input: float32 copies of three channels while they are normalized.
_INPUT_WEIGHT: Final = 40
_LEAST_BYTES: Final = 2_000_000  # buffered rows, decoder tables, and the overhead of Python
# Copies of the file in memory: as received and as read; the decoders of these formats make a third.
_FILE_COPIES: Final = {"WEBP": 3, "HEIF": 3, "AVIF": 3}
# A header takes the file as received, as read, and the decoder's copy, and the names and values in it.
_HEADER_COPIES: Final = 3
_HEADER_BYTES: Final = 8_000_000
# EXIF after the pixels of a PNG is in the second to last chunk, and rarely larger than this.
_TAIL_BYTES: Final = 65_536


def decode_cost(data: bytes, spec: InputSpec) -> int:
    """Estimates the memory that `picture_to_input` takes for a picture, bytes; decodes no pixel.

    Returns:
        An estimate between 1 and about 1.5 times the real peak, if the pixels match the header.

    Raises:
        PictureError: As in `read_picture`, for the faults that the header shows.
    """
    if sniff_format(data) == "WEBP":  # not opened: its decoder would take half of the memory
        checked_format(data)
        width, height, has_alpha = webp_canvas(data) or (0, 0, False)  # the decoder refuses a file without a canvas
        weight = _FRAME_WEIGHTS["WEBP"] + _ALPHA_WEIGHTS["WEBP"] * has_alpha
        return int(width * height * weight) + _fixed_bytes("WEBP", data, spec)
    with open_picture(data) as (name, opened):
        coefficients = _coefficient_bytes(opened, data) if isinstance(opened, JpegImagePlugin.JpegImageFile) else 0.0
        rotated = _is_rotated(name, opened, data)
        if name == "JPEG":
            reduce_scale(opened, needed_side_px(spec))
        num_pixels = opened.width * opened.height
        stored = _MODE_WEIGHTS.get(opened.mode, _RGB_WEIGHT)
        is_rgb = opened.mode == "RGB" and "transparency" not in opened.info
        converted = stored + (0 if is_rgb else _RGB_WEIGHT)
        alpha = _ALPHA_WEIGHTS.get(name, 0.0) if opened.mode.endswith("A") else 0.0
        deep = _DEEP_WEIGHTS.get(name, 0.0) if opened.info.get("bit_depth", 8) > 8 else 0.0
        decoding = _FRAME_WEIGHTS.get(name, 0.0) + alpha + deep or stored
    peak = max(num_pixels * decoding + coefficients, num_pixels * converted, num_pixels * 2 * _RGB_WEIGHT * rotated)
    return int(peak) + _fixed_bytes(name, data, spec)


def header_cost(num_bytes: int) -> int:
    """Returns the memory that `decode_cost` may take for a file of so many bytes."""
    return _HEADER_COPIES * num_bytes + _HEADER_BYTES


def _fixed_bytes(name: str, data: bytes, spec: InputSpec) -> int:
    """Returns the memory that does not depend on the number of pixels."""
    return len(data) * _FILE_COPIES.get(name, 2) + spec.width * spec.height * _INPUT_WEIGHT + _LEAST_BYTES


def _coefficient_bytes(opened: JpegImagePlugin.JpegImageFile, data: bytes) -> float:
    """Returns the memory for the coefficients of a whole JPEG: 0 if they are not kept."""
    if not jpeg_scans(data).keeps_coefficients:
        return 0.0
    sampling = [(horizontal, vertical) for _, horizontal, vertical, _ in opened.layer]
    finest = max((h for h, _ in sampling), default=1) * max((v for _, v in sampling), default=1)
    return sum(h * v for h, v in sampling) / max(1, finest) * opened.width * opened.height * _COEFFICIENT_BYTES


def _is_rotated(name: str, opened: Image.Image, data: bytes) -> bool:
    """Whether EXIF asks for a rotation or flip, for which the picture is in memory twice."""
    if name == "PNG" and "exif" not in opened.info:  # getexif() would decode the whole picture
        return b"eXIf" in data[-_TAIL_BYTES:]
    return exif_orientation(opened) != 1
