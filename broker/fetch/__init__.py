"""Serving Fetch: sessions, reading, waiting for data (the purgatory), the choice of a replica.

It may import partitions and what that may import.
"""
