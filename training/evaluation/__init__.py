"""Evaluation: a network and a split -> metrics."""
