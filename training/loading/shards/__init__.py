"""Packs pictures into tar shards, from prepared data or from archives, and verifies them by their hashes."""

from training.loading.shards.packing import Pack, pack
from training.loading.shards.shard_files import PackOptions
from training.loading.shards.streaming import Stream, infos, stream, write_streamed_manifest
from training.loading.shards.verification import Verify, verify

__all__ = ["Pack", "PackOptions", "Stream", "Verify", "infos", "pack", "stream", "verify", "write_streamed_manifest"]
