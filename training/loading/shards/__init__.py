"""Packs prepared pictures into tar shards, and verifies them by their hashes."""

from training.loading.shards.packing import Pack, pack
from training.loading.shards.verification import Verify, verify

__all__ = ["Pack", "Verify", "pack", "verify"]
