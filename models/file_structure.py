"""Looks at a picture file before a decoder does: tells its format, limits its parts, refuses a HEIC that is cut off.

Decoders spend time and memory on each marker, chunk, box and scan, and a file of a few kilobytes can hold many of them:
a JPEG of 149 kB with 3,000 scans took more than five seconds. The limits are far above what cameras and editors write.
"""

import itertools
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from models.errors import UnreadableImage, UnsupportedFormat

SUPPORTED_FORMATS: Final = "JPEG, PNG, WebP, HEIC or AVIF"
HEIF_SEQUENCE: Final = "a HEIF sequence, as of bursts and Live Photos"
_HEIF_BRANDS: Final = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"})
HEIF_SEQUENCES: Final = frozenset({b"hevc", b"hevx", b"msf1"})
_AVIF_BRANDS: Final = frozenset({b"avif", b"avis"})
# First bytes -> what people send for a picture.
_OTHER_FORMATS: Final = {
    rb"II[*+]\0|MM\0[*+]|IIR[OS]|IIU\0|MMOR|FUJIFILM|\0MRM|FOVb|....ftypcrx ": "a TIFF or camera raw file",
    rb"....ftyp(hev[cmsx]|msf1)": HEIF_SEQUENCE,
    rb"....(ftyp|moov|mdat|wide)|\x1aE\xdf\xa3|RIFF....AVI ": "a video",
    rb"\xff\x0a|....JXL ": "a JPEG XL picture",
    rb"....jP  |\xff\x4f\xff\x51": "a JPEG 2000 picture",
    rb"BM....\0\0\0\0": "a BMP picture",
    rb"GIF8": "a GIF picture",
    rb"8BP[SB]": "a Photoshop file",
    rb"%PDF": "a PDF document",
    rb"\W{,4}((<\?xml|<!--|<!DOCTYPE svg).{,2000})?<svg": "an SVG drawing",
}

# Markers of a JPEG, or chunks of a PNG or WebP, frames included. libpng writes a chunk for each 8 kB of a PNG.
MAX_PARTS: Final = 20_000
# libjpeg reads a JPEG with several scans completely, and each scan visits every block. Its encoder makes 10 scans for
# colors, and at most 26.
MAX_SCANS: Final = 60
# Bytes before the first scan of a JPEG that belong to no marker, such as fill bytes. Pillow reads them one by one:
# 15 MB took longer than an answer may.
MAX_FILLER_BYTES: Final = 100_000
# Boxes of HEIF and AVIF that describe the pictures; the descriptions of phones take 4 kB.
MAX_DESCRIPTION_BYTES: Final = 500_000

_JPEG_MARKER: Final = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_END_OF_IMAGE = 0xD9
_START_OF_SCAN = 0xDA
_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0 to SOF15, without DHT, JPG and DAC
_WITHOUT_LENGTH: Final = frozenset({*range(0x01, 0xC0), 0xD8})


def sniff_format(data: bytes) -> str:
    """Detects JPEG, PNG, WEBP, HEIF or AVIF from the leading bytes; an UnsupportedFormat if it is another format."""
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if data[4:8] == b"ftyp":  # ISO/IEC 14496-12, 4.3: a major and compatible brands
        size = min(int.from_bytes(data[:4]), 256)
        brands = {data[8:12], *(data[at : at + 4] for at in range(16, size, 4))}
        if brands & _AVIF_BRANDS:
            return "AVIF"
        if brands & _HEIF_BRANDS:
            return "HEIF"
    problem = "the file is not a picture in an accepted format"
    for start, words in _OTHER_FORMATS.items():
        if re.match(start, data[:3_000], re.DOTALL):
            raise UnsupportedFormat(
                problem, value=words, limit=SUPPORTED_FORMATS, remedy="save it as JPEG and send that"
            )
    is_text = all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in data[:32])
    value = "text" if is_text else f"bytes starting {data[:8].hex(' ')}"
    raise UnsupportedFormat(
        problem, value=value if data else "nothing", limit=SUPPORTED_FORMATS, remedy="send a photograph in one of these"
    )


