"""Streams of JetStream read into topics, exactly once or at least once."""
