"""One reader for each layout of a data set; all return records of the same type."""
