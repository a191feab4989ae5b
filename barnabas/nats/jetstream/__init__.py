"""Streams of JetStream into topics, exactly once or at least once.

Owns the API's requests, pulls, deliveries and acknowledgements, and positions in streams. Imports binding, client, records,
cluster and the modules at the root of nats.
"""
