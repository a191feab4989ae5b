"""Batch and streaming aggregation over the flights of a year."""
