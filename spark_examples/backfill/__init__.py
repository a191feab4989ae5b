"""A year of data, read by ranges of time."""
