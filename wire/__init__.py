"""Kafka's protocol: the messages of its schema, record batches and records with their compression, error codes. No I/O.

The compiler (compiler.py, from schema/) writes messages/. Imports no other part of the project.
"""
