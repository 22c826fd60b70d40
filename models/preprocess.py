"""Picture bytes -> upright RGB -> network input: the one preprocessing for evaluation and serving.

Validation in training, `evaluate.py` and the service all call it on the original bytes, so that scores are comparable.
It needs only NumPy and Pillow. The format is read from the bytes, never from a file name or an HTTP header.

Shapes: `hw3` is (height, width, RGB) uint8; `chw` is (RGB, height, width) float32, normalized.
"""

import functools
import io
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pillow_heif
from PIL import Image, ImageCms, PngImagePlugin

from models.arrays import Singles
from models.errors import InputError, TooManyPixels, UnreadableImage
from models.exif import Capture, exif_orientation, read_capture
from models.file_structure import HEIF_SEQUENCE, HEIF_SEQUENCES, check_structure, jpeg_scans, sniff_format, webp_canvas

pillow_heif.register_heif_opener()
# Disables Pillow's own limit: PIXEL_LIMITS, one for each format, are checked as soon as the header is read.
Image.MAX_IMAGE_PIXELS = None
# A PNG of 60 kB can hold 60 MB of compressed texts, which Pillow reads with the header.
_MAX_TEXT_BYTES: Final = 4_000_000

# Most pixels by format: those of the sensors of phones and cameras. JPEG decodes at reduced scale and in strips. The
# others need several bytes for every pixel at once: a WebP of 70 kB took 401 MB (canvas.webp in
# docs/generated/results.md).
PIXEL_LIMITS: Final[dict[str, int]] = {
    "JPEG": 210_000_000,
    "PNG": 64_000_000,
    "HEIF": 64_000_000,
    "AVIF": 51_000_000,
    "WEBP": 25_000_000,
}
# The longest side of a JPEG in libjpeg. Pillow takes 8 bytes for each row of a picture, however short the row.
MAX_SIDE_PX: Final = 65_500
# EXIF orientation (CIPA DC-008, tag 274) -> operation that makes the picture upright; 5 and more swap its sides.
_UPRIGHT: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_COLOR_MODES: Final = frozenset({"RGB", "RGBA", "P", "PA"})
_RESAMPLING: Final = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
# Of a JPEG that is cut off, so many rows may be missing: a row of blocks, and two rows for the colors between blocks.
_BLOCK_ROWS: Final = 18
_END_OF_JPEG: Final = b"\xff\xd9"
_START_OF_SCAN: Final = b"\xff\xda"
_TAIL_BYTES: Final = 64  # most JPEG files end within them
_DECODER_AHEAD: Final = 8  # bytes that libjpeg reads ahead of the last block
# A profile of three primaries takes 0.5 to 4 kB, with long curves 30 kB. Others are tables, and stay as they are.
_MAX_PROFILE_BYTES: Final = 65_536
# A profile that changes no color by more levels of 255 is sRGB, written by another program.
_SAME_LEVELS: Final = 3
# A JPEG decoded at reduced scale keeps at least this many times the side that the network needs. With 1.85, not 2, a
# phone's picture of 12 megapixels in 4:3 is decoded at 1/4 for a network of 380 px (1.88 times), which is
# much faster. Inputs and scores change hardly more than with 2 (benchmarks/LOG.md).
_DRAFT_MARGIN: Final = 1.85
# 1 MB, since Pillow takes four bytes for a pixel. This is small compared with a picture, and large enough that tiling
# costs no measurable time.
_TILE_PIXELS: Final = 2**18

SidePx = Annotated[int, msgspec.Meta(ge=8, le=4096)]
UnitInterval = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
Channels = tuple[float, float, float]
Positive = Annotated[float, msgspec.Meta(gt=0.0)]


class InputSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a picture becomes the network's input: the entry `input` of `bundle.json`."""

    height: SidePx
    """Height of the network input, px."""
    width: SidePx
    """Width of the network input, px."""
    train_px: SidePx
    """Side of the square pictures in the last epoch of training, px; for information only."""
    crop_fraction: UnitInterval = 1.0
    """Side of the crop, as a share of the largest centered crop with the proportions of the input."""
    resize: Literal["center_crop"] = "center_crop"
    """How a picture is fitted to the input: crop the center, then resize the crop."""
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    """Resampling filter (with antialiasing)."""
    mean: Channels = (0.485, 0.456, 0.406)
    """Subtracted from RGB in [0, 1]; ImageNet's means, which the pretrained weights expect."""
    std: tuple[Positive, Positive, Positive] = (0.229, 0.224, 0.225)
    """Divisor after the subtraction; ImageNet's standard deviations."""


