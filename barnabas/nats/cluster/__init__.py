"""Requests of bindings to other brokers of the cluster. Imports nothing else of nats."""