def check_structure(name: str, data: bytes) -> None:
    """Checks the number of parts and scans of a file of the format `name`, and that its boxes end inside of it.

    Raises:
        UnreadableImage: A limit is exceeded, or the end of the file is missing.
    """
    if name == "JPEG":
        jpeg_scans(data)
    elif name in {"HEIF", "AVIF"}:
        _check_boxes(name, data)
    else:
        for number, _ in enumerate(_png_chunks(data) if name == "PNG" else _webp_chunks(data), 1):
            _require(name, "chunks", number, MAX_PARTS)


class JpegScans(NamedTuple):
    """The scans of a JPEG that libjpeg decodes."""

    number: int
    keeps_coefficients: bool
    """Whether libjpeg keeps the coefficients of the whole picture for them: not if the first scan of a picture that is
    not progressive has all components; it is then the only one."""
    are_complete: bool = False
    """Whether the last bits of each coefficient of a progressive JPEG have a scan, be its end there or not."""


def jpeg_scans(data: bytes) -> JpegScans:
    """Reads the headers of the scans of a JPEG (ITU-T T.81, annex B).

    Raises:
        UnreadableImage: There are more than `MAX_PARTS` markers, `MAX_SCANS` scans or `MAX_FILLER_BYTES` of filler.
    """
    at = 2
    num_markers = 0
    num_scans = 0
    components = b""
    finished: dict[int, int] = {}  # component -> a bit for each of its coefficients
    is_progressive = False
    num_filler = 0
    while True:
        found = _JPEG_MARKER.search(data, at)
        if num_scans == 0:
            num_filler += (found.start() if found else len(data)) - at
            _require("JPEG", "bytes between markers", num_filler, MAX_FILLER_BYTES)
        if found is None:
            break
        code = data[found.end() - 1]
        at = found.end()
        num_markers += 1
        _require("JPEG", "markers", num_markers, MAX_PARTS)
        if code == _END_OF_IMAGE:
            break
        if code in _WITHOUT_LENGTH:
            continue
        if code in _FRAMES:
            header = data[at : at + int.from_bytes(data[at : at + 2])]
            components = header[8::3]
            is_progressive = code in _PROGRESSIVE
        if code == _START_OF_SCAN:
            num_scans += 1
            _require("JPEG", "scans", num_scans, MAX_SCANS)
            header = data[at : at + int.from_bytes(data[at : at + 2])]
            if not is_progressive and header[2:3] == bytes([len(components)]):
                return JpegScans(1, keeps_coefficients=False)
            for each, coefficients in _last_bits(header):
                finished[each] = finished.get(each, 0) | coefficients
        at += int.from_bytes(data[at : at + 2])
    are_complete = is_progressive and all(finished.get(each) == 2**64 - 1 for each in components)
    return JpegScans(num_scans, num_scans > 0, are_complete)


def _last_bits(scan: bytes) -> Iterator[tuple[int, int]]:
    """Yields each component of which a scan has the last bits, and a bit for each coefficient, by its header."""
    if len(scan) > 6 and scan[-1] & 15 == 0:
        coefficients = (2 << scan[-2]) - (1 << scan[-3])
        for component in scan[3:-3:2]:
            yield component, coefficients