class Picture(msgspec.Struct, frozen=True):
    """A decoded, upright picture."""

    image: Image.Image
    """RGB; its size may be reduced by the decoder."""
    width: int
    """Width of the upright picture at full scale, px."""
    height: int
    """Height of the upright picture at full scale, px."""
    format: str
    """One of the keys of `PIXEL_LIMITS`."""
    capture: Capture
    is_cut_off: bool = False
    """Whether the end of the file is missing, but hardly a row."""


class _PngChunks(PngImagePlugin.PngStream):
    """The chunks of a PNG. As browsers do, it skips ancillary ones (W3C PNG, 5.4) that are damaged, and long texts."""

    def call(self, cid: bytes, pos: int, length: int) -> bytes:
        """Reads the content of a chunk; what is skipped counts as a text of the largest size."""
        if not _is_ancillary(cid):
            return super().call(cid, pos, length)
        if self.text_memory <= _MAX_TEXT_BYTES or not cid.endswith(b"Xt"):
            try:
                return super().call(cid, pos, length)
            except (AttributeError, EOFError, MemoryError):  # with the first two, Pillow's reader ends a step
                raise
            except Exception:
                self.text_memory += PngImagePlugin.MAX_TEXT_CHUNK
        assert self.fp is not None
        self.fp.seek(pos + length)
        return b""

    def crc(self, cid: bytes, data: bytes) -> None:
        """Compares the checksum of a chunk that the pixels need."""
        if _is_ancillary(cid):
            self.crc_skip(cid, data)
        else:
            super().crc(cid, data)


PngImagePlugin.PngStream = _PngChunks  # type: ignore[misc]


def _is_ancillary(chunk: bytes) -> bool:
    return bool(chunk[0] & 0x20)


def checked_format(data: bytes, limits: Mapping[str, int] = PIXEL_LIMITS) -> str:
    """Detects the format, and checks what can be checked without the decoder; a PictureError if it is refused."""
    name = sniff_format(data)
    check_structure(name, data)
    if name == "WEBP" and (canvas := webp_canvas(data)):
        _require_pixels(name, *canvas[:2], limits[name])
    return name


@contextmanager
def open_picture(data: bytes, limits: Mapping[str, int] = PIXEL_LIMITS) -> Iterator[tuple[str, Image.Image]]:
    """Opens a picture and reads its header; decoder errors inside of the `with` block become `UnreadableImage`.

    Yields the format and the picture, not decoded yet. Raises a PictureError as `read_picture` does.
    """
    name = checked_format(data, limits)
    try:
        with _open(name, data) as opened:
            _require_pixels(name, *opened.size, limits[name])
            yield name, opened
    except (InputError, MemoryError):
        raise
    except Exception as error:  # Pillow's plugins raise SyntaxError, ValueError, struct.error and others
        if "bytes failed" in str(error):  # libheif: "Allocating 48771087 bytes failed"
            raise MemoryError from error
        problem = f"the {name} picture does not decode"
        if data[8:12] in HEIF_SEQUENCES:
            raise UnreadableImage(problem, value=HEIF_SEQUENCE, remedy="save a picture of it as JPEG") from error
        # Without Pillow's message, which has addresses in memory and bytes as Python writes them.
        raise UnreadableImage.damaged(problem) from error


def _open(name: str, data: bytes) -> Image.Image:
    try:
        return Image.open(io.BytesIO(data), formats=[name])
    except MemoryError:
        raise
    except Exception:
        if name != "AVIF":
            raise
    # Of this format alone Pillow reads the EXIF with the header. The file may be intact but for it.
    return Image.open(io.BytesIO(data.replace(b"Exif", b"free")), formats=[name])


def read_picture(data: bytes, min_side_px: int | None = None, limits: Mapping[str, int] = PIXEL_LIMITS) -> Picture:
    """Decodes a picture file to upright RGB.

    Args:
        data: The file. A JPEG may lack its end: see `Picture.is_cut_off`.
        min_side_px: A JPEG is decoded at 1/2, 1/4 or 1/8 as long as its short side keeps so many px; None decodes it
            at full scale.
        limits: Most pixels by format.

    Returns:
        The picture in 8-bit RGB, with EXIF orientation applied and transparency blended with white. Of an animation,
        only the first frame is read. The colors are those of the file: `in_srgb` converts them once they are fewer.

    Raises:
        UnsupportedFormat: The bytes are not in an accepted format.
        TooManyPixels: The picture is larger than the limit of its format.
        UnreadableImage: The format is accepted, but the bytes do not decode.
    """
    try:
        picture = _decoded(data, min_side_px, limits)
        if picture.format != "JPEG" or _END_OF_JPEG in data[-_TAIL_BYTES:]:  # else the whole file is searched
            return picture
        return msgspec.structs.replace(picture, is_cut_off=data.rfind(_END_OF_JPEG) < data.rfind(_START_OF_SCAN))
    except UnreadableImage:
        if not _lacks_only_its_end(data, min_side_px, limits):
            raise
    return msgspec.structs.replace(_decoded(data + _END_OF_JPEG, min_side_px, limits), is_cut_off=True)


