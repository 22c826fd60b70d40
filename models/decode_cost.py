"""How much memory a picture will take, told by its header, so that the memory can be granted before it is used.

The weights are peaks of resident memory, measured on drawn pictures of 12 megapixels and on photographs. They hold for
honest files: where the pixels are not what the header promises, only a hard limit round the decoder helps.
"""

from typing import Final

import msgspec
from PIL import Image, JpegImagePlugin

from models.preprocess import InputSpec, exif_orientation, needed_side_px, open_picture, reduce_scale

# Bytes a pixel while a format is decoded that is not decoded straight into Pillow's picture. WebP: two canvases, the
# frame, the picture. HEIF and AVIF: planes, interleaved RGB, the picture; AVIF in full chroma and 10 bits takes 13.5.
_FRAME_WEIGHTS: Final = {"WEBP": 16.0, "HEIF": 9.0, "AVIF": 12.0}
_ALPHA_WEIGHTS: Final = {"WEBP": 1.0, "HEIF": 1.0, "AVIF": 2.5}
# Bytes a pixel of Pillow's pictures; it pads RGB.
_MODE_WEIGHTS: Final = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2}
_RGB_WEIGHT: Final = 4
_COEFFICIENT_BYTES: Final = 2  # libjpeg keeps those of a JPEG in several scans until the last one is read
# Bytes a pixel of the network input: the float32 copies of three channels that normalize it.
_INPUT_WEIGHT: Final = 40
_LEAST_BYTES: Final = 2_000_000  # rows in flight, tables, and what Python takes besides
# The file as it was sent and as it is read; the decoders of these formats take a copy of their own.
_FILE_COPIES: Final = {"WEBP": 3, "HEIF": 3, "AVIF": 3}
_START_OF_SCAN: Final = 0xDA
_TAIL_BYTES: Final = 65_536  # EXIF behind the pixels of a PNG is the last but one chunk, and rarely larger than this


class DecodeCost(msgspec.Struct, frozen=True):
    """What a picture will take."""

    format: str
    """One of the keys of `models.preprocess.PIXEL_LIMITS`."""
    num_bytes: int
    """Most memory at any time on the way from its bytes to the network input."""


def decode_cost(data: bytes, spec: InputSpec) -> DecodeCost:
    """Estimates the memory of `picture_to_input` for the same picture; decodes no pixel.

    Args:
        data: The bytes of a picture file.
        spec: What the network expects.

    Returns:
        At least the peak of an honest file, and about 1.5 times as much at most.

    Raises:
        PictureError: As `models.preprocess.read_picture`, for what the header tells.
    """
    with open_picture(data) as (name, opened):
        coefficients = _coefficient_bytes(opened, data) if isinstance(opened, JpegImagePlugin.JpegImageFile) else 0.0
        turned = _is_turned(name, opened, data)
        if name == "JPEG":
            reduce_scale(opened, needed_side_px(spec))
        num_pixels = opened.width * opened.height
        stored = _MODE_WEIGHTS.get(opened.mode, _RGB_WEIGHT)
        is_rgb = opened.mode == "RGB" and "transparency" not in opened.info
        converted = stored + (0 if is_rgb else _RGB_WEIGHT)
        decoding = _frame_weight(name, opened) or stored
    peak = max(num_pixels * decoding + coefficients, num_pixels * converted, num_pixels * 2 * _RGB_WEIGHT * turned)
    files = len(data) * _FILE_COPIES.get(name, 2)
    return DecodeCost(name, int(peak) + files + spec.width * spec.height * _INPUT_WEIGHT + _LEAST_BYTES)


def _frame_weight(name: str, opened: Image.Image) -> float:
    alpha = _ALPHA_WEIGHTS.get(name, 0.0) if opened.mode.endswith("A") else 0.0
    return _FRAME_WEIGHTS.get(name, 0.0) + alpha


def _coefficient_bytes(opened: JpegImagePlugin.JpegImageFile, data: bytes) -> float:
    """Memory for the coefficients of a whole JPEG, which only one in a single scan goes without."""
    if "progressive" not in opened.info and _num_in_first_scan(data) == opened.layers:
        return 0.0
    sampling = [(horizontal, vertical) for _, horizontal, vertical, _ in opened.layer]
    finest = max((h for h, _ in sampling), default=1) * max((v for _, v in sampling), default=1)
    return sum(h * v for h, v in sampling) / max(1, finest) * opened.width * opened.height * _COEFFICIENT_BYTES


def _num_in_first_scan(data: bytes) -> int | None:
    """Number of components in a JPEG's first scan (ITU-T T.81, B.1 and B.2.3); `None` where it is not found."""
    at = 2
    while data[at : at + 1] == b"\xff" and at + 4 < len(data):
        if data[at + 1] == _START_OF_SCAN:
            return data[at + 4]
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


def _is_turned(name: str, opened: Image.Image, data: bytes) -> bool:
    """Whether the picture is turned upright, for which it stands in memory twice."""
    if name == "PNG" and "exif" not in opened.info:  # Pillow would decode it to find its EXIF
        return b"eXIf" in data[-_TAIL_BYTES:]
    return exif_orientation(opened) != 1