def webp_canvas(data: bytes) -> tuple[int, int, bool] | None:
    """Reads the header of a WebP without its decoder, which allocates 8 bytes a pixel when it opens a file.

    Returns:
        Width and height, px, and whether there is an alpha channel, as the first chunk states them (RFC 9649, 2.5 to
        2.7; RFC 6386, 9.1). None if it is not of a kind that holds a size; the decoder then refuses the file.
    """
    kind = data[12:16]
    chunk = data[20:30]
    if len(chunk) < 10:
        return None
    if kind == b"VP8X":  # flags and reserved bytes, then each side minus 1 in 24 bits
        width = int.from_bytes(chunk[4:7], "little") + 1
        height = int.from_bytes(chunk[7:10], "little") + 1
        return width, height, bool(chunk[0] & 0x10)
    if kind == b"VP8L" and chunk[0] == 0x2F:  # signature, then each side minus 1 in 14 bits, then alpha
        bits = int.from_bytes(chunk[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, bool(bits >> 28 & 1)
    if kind == b"VP8 " and chunk[3:6] == b"\x9d\x01\x2a":  # frame tag, start code, then sides of 14 bits
        return int.from_bytes(chunk[6:8], "little") & 0x3FFF, int.from_bytes(chunk[8:10], "little") & 0x3FFF, False
    return None


def _check_boxes(name: str, data: bytes) -> None:
    num_bytes = 0
    places = []
    for number, (kind, start, end) in enumerate(_boxes(data, 0, len(data)), 1):
        _require(name, "boxes", number, MAX_PARTS)
        if kind in {b"meta", b"moov"}:  # descriptions
            # An idat box holds pixels. Four bytes of version and flags precede the boxes in a meta box.
            inner = {box: at for box, *at in _boxes(data, start + 4, end) if box in {b"idat", b"iloc"}}
            pixels_at, pixels_end = inner.get(b"idat", (0, 0))
            num_bytes += end - start - (pixels_end - pixels_at)
            places += [(*inner[b"iloc"], pixels_at)] if b"iloc" in inner else []
    _require(name, "bytes of description", num_bytes, MAX_DESCRIPTION_BYTES)
    for number, end in enumerate(itertools.chain.from_iterable(_extent_ends(data, *each) for each in places), 1):
        _require(name, "extents", number, MAX_PARTS)
        if end > len(data):  # libheif paints the tiles that are missing in one color
            raise UnreadableImage.damaged(
                f"the {name} picture does not decode", f"{len(data):,} of at least {end:,} bytes"
            )


def _png_chunks(data: bytes) -> Iterator[bytes]:
    """Yields the kind of each chunk of a PNG up to its end (W3C PNG, 5.3)."""
    at = 8
    while at + 8 <= len(data):
        kind = data[at + 4 : at + 8]
        at += int.from_bytes(data[at : at + 4]) + 12
        yield kind
        if kind == b"IEND":
            return


def _webp_chunks(data: bytes) -> Iterator[bytes]:
    """Yields the kind of each chunk of a WebP (RFC 9649, 2.3)."""
    at = 12
    while at + 8 <= len(data):
        yield data[at : at + 4]
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8 + size + size % 2


def _boxes(data: bytes, at: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yields the boxes of an ISO base media file: kind, start and end of the content (ISO/IEC 14496-12, 4.2)."""
    while at + 8 <= end:
        size = int.from_bytes(data[at : at + 4])
        kind = data[at + 4 : at + 8]
        start = at + 8
        if size == 1:  # the size follows in 64 bits
            size = int.from_bytes(data[start : start + 8])
            start = at + 16
        at = end if size == 0 else min(end, at + max(size, start - at))
        yield kind, start, max(start, at)


def _extent_ends(data: bytes, at: int, end: int, pixels_at: int) -> Iterator[int]:
    """Yields where each extent in the iloc box from `at` to `end` ends in the file, 0 for one inside of another.

    The layout is that of 14496-12, 8.11.3. `pixels_at` is where the content of the idat box starts.
    """

    def number(num_bytes: int) -> int:
        nonlocal at
        at += num_bytes
        return int.from_bytes(data[at - num_bytes : at])

    version = number(4) >> 24
    sizes = number(2)
    offset_bytes, length_bytes, base_bytes, index_bytes = (sizes >> shift & 15 for shift in (12, 8, 4, 0))
    id_bytes = 4 if version == 2 else 2
    for _ in range(number(id_bytes)):
        if at >= end:
            return
        number(id_bytes)
        method = number(2) & 15 if version else 0
        number(2)  # data_reference_index: 0 for this file
        base = number(base_bytes) + (pixels_at if method == 1 else 0)
        for _ in range(number(2)):
            number(index_bytes if version else 0)
            extent_end = base + number(offset_bytes) + number(length_bytes)
            yield extent_end if method < 2 else 0


def _require(name: str, parts: str, number: int, limit: int) -> None:
    if number > limit:
        raise UnreadableImage(
            f"the {name} picture has too many {parts}",
            limit=f"at most {limit:,} {parts}",
            remedy="open it in a picture editor and save it again",
        )
