"""Draws files that make a decoder work or allocate much more than their size suggests."""

import struct
import zlib

from PIL import Image

from tests.models.pictures import encode, exif_with_entries, png, png_chunk, scene


def jpeg_with_comments(num_comments):
    """A JPEG with empty comments before its picture."""
    data = encode(scene(), "JPEG")
    return data[:2] + b"\xff\xfe\0\2" * num_comments + data[2:]


def jpeg_with_filler(num_bytes, *, ends=False):
    """A JPEG with fill bytes before its picture, or in place of it."""
    data = encode(scene(), "JPEG")
    return data[:2] + b"\xff" * num_bytes + (b"" if ends else data[2:])


def jpeg_with_scans(num_scans, size=(96, 64)):
    """A progressive JPEG that ends with empty scans; each of them visits every block."""
    data = encode(Image.new("RGB", size, (90, 140, 60)), "JPEG", progressive=True)
    at = data.rindex(b"\xff\xda")
    return data[:at] + b"\xff\xda\0\x08\1\1\0\1\x3f\0" * (num_scans - data[:at].count(b"\xff\xda")) + b"\xff\xd9"


def jpeg_with_exif_bomb(num_entries=5_000, num_bytes=60_000):
    """A JPEG whose EXIF entries all share the same bytes, which a reader copies for each of them."""
    entries = ((0x8000 + number, 1, num_bytes, struct.pack(">I", 0)) for number in range(num_entries))
    exif = exif_with_entries(*entries)
    return encode(scene(), "JPEG", exif=exif + bytes(max(0, num_bytes - len(exif))))


def long_png(width, height):
    """A gray PNG of one color; a few kilobytes for millions of rows."""
    row = bytes(1 + width)
    packer = zlib.compressobj(9)
    blocks = [packer.compress(row * min(100_000, height - top)) for top in range(0, height, 100_000)]
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    pixels = png_chunk(b"IDAT", b"".join(blocks) + packer.flush())
    return b"\x89PNG\r\n\x1a\n" + header + pixels + png_chunk(b"IEND", b"")


def png_with_chunks(num_chunks):
    """A PNG with empty chunks before its pixels."""
    return png((8, 8), 8, 2, [bytes(24)] * 8, png_chunk(b"prIv", b"") * num_chunks)


def png_with_text(num_texts):
    """A PNG with compressed texts, a kilobyte for each megabyte."""
    text = zlib.compress(bytes([65]) * 1_000_000, 9)
    chunks = [png_chunk(b"zTXt", b"text%d\0\0" % number + text) for number in range(num_texts)]
    return png((8, 8), 8, 2, [bytes(24)] * 8, *chunks)


def webp_with_frames(num_frames):
    """An animation of many frames of a few bytes."""
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    data = encode(frames[0], "WEBP", save_all=True, append_images=frames[1:])
    at = data.rindex(b"ANMF")
    body = data[8:] + data[at:] * (num_frames - 2)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def with_box_entries(file_format, num_entries):
    """A HEIC or AVIF file with empty boxes in the list of the properties of its pictures."""
    return _grown(encode(scene(), file_format), (b"meta", b"iprp", b"ipco"), b"\0\0\0\x08free" * num_entries)


def _grown(data, path, content):
    """Appends content to a box, and adds its length to the sizes of the boxes around it."""
    grown, at = bytearray(data), 0
    for kind in path:
        at = data.index(kind, at) - 4
        grown[at : at + 4] = (int.from_bytes(data[at : at + 4]) + len(content)).to_bytes(4)
        end = at + int.from_bytes(data[at : at + 4])
        at += 4
    return bytes(grown[:end]) + content + bytes(grown[end:])
