"""Barnabas: a Kafka-wire-compatible broker."""
