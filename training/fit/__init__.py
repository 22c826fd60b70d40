"""Checkpoint and pictures -> outputs, the answer model that is fitted to them, and the bundle."""
