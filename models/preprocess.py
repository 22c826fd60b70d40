"""Picture bytes -> upright RGB -> network input: the only evaluation preprocessing there is.

Training's validation, `evaluate.py` and the service all call this very file on original bytes, so that a score means
the same everywhere. NumPy and Pillow only. Bytes decide the format, never a file name or a header.

Shapes: `hw3` is (height, width, RGB) uint8; `chw` is (RGB, height, width) float32, normalized.
"""

import io
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pillow_heif
from PIL import ExifTags, Image

from models import webp
from models.colors import to_rgb
from models.errors import InputError, TooManyPixels, UnreadableImage, UnsupportedFormat

pillow_heif.register_heif_opener()
# Our own limits, by format, are checked right after the header is read; Pillow's single one would come first.
Image.MAX_IMAGE_PIXELS = None

# Most megapixels by format. JPEG decodes at reduced scale and in strips; the others need several bytes a pixel at once:
# a 50 MP WebP of 102 kB was measured to take 774 MB.
PIXEL_LIMITS: Final[dict[str, int]] = {
    "JPEG": 100_000_000,
    "PNG": 40_000_000,
    "HEIF": 40_000_000,
    "AVIF": 40_000_000,
    "WEBP": 25_000_000,
}
SUPPORTED_FORMATS: Final = "JPEG, PNG, WebP, HEIC or AVIF"
_HEIF_BRANDS: Final = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"})
_AVIF_BRANDS: Final = frozenset({b"avif", b"avis"})
# What turns a picture of each EXIF orientation upright (CIPA DC-008, tag 274); from 5 on width and height swap.
_UPRIGHT: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS: Final = frozenset({5, 6, 7, 8})
_RESAMPLING: Final = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
# The reduced-scale decode leaves at least this many times the wanted pixels. Not 2: a phone's 12 megapixels in 4:3
# leave 1.88 times at 1/4 for a network of 380 px, and take two thirds of the time. Over the photographs of a test split
# the mean error against a full decode is then 6 % larger than at 2 (docs/experiments.md).
_DRAFT_MARGIN: Final = 1.85

Pixels = Annotated[int, msgspec.Meta(ge=8, le=4096)]
UnitInterval = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
Channels = tuple[float, float, float]
Positive = Annotated[float, msgspec.Meta(gt=0.0)]


class InputSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a picture becomes the network's input; stands in the bundle as `input`."""

    height: Pixels
    """Height served to the network, px."""
    width: Pixels
    """Width served to the network, px."""
    train_px: Pixels
    """Side of the square pictures that training ended with, px; for the record only."""
    crop_fraction: UnitInterval = 1.0
    """Share of the largest centered crop of the right proportions that is kept."""
    resize: Literal["center_crop"] = "center_crop"
    """Rule that fits a picture to the input: crop the center, then resize the crop."""
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    """Resampling filter (with antialiasing)."""
    mean: Channels = (0.485, 0.456, 0.406)
    """Subtracted from RGB in [0, 1]; ImageNet's means, as the pretrained weights expect."""
    std: tuple[Positive, Positive, Positive] = (0.229, 0.224, 0.225)
    """Divides after the subtraction; ImageNet's standard deviations."""


class Picture(msgspec.Struct, frozen=True):
    """A decoded picture, upright."""

    image: Image.Image
    """RGB; may have been decoded at reduced scale."""
    width: int
    """Width of the upright original, px."""
    height: int
    """Height of the upright original, px."""
    format: str
    """One of the keys of `PIXEL_LIMITS`."""


def sniff_format(data: bytes) -> str:
    """Tells the format from the leading bytes.

    Returns:
        One of the keys of `PIXEL_LIMITS`.

    Raises:
        UnsupportedFormat: The bytes are of no accepted format.
    """
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if data[4:8] == b"ftyp":
        brands = _ftyp_brands(data)
        if brands & _AVIF_BRANDS:
            return "AVIF"
        if brands & _HEIF_BRANDS:
            return "HEIF"
    raise UnsupportedFormat(
        "the bytes are no picture in an accepted format",
        value="nothing" if not data else f"bytes starting {data[:8]!r}",
        limit=SUPPORTED_FORMATS,
        remedy="send the original photograph",
    )


@contextmanager
def open_picture(data: bytes) -> Iterator[tuple[str, Image.Image]]:
    """Reads a picture's header; what decoders raise within the `with` becomes `UnreadableImage`.

    Returns:
        The format and the picture as it is stored, not loaded yet.

    Raises:
        PictureError: As `read_picture`.
    """
    name = sniff_format(data)
    with _readable(name):
        if name == "WEBP" and (canvas := webp.canvas_size(data)):
            _require_pixels(name, *canvas)
        with Image.open(io.BytesIO(data), formats=[name]) as opened:
            _require_pixels(name, *opened.size)
            yield name, opened


def read_picture(data: bytes, min_side_px: int | None = None) -> Picture:
    """Decodes a picture to upright RGB.

    Args:
        data: The bytes of a JPEG, PNG, WebP, HEIC or AVIF file.
        min_side_px: If given, a JPEG may be decoded at 1/2, 1/4 or 1/8 as long as its short side keeps this many px.

    Returns:
        The picture with EXIF orientation applied, alpha laid on white, any color mode turned to 8-bit RGB. Only the
        first frame of an animation is read.

    Raises:
        UnsupportedFormat: The bytes are of no accepted format.
        TooManyPixels: The picture is larger than `PIXEL_LIMITS` allows for its format.
        UnreadableImage: The format is accepted but the bytes do not decode.
    """
    with open_picture(data) as (name, opened):
        width, height = opened.size
        if min_side_px is not None and name == "JPEG":
            reduce_scale(opened, min_side_px)
        opened.load()  # first: EXIF may stand behind the pixels, and `exif_orientation` would forgive their damage
        orientation = exif_orientation(opened)
        vars(opened).pop("_decoder", None)  # holds the picture once more: WebP 8 bytes a pixel, AVIF 3
        image = to_rgb(opened)
    del opened  # or there would be three pictures in memory where two are enough
    # Not ImageOps.exif_transpose: it also rewrites the EXIF and fails on sound pictures with one odd tag.
    upright = image.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else image
    return Picture(upright, *_turned(width, height, orientation), name)


