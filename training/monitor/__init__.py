"""Measures where the time of a training run goes, and says what limits it and how to fix that."""
