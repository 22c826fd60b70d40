"""Manifest -> batches: shards, storage, order, decoding, augmentation."""
