"""Picture file -> a crop of the upright picture, resized to the training size. Used in training only.

The crop is chosen before decoding. So a JPEG is decoded at the smallest of the scales 1/1, 1/2, 1/4 and 1/8 at which
the crop is large enough, in its stored orientation, and only the resized crop is turned upright. Files that simplejpeg
does not decode as Pillow would (other formats, CMYK, damaged files) are decoded by `models/preprocess.py`, which also
raises the error for bad ones.
"""

import math
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import simplejpeg
import torch
from PIL import Image
from torch import Tensor

from models.exif import exif_orientation
from models.preprocess import PIXEL_LIMITS, in_srgb, open_picture, profile_info, read_picture, upright_size

Info = dict[str | tuple[int, int], Any]
"""As `Image.info`."""
_DIRECT_COLORS: Final = frozenset({"YCbCr", "Gray", "RGB"})
# Pillow finds an orientation or a color profile only after one of these; a file without them is not opened for it.
_MARKS: Final = (b"Exif\0\0", b"tiff:Orientation", b"ICC_PROFILE\0")


class Crop(NamedTuple):
    """A rectangle of the upright picture at full scale, in whole px."""

    left: int
    top: int
    width: int
    height: int


class _Turn(NamedTuple):
    """How a stored picture is made upright: first rows and columns are swapped, then axes are flipped."""

    swap: bool = False
    flip_x: bool = False
    flip_y: bool = False


# By EXIF orientation (CIPA DC-008, tag 274).
_TURNS: Final = {
    2: _Turn(flip_x=True),
    3: _Turn(flip_x=True, flip_y=True),
    4: _Turn(flip_y=True),
    5: _Turn(swap=True),
    6: _Turn(swap=True, flip_x=True),
    7: _Turn(swap=True, flip_x=True, flip_y=True),
    8: _Turn(swap=True, flip_y=True),
}


class CropReader:
    """Reads the header of a picture file at once, and crops of it on demand.

    Raises:
        PictureError: The format is not accepted, the header is damaged, or the picture has too many pixels.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._stored_size = _direct_size(data)
        self._turn, self._info = _turn(data) if self._stored_size else (_Turn(), {})
        width, height = self._stored_size or upright_size(data)
        self.width, self.height = (height, width) if self._turn.swap else (width, height)

    def read(self, crop: Crop, side_px: int) -> Tensor:
        """Decodes a crop and resizes it to a square in sRGB; the aspect ratio is not kept.

        At a reduced scale the edges of the crop are rounded to pixels of that scale.

        Returns shape (side_px, side_px, 3), uint8, contiguous.

        Raises:
            PictureError: The bytes do not decode.
        """
        short = min(crop.width, crop.height)
        scale = next((scale for scale in (8, 4, 2) if short // scale >= side_px), 1)
        stored_HW3 = self._decode(scale)
        if stored_HW3 is None:
            image = read_picture(self._data, math.ceil(min(self.width, self.height) / scale)).image
            return _in_srgb(_resize(np.asarray(image), crop, self.width / image.width, side_px), image.info)
        square_HW3 = _resize(stored_HW3, self._stored(crop), scale, side_px)
        turn = self._turn
        if turn.swap:
            square_HW3 = square_HW3.transpose(0, 1)
        upright_HW3 = square_HW3.flip([axis for axis, flips in ((1, turn.flip_x), (0, turn.flip_y)) if flips])
        return _in_srgb(upright_HW3.contiguous(), self._info)

    def _decode(self, scale: int) -> npt.NDArray[np.uint8] | None:
        """The whole stored picture at 1 / scale, or None if simplejpeg cannot or must not decode it."""
        if self._stored_size is None:
            return None
        width, height = self._stored_size
        # Simple chroma upsampling saves a third of the time and costs an error of half an 8-bit level. The fast DCT
        # would save a twentieth and cost a whole level, so it stays off.
        least = {"min_width": -(-width // scale), "min_height": -(-height // scale)}
        try:
            return np.asarray(simplejpeg.decode_jpeg(self._data, "RGB", fastupsample=True, **least))
        except ValueError:  # damaged, maybe slightly: Pillow decides, as it does in evaluation
            return None

    def _stored(self, crop: Crop) -> Crop:
        """The crop in coordinates of the stored picture."""
        left, top, width, height = crop
        if self._turn.flip_x:
            left = self.width - left - width
        if self._turn.flip_y:
            top = self.height - top - height
        return Crop(top, left, height, width) if self._turn.swap else Crop(left, top, width, height)


def _direct_size(data: bytes) -> tuple[int, int] | None:
    """Stored width and height of a JPEG that simplejpeg decodes as Pillow would; None for any other file."""
    if not data.startswith(b"\xff\xd8\xff"):
        return None
    try:
        height, width, color, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    return (width, height) if color in _DIRECT_COLORS and width * height <= PIXEL_LIMITS["JPEG"] else None


def _turn(data: bytes) -> tuple[_Turn, Info]:
    """The turn that the EXIF orientation names, and the color profile."""
    if not any(mark in data for mark in _MARKS):
        return _Turn(), {}
    with open_picture(data) as (_, opened):
        return _TURNS.get(exif_orientation(opened), _Turn()), profile_info(opened)


def _in_srgb(square_HW3: Tensor, info: Info) -> Tensor:
    """Converts pixels as `models.preprocess.in_srgb` does, if there is a profile."""
    if not info:
        return square_HW3
    image = Image.fromarray(square_HW3.numpy())
    image.info = info
    return torch.from_numpy(np.array(in_srgb(image)))


def _resize(pixels_HW3: npt.NDArray[np.uint8], crop: Crop, scale: float, side_px: int) -> Tensor:
    """Cuts out a crop, given in px of the full scale, and resizes it to a square: bicubic, antialiased."""
    left, top, right, bottom = (
        round(edge / scale) for edge in (crop.left, crop.top, crop.left + crop.width, crop.top + crop.height)
    )
    # Channels last, recognizable by the strides of all four axes: PyTorch's kernel for this memory format takes half
    # the time, and its result has the same format.
    cut_1HW3 = torch.from_numpy(pixels_HW3[top:bottom, left:right].copy())[None]
    resized_13HW = torch.nn.functional.interpolate(
        cut_1HW3.permute(0, 3, 1, 2), (side_px, side_px), mode="bicubic", antialias=True
    )
    return resized_13HW[0].permute(1, 2, 0).contiguous()
