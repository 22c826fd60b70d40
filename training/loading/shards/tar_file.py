"""Writes a tar that any tar reads.

Members are stored uncompressed, so that each is a range of the file; names are short and owner and time are zero, so
that the same pictures always give the same bytes.
"""

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

from training.atomic_file import replaced


def write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> list[int]:
    """Writes a POSIX (ustar) tar.

    Args:
        path: Where to; replaced as a whole.
        members: Name (at most 100 characters) and content.

    Returns:
        The offset of each member's first byte in the file.

    Raises:
        OSError: The disk is full or may not be written; nothing is left then.
    """
    offsets = []
    with replaced(path) as stream, tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            offsets.append(tar.offset + tarfile.BLOCKSIZE)  # behind the header, which is one block for a short name
            tar.addfile(info, io.BytesIO(content))
    return offsets


def tar_members(path: Path) -> dict[int, int]:
    """Offset of the first byte -> length of every member, as tar itself finds them.

    Raises:
        OSError: The file is missing.
        tarfile.TarError: The file is no tar.
    """
    with tarfile.open(path, "r:") as tar:
        return {member.offset_data: member.size for member in tar}