def upright_size(data: bytes) -> tuple[int, int]:
    """Width and height of a picture as it will stand upright, px, from its header alone.

    A PNG without EXIF in front of its pixels is the exception: it is read to its end, where the EXIF may stand.

    Raises:
        UnsupportedFormat: The bytes are of no accepted format.
        TooManyPixels: The picture is larger than `PIXEL_LIMITS` allows for its format.
        UnreadableImage: The header cannot be read.
    """
    with open_picture(data) as (_, opened):
        return _turned(*opened.size, exif_orientation(opened))


def to_network_input(image: Image.Image, spec: InputSpec) -> npt.NDArray[np.float32]:
    """Crops, resizes and normalizes an upright RGB picture.

    Crop and resize are one resampling of the original pixels: nothing is rounded to whole pixels in between.

    Args:
        image: Upright RGB, any size.
        spec: What the network expects.

    Returns:
        `chw`, float32, shape (3, spec.height, spec.width), C-contiguous.
    """
    box = center_box(image.width, image.height, spec)
    resized = image.resize((spec.width, spec.height), _RESAMPLING[spec.interpolation], box=box)
    hw3 = np.array(resized, dtype=np.float32)
    mean, std = np.array(spec.mean, dtype=np.float32), np.array(spec.std, dtype=np.float32)
    np.multiply(hw3, np.float32(1 / 255) / std, out=hw3)  # in place: fresh pages cost more than the arithmetic
    np.subtract(hw3, mean / std, out=hw3)
    return np.ascontiguousarray(hw3.transpose(2, 0, 1))


def picture_to_input(data: bytes, spec: InputSpec) -> tuple[npt.NDArray[np.float32], Picture]:
    """Decodes and preprocesses in one go, decoding no more pixels than the input needs.

    Args:
        data: The bytes of a picture file.
        spec: What the network expects.

    Returns:
        The network input (see `to_network_input`) and the picture it came from.

    Raises:
        PictureError: As `read_picture`.
    """
    picture = read_picture(data, min_side_px=needed_side_px(spec))
    return to_network_input(picture.image, spec), picture


def needed_side_px(spec: InputSpec) -> int:
    """Shortest side, px, at which `picture_to_input` may decode a picture."""
    return math.ceil(_DRAFT_MARGIN * max(spec.height, spec.width) / spec.crop_fraction)


def reduce_scale(opened: Image.Image, min_side_px: int) -> None:
    """Has a JPEG that is not loaded yet decoded at the smallest of 1/1, 1/2, 1/4, 1/8 that keeps its short side."""
    short = min(opened.size)
    for denominator in (8, 4, 2):
        if short // denominator >= min_side_px:
            opened.draft(None, (opened.width // denominator, opened.height // denominator))
            return


def center_box(width: int, height: int, spec: InputSpec) -> tuple[float, float, float, float]:
    """The centered crop (left, upper, right, lower), in fractional source px, that `to_network_input` keeps."""
    scale = spec.crop_fraction * min(width / spec.width, height / spec.height)
    crop_width, crop_height = spec.width * scale, spec.height * scale
    # Rounding may push every edge past the picture by 1e-13 px, which Pillow refuses.
    left, upper = max((width - crop_width) / 2, 0.0), max((height - crop_height) / 2, 0.0)
    return left, upper, min(left + crop_width, float(width)), min(upper + crop_height, float(height))


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Turns whatever a decoder raises for damaged bytes into one error."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:  # Pillow's plugins raise SyntaxError, ValueError, struct.error, ... for damaged files
        raise UnreadableImage(
            f"the {name} picture does not decode",
            # Pillow names the stream it read from by its address in memory, which tells a person nothing.
            value=re.sub(r"<[^<>]* at 0x[0-9a-fA-F]+>", "the bytes", str(error))[:120] or type(error).__name__,
            limit="a complete, undamaged file",
            remedy="send the original photograph again",
        ) from error


def _ftyp_brands(data: bytes) -> set[bytes]:
    """The major and compatible brands of an ISO base media file (ISO/IEC 14496-12, 4.3)."""
    size = min(int.from_bytes(data[:4], "big"), 256)
    return {data[8:12], *(data[at : at + 4] for at in range(16, size, 4))}


def _require_pixels(name: str, width: int, height: int) -> None:
    if width * height > PIXEL_LIMITS[name]:
        raise TooManyPixels(
            f"the {name} picture has too many pixels",
            value=f"{width} x {height} = {width * height / 1e6:.1f} megapixels",
            limit=f"at most {PIXEL_LIMITS[name] // 1_000_000} megapixels",
            remedy="send a smaller version",
        )


def _turned(width: int, height: int, orientation: int) -> tuple[int, int]:
    return (height, width) if orientation in _SIDEWAYS else (width, height)


def exif_orientation(opened: Image.Image) -> int:
    """EXIF orientation, 1 to 8; 1 where the EXIF is damaged, since the pixels may be sound nevertheless."""
    try:
        orientation = opened.getexif().get(ExifTags.Base.Orientation, 1)
    except MemoryError:
        raise
    except Exception:  # as many kinds as the decoders raise
        return 1
    return orientation if orientation in _UPRIGHT else 1
