"""Reads the encoded bytes of pictures: from separate files, from local shards, or from shards in an object store.

Ranges of local shards are read without a file position, so threads can share a file. From an object store a batch is
read in one round of concurrent range requests.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import fsspec
import pyarrow as pa
from fsspec.utils import merge_offset_ranges

from models.errors import DataError
from training.dataset.manifest import Manifest, Place

_MOST_OPEN_SHARDS: Final = 256  # a quarter of the usual limit of 1,024 open files
# Reading 64 kB too much costs less than one more request; beyond 8 MB several connections are faster than one.
_MOST_GAP_BYTES: Final = 64 * 1024
_MOST_REQUEST_BYTES: Final = 8 * 1024 * 1024


class PictureStore:
    """Reads the pictures of a manifest, which says where they are."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._open_shard = lru_cache(maxsize=_MOST_OPEN_SHARDS)(pa.OSFile)  # closes what nobody uses
        self._remote_file = lru_cache(maxsize=None)(_remote_file)  # one entry for each shard

    def __reduce__(self) -> tuple[type["PictureStore"], tuple[Manifest]]:
        """Pickles the manifest only: another process opens the shards itself."""
        return PictureStore, (self.manifest,)

    def read(self, row: int) -> bytes:
        """Reads the bytes of one picture; see `read_many`."""
        return self.read_many([row])[0]

    def read_many(self, rows: Sequence[int]) -> list[bytes]:
        """Reads the bytes of several pictures, in the order of `rows`, which may repeat.

        Raises:
            DataError: A picture cannot be read; the message names it.
        """
        places = {row: self.manifest.place(row) for row in rows}
        if any("://" in place.file for place in places.values()):  # the shards, and so all pictures, are in one store
            found = self._read_remote(places)
        else:
            found = {row: self._read_local(row, place) for row, place in places.items()}
        return [found[row] for row in rows]

    def _read_local(self, row: int, place: Place) -> bytes:
        try:
            if place.whole:
                return Path(place.file).read_bytes()
            data = self._open_shard(place.file).read_at(place.length, place.offset)
        except OSError as error:
            raise unreadable(self.manifest.name(row), error) from error
        return self._require_length(row, place, data)

    def _read_remote(self, places: dict[int, Place]) -> dict[int, bytes]:
        """Reads in one round of requests; neighbors are read by one request."""
        files = {place.file: self._remote_file(place.file) for place in places.values()}
        ranges = [(files[place.file][1], place.offset, place.length) for place in places.values()]
        file_system, _ = next(iter(files.values()))
        try:
            contents = _read_ranges(file_system, ranges)
        except Exception as error:  # the exceptions differ between file systems
            raise unreadable(self.manifest.name(next(iter(places))), error) from error
        found: dict[int, bytes] = {}
        for (row, place), data in zip(places.items(), contents, strict=True):
            if isinstance(data, Exception):
                raise unreadable(self.manifest.name(row), data) from data
            found[row] = self._require_length(row, place, data)
        return found

    def _require_length(self, row: int, place: Place, data: bytes) -> bytes:
        if len(data) != place.length:
            raise unreadable(
                self.manifest.name(row), f"{len(data)} of {place.length} bytes at {place.offset}: the shard is cut off"
            )
        return data


def unreadable(name: str, error: object) -> DataError:
    """The error for a picture that cannot be read or decoded, which may have changed since the manifest was written."""
    return DataError(
        f"a picture of the manifest cannot be read: {name}",
        value=error,
        remedy="restore the file or run training/prepare.py again",
    )


def _read_ranges(file_system: Any, ranges: Sequence[tuple[str, int, int]]) -> list[bytes | Exception]:
    """Reads (path, first byte, length) in one round; ranges that are close together are one request.

    A request that fails gives its error in the place of each of its ranges.
    """
    paths, starts, ends = merge_offset_ranges(
        [path for path, _, _ in ranges],
        [start for _, start, _ in ranges],
        [start + length for _, start, length in ranges],
        max_gap=_MOST_GAP_BYTES,
        max_block=_MOST_REQUEST_BYTES,
    )
    contents = file_system.cat_ranges(paths, starts, ends, on_error="return")
    keys = list(zip(paths, starts, strict=True))
    found: list[bytes | Exception] = []
    for path, start, length in ranges:
        number = bisect_right(keys, (path, start)) - 1
        content = contents[number]
        first = start - starts[number]
        found.append(content if isinstance(content, Exception) else content[first : first + length])
    return found


def _remote_file(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it.

    Raises:
        DataError: fsspec does not know the protocol, or its package is not installed.
    """
    try:
        file_system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise DataError(
            f"URLs like {url} cannot be read here",
            value=error,
            remedy="install the package that fsspec names (s3fs for s3://, gcsfs for gs://), or give a folder",
        ) from error
    return file_system, str(path)