def _lacks_only_its_end(data: bytes, min_side_px: int | None, limits: Mapping[str, int]) -> bool:
    """Whether a file that does not decode is a JPEG without its last bytes.

    Those may be the last row of blocks, if it is at most a twelfth of the picture. Of a progressive JPEG they are the
    end of the last scan, which makes rows finer that are there.
    """
    if sniff_format(data) != "JPEG":
        return False
    scans = jpeg_scans(data)
    if scans.keeps_coefficients:
        return scans.are_complete
    with suppress(UnreadableImage), open_picture(data + bytes(_DECODER_AHEAD), limits) as (_, opened):
        height = opened.height
        if min_side_px is not None:
            reduce_scale(opened, min_side_px)
        try:
            opened.load()
        except OSError:  # what was not decoded is black
            _, _, _, bottom = opened.im.getbbox() or (0, 0, 0, 0)
            return (1 - bottom / opened.height) * height <= min(_BLOCK_ROWS, height / 12)
        return True
    return False


def _decoded(data: bytes, min_side_px: int | None, limits: Mapping[str, int]) -> Picture:
    with open_picture(data, limits) as (name, opened):
        width, height = opened.size
        if min_side_px is not None and name == "JPEG":
            reduce_scale(opened, min_side_px)
        opened.load()  # before EXIF, which may follow the pixels: `exif_orientation` hides errors in the pixels
        orientation = exif_orientation(opened)
        capture = read_capture(opened)
        vars(opened).pop("_decoder", None)  # frees the decoder's copy: 8 bytes a pixel for WebP, 3 for AVIF
        image = to_rgb(opened)
        image.info = profile_info(opened)
    del opened  # frees the original before the picture is transposed
    # Not ImageOps.exif_transpose: it also rewrites the EXIF, and fails on intact pictures that have one invalid tag.
    upright = image.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else image
    return Picture(upright, *_upright_size(width, height, orientation), name, capture)


def upright_size(data: bytes) -> tuple[int, int]:
    """Returns the width and height of the upright picture, px, from its header alone; errors as in `read_picture`.

    A PNG without EXIF before its pixels is read to its end, where the EXIF may be.
    """
    with open_picture(data) as (_, opened):
        return _upright_size(*opened.size, exif_orientation(opened))


def to_network_input(image: Image.Image, spec: InputSpec) -> Singles:
    """Crops, resizes and normalizes an upright RGB picture of any size.

    Crop and resize are one resampling of the original pixels; the crop is not rounded to whole pixels.

    Returns:
        `chw`, float32, shape (3, spec.height, spec.width), C-contiguous.
    """
    return normalized(np.array(cropped_and_resized(image, spec)), spec)


def normalized(pixels_HW3: npt.NDArray[np.uint8], spec: InputSpec) -> Singles:
    """Returns the network input, shape (3, height, width), of 8-bit pixels of its size."""
    chw = np.ascontiguousarray(pixels_HW3.transpose(2, 0, 1)).astype(np.float32)  # bytes move faster than floats
    mean, std = np.array((spec.mean, spec.std), dtype=np.float32)[..., None, None]
    chw *= np.float32(1 / 255) / std  # in place, as allocation costs more than the arithmetic
    chw -= mean / std
    return chw


def cropped_and_resized(image: Image.Image, spec: InputSpec) -> Image.Image:
    """Returns the pixels of the network input before they are normalized, spec.width by spec.height, in sRGB."""
    box = center_box(image.width, image.height, spec)
    return in_srgb(image.resize((spec.width, spec.height), _RESAMPLING[spec.interpolation], box=box))


def profile_info(opened: Image.Image) -> dict[str | tuple[int, int], Any]:
    """Returns what `Image.info` of a picture has of its color profile; nothing if it is gray or CMYK."""
    profile = opened.info.get("icc_profile")
    return {"icc_profile": profile} if profile and opened.mode in _COLOR_MODES else {}


def in_srgb(image: Image.Image) -> Image.Image:
    """Converts an RGB picture that has a color profile of three primaries to sRGB; returns any other one as it is."""
    profile = image.info.get("icc_profile", b"")
    transform = _transform_to_srgb(profile) if 0 < len(profile) <= _MAX_PROFILE_BYTES else None
    return transform.apply(image) if transform else image


