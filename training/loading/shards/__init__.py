"""Packs pictures into tar shards, from prepared data or from archives."""

from training.loading.shards.packing import Pack, Reduce, pack, reduce_pictures
from training.loading.shards.shard_files import PackOptions
from training.loading.shards.streaming import Stream, infos, stream, write_streamed_manifest

__all__ = [
    "Pack",
    "PackOptions",
    "Reduce",
    "Stream",
    "infos",
    "pack",
    "reduce_pictures",
    "stream",
    "write_streamed_manifest",
]
