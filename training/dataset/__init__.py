"""Photographs -> manifest: readers, names, classes, audit, splits, report."""
