"""Exactly-once sums across kill -9."""
