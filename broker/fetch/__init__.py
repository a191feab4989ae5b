"""Serving Fetch: sessions, reading, waiting for data, the choice of a replica."""
