"""Compaction: of each key the last record stays (`cleanup.policy=compact`)."""
