"""NATS to Spark and back."""
