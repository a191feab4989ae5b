"""NATS subjects as topics, the part that controllers need: what a binding may be."""
