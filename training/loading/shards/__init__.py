"""Packs pictures into tar shards, from prepared data or from archives, and verifies them by their hashes."""

from training.loading.shards.packing import Pack, Reduce, pack, reduce_pictures
from training.loading.shards.shard_files import PackOptions
from training.loading.shards.streaming import Stream, infos, stream, write_streamed_manifest
from training.loading.shards.verification import Verify, verify

__all__ = [
    "Pack",
    "PackOptions",
    "Reduce",
    "Stream",
    "Verify",
    "infos",
    "pack",
    "reduce_pictures",
    "stream",
    "verify",
    "write_streamed_manifest",
]
