"""Kafka's configuration properties as tables: types, defaults, checks, documentation."""
