"""One reader a data set layout, all yielding the same record."""