@functools.lru_cache(maxsize=16)
def _transform_to_srgb(profile: bytes) -> ImageCms.ImageCmsTransform | None:
    """Returns the conversion from a profile (ICC.1:2022); None if it is sRGB, damaged, or not of three primaries."""
    try:
        opened = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if opened.profile.xcolor_space != "RGB " or not opened.profile.is_matrix_shaper:
            return None
        transform = ImageCms.buildTransform(
            opened, ImageCms.createProfile("sRGB"), "RGB", "RGB", ImageCms.Intent.RELATIVE_COLORIMETRIC
        )
    except (ImageCms.PyCMSError, OSError, ValueError):
        return None
    levels = np.arange(0, 256, 17, dtype=np.uint8)
    colors = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(64, 64, 3)
    changes = np.abs(np.subtract(np.asarray(transform.apply(Image.fromarray(colors))), colors, dtype=np.int16))
    return transform if changes.max() > _SAME_LEVELS else None


def picture_to_input(data: bytes, spec: InputSpec) -> tuple[Singles, Picture]:
    """Returns the network input of a picture file and the picture; a large JPEG is decoded at reduced scale.

    Raises:
        PictureError: As in `read_picture`.
    """
    picture = read_picture(data, min_side_px=needed_side_px(spec))
    return to_network_input(picture.image, spec), picture


def needed_side_px(spec: InputSpec) -> int:
    """Returns the shortest side, px, to which `picture_to_input` may reduce a picture while it decodes it."""
    return math.ceil(_DRAFT_MARGIN * max(spec.height, spec.width) / spec.crop_fraction)


def reduce_scale(opened: Image.Image, min_side_px: int) -> None:
    """Sets a JPEG to decode at the smallest of 1/1, 1/2, 1/4 and 1/8 at which its short side has `min_side_px`."""
    short = min(opened.size)
    for denominator in (8, 4, 2):
        if short // denominator >= min_side_px:
            opened.draft(None, (opened.width // denominator, opened.height // denominator))
            return


def center_box(width: int, height: int, spec: InputSpec) -> tuple[float, float, float, float]:
    """Returns the crop (left, upper, right, lower) of `to_network_input`, in fractional px of the picture."""
    scale = spec.crop_fraction * min(width / spec.width, height / spec.height)
    crop_width = spec.width * scale
    crop_height = spec.height * scale
    # Rounding errors can move an edge 1e-13 px out of the picture, which Pillow refuses.
    left = max((width - crop_width) / 2, 0.0)
    upper = max((height - crop_height) / 2, 0.0)
    return left, upper, min(left + crop_width, float(width)), min(upper + crop_height, float(height))


def _require_pixels(name: str, width: int, height: int, most: int) -> None:
    if width * height > most:
        raise TooManyPixels(
            f"the {name} picture has too many pixels",
            value=f"{width} x {height} = {width * height / 1e6:.1f} megapixels",
            limit=f"at most {most // 1_000_000} megapixels",
            remedy="send a smaller version",
        )
    if max(width, height) > MAX_SIDE_PX:
        raise TooManyPixels(
            f"the {name} picture is too long",
            value=f"{width} x {height} pixels",
            limit=f"sides of at most {MAX_SIDE_PX:,} pixels",
            remedy="send a smaller version",
        )


def _upright_size(width: int, height: int, orientation: int) -> tuple[int, int]:
    return (height, width) if orientation >= 5 else (width, height)


def to_rgb(image: Image.Image) -> Image.Image:
    """Converts a decoded picture of any mode to 8-bit RGB; transparent pixels are blended with white.

    It works tile by tile, since blending needs three temporary copies, together 24 bytes a pixel. A tile has as many
    whole rows as fit into it, or a part of one very long row. RGB without transparency is returned unchanged.
    """
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    rgb = Image.new("RGB", image.size)
    (width, height) = image.size
    num_rows = max(1, _TILE_PIXELS // width)
    num_columns = _TILE_PIXELS // num_rows
    for top in range(0, height, num_rows):
        for left in range(0, width, num_columns):
            box = left, top, min(left + num_columns, width), min(top + num_rows, height)
            rgb.paste(_tile_to_rgb(image.crop(box)), box)
    return rgb


def _tile_to_rgb(tile: Image.Image) -> Image.Image:
    if tile.mode in {"I;16", "I;16L", "I;16B", "I;16N", "I"}:
        grey = np.asarray(tile).astype(np.int64)  # mode I also holds 16-bit PNG samples, hence the same scale
        grey[grey == tile.info.get("transparency")] = 65535
        return Image.fromarray((np.clip(grey, 0, 65535) // 257).astype(np.uint8)).convert("RGB")
    if tile.has_transparency_data:
        rgba = tile.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    return tile.convert("RGB")
