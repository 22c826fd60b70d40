"""Reads the header of a WebP picture without its decoder, which allocates 8 bytes a pixel when it opens a file."""

_PREFIX_BYTES = 12  # "RIFF", a length, "WEBP"


def canvas_size(data: bytes) -> tuple[int, int] | None:
    """Returns the width and height, px, that the first chunk states (RFC 9649, 2.5 to 2.7; RFC 6386, 9.1).

    Returns:
        None if the first chunk is not of a kind that holds a size; the decoder then refuses the file.
    """
    kind, chunk = data[_PREFIX_BYTES : _PREFIX_BYTES + 4], data[_PREFIX_BYTES + 8 : _PREFIX_BYTES + 18]
    if len(chunk) < 10:
        return None
    if kind == b"VP8X":  # flags and reserved bytes, then each side minus 1 in 24 bits
        return int.from_bytes(chunk[4:7], "little") + 1, int.from_bytes(chunk[7:10], "little") + 1
    if kind == b"VP8L" and chunk[0] == 0x2F:  # signature, then each side minus 1 in 14 bits
        bits = int.from_bytes(chunk[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if (
        kind == b"VP8 " and chunk[3:6] == b"\x9d\x01\x2a"
    ):  # frame tag, start code, then sides of 14 bits, each with 2 bits of scale
        return int.from_bytes(chunk[6:8], "little") & 0x3FFF, int.from_bytes(chunk[8:10], "little") & 0x3FFF
    return None


def has_alpha(data: bytes) -> bool:
    """Whether the first chunk states that the picture has an alpha channel (RFC 9649, 2.7; RFC 9649, 3.4)."""
    kind, chunk = data[_PREFIX_BYTES : _PREFIX_BYTES + 4], data[_PREFIX_BYTES + 8 : _PREFIX_BYTES + 13]
    if kind == b"VP8X":
        return bool(chunk[:1] and chunk[0] & 0x10)
    return kind == b"VP8L" and len(chunk) == 5 and bool(chunk[4] & 0x10)  # bit 28 after the signature
