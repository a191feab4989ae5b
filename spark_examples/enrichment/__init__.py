"""A stream joined with a compacted topic."""
