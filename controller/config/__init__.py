"""Kafka's configuration properties as tables: types, defaults, validation, documentation.

Imports controller/metadata for errors only.
"""
