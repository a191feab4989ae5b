"""A topic's binding to NATS: its nats.* configs read, checked and decided about, on every controller.

Of nats it imports configs alone, beside it at the root.
"""
