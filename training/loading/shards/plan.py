"""The shard of each picture and its place in it: a pure function of the manifest and the options.

Each machine that packs a part computes the same plan, and so does a run that continues a killed one. The size of a
picture is known only after it is encoded, so shards are cut by estimated sizes.
"""

import hashlib
from collections.abc import Sequence
from typing import Final, get_args

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from models.errors import RecipeError
from training.dataset.manifest import Manifest
from training.dataset.sources.record import Split

PLAN_VERSION: Final = 1
"""Raise this number whenever the same options give other shards."""
_MEMBER_OVERHEAD_BYTES: Final = 512 + 256  # a tar header, and half a block of padding on average
# Photographs of plants at short side 512 and quality 90, 4:2:0: 0.20 to 0.39 bytes a pixel (measured with Pillow).
_BYTES_PER_PX_AT_90: Final = 0.3
_SIZE_EXPONENT: Final = -0.65  # of the size in libjpeg's quantization scale, fitted at quality 50 to 100


class PackOptions(msgspec.Struct, frozen=True):
    """The options that decide the content of the shards."""

    short_side_px: int = 512
    """Training pictures are reduced to this short side, px."""
    quality: int = 90
    """JPEG quality of the reduced pictures."""
    shard_mb: float = 512
    """Approximate size of a shard, MB."""
    seed: int = 0
    """Seed of the order of the training pictures."""

    def __post_init__(self) -> None:
        _require_range("--short-side-px", self.short_side_px, 8, 8192)
        _require_range("--quality", self.quality, 50, 100)
        _require_range("--seed", self.seed, 0, 2**63)
        _require_range("--shard-mb", self.shard_mb, 0.001, 100_000)


class Shard(msgspec.Struct, frozen=True, eq=False):
    """One tar file."""

    number: int
    """Position in the plan."""
    name: str
    """File name of the tar."""
    split: Split
    """Split of all its pictures."""
    rows: npt.NDArray[np.int64]
    """Rows of the source manifest, in the order of the tar."""


class ShardPlan(msgspec.Struct, frozen=True, eq=False):
    """All shards of a packed data set."""

    shards: tuple[Shard, ...]
    identity: str
    """Hash of manifest, options and assignment, which identifies the shards of this plan."""


def make_plan(manifest: Manifest, options: PackOptions) -> ShardPlan:
    """Assigns each picture to a place in a shard.

    Training pictures are shuffled; the other splits keep the order of the manifest. The shards of a split have about
    equal size, at most about `options.shard_mb`.
    """
    stored_bytes = estimate_bytes(manifest, options)
    shards: list[Shard] = []
    for split in get_args(Split):
        if manifest.has(split):
            rows = manifest.rows_of(split)
            if split == "train":
                rows = np.random.default_rng(options.seed).permutation(rows)
            cut = _cut(rows, stored_bytes[rows], options.shard_mb * 1e6)
            shards += [
                Shard(len(shards) + index, f"{split}-{index:05d}.tar", split, part) for index, part in enumerate(cut)
            ]
    return ShardPlan(tuple(shards), _identity(manifest, options, shards))


def estimate_bytes(manifest: Manifest, options: PackOptions) -> npt.NDArray[np.float64]:
    """Estimates the bytes of each picture in its shard, shape (len(manifest),).

    A copied picture takes its length; a reduced one takes its pixels times the bytes per pixel of the JPEG quality.
    Whether a file is a JPEG is guessed from its name, since the file is not read here.
    """
    column = {name: manifest.table[name].to_numpy().astype(np.float64) for name in ("length", "width", "height")}
    short_side = np.minimum(column["width"], column["height"])
    scale = np.minimum(1.0, options.short_side_px / np.maximum(short_side, 1))
    encoded = column["width"] * column["height"] * scale**2 * _bytes_per_px(options.quality)
    jpeg = pc.match_substring_regex(manifest.table["path"], r"\.jpe?g$", ignore_case=True).to_numpy()
    kept = pc.not_equal(manifest.table["split"].cast("string"), "train").to_numpy()
    copied = kept | (jpeg & (short_side <= options.short_side_px))
    stored: npt.NDArray[np.float64] = np.where(copied, column["length"], encoded) + _MEMBER_OVERHEAD_BYTES
    return stored


def shards_of_part(plan: ShardPlan, part: int, num_parts: int) -> list[Shard]:
    """The shards of one part.

    Args:
        plan: The shards of all parts.
        part: Number of the part, from 1.
        num_parts: Number of parts.
    """
    return [shard for shard in plan.shards if part_of(shard, num_parts) == part]


def part_of(shard: Shard, num_parts: int) -> int:
    """Number of the part that a shard belongs to, from 1."""
    return shard.number % num_parts + 1


def _bytes_per_px(quality: int) -> float:
    """Bytes per pixel, by libjpeg's quantization scale 200 - 2 * quality; the 10 keeps quality 100 above zero."""
    return float(_BYTES_PER_PX_AT_90 * ((210 - 2 * quality) / 30) ** _SIZE_EXPONENT)


def _cut(
    rows: npt.NDArray[np.int64], stored_bytes: npt.NDArray[np.float64], shard_bytes: float
) -> list[npt.NDArray[np.int64]]:
    """Cuts rows into shards of about equal size; none is empty, even if a picture is larger than a shard."""
    before = np.cumsum(stored_bytes) - stored_bytes
    total = float(stored_bytes.sum())
    num_shards = max(1, int(np.ceil(total / shard_bytes)))
    number = np.floor(before * (num_shards / total)).astype(np.int64)
    return np.split(rows, np.flatnonzero(np.diff(number)) + 1)


def _identity(manifest: Manifest, options: PackOptions, shards: Sequence[Shard]) -> str:
    """Hashes the assignment as well, to detect a NumPy version that shuffles otherwise."""
    digest = hashlib.sha256(f"{PLAN_VERSION} {manifest.sha256} ".encode())
    digest.update(msgspec.json.encode(options))
    for shard in shards:
        digest.update(shard.name.encode() + shard.rows.astype("<i8").tobytes())
    return digest.hexdigest()


def _require_range(flag: str, value: float, lowest: float, highest: float) -> None:
    if not lowest <= value <= highest:
        raise RecipeError(
            f"{flag} is out of range",
            value=value,
            limit=f"{lowest:g} to {highest:g}",
            remedy="pass a value in this range",
        )
