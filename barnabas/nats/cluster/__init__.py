"""Requests of bindings to other brokers of the cluster."""
