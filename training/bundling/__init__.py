"""Checkpoint -> bundle: precisions, calibration, model card."""
