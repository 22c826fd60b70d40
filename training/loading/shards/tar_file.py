"""Writes tar files that any tar program reads.

Members are not compressed, so each is a byte range of the file. Names are short, and owner and time are zero, so the
same pictures always give the same bytes.
"""

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

from training.atomic_file import replaced


def write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> list[int]:
    """Writes a POSIX (ustar) tar.

    Args:
        path: The file; it is replaced atomically.
        members: Name (at most 100 characters) and content of each member.

    Returns:
        The offset of each member's first byte in the file.

    Raises:
        OSError: The disk is full or not writable; nothing is left behind.
    """
    offsets = []
    with replaced(path) as stream, tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            offsets.append(tar.offset + tarfile.BLOCKSIZE)  # after the header, which is one block for a short name
            tar.addfile(info, io.BytesIO(content))
    return offsets


def tar_members(path: Path) -> dict[int, int]:
    """Offset of the first byte -> length, of each member, as `tarfile` reads them.

    Raises:
        OSError: The file is missing.
        tarfile.TarError: The file is not a tar.
    """
    with tarfile.open(path, "r:") as tar:
        return {member.offset_data: member.size for member in tar}
