"""Batches -> checkpoint: the step, the loop, and what they stand on."""
