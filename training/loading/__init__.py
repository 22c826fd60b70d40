"""Manifest -> batches: shards, storage, sampling, decoding, augmentation."""
