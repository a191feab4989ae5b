"""A topic's binding to NATS: its nats.* configs read, checked and decided about, on every controller."""
