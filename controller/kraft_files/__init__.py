"""Apache Kafka's own metadata log: read and written, so that either broker takes over the other's directory.

Imports controller/metadata and controller/operations.
"""
