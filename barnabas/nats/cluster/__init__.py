"""What a binding needs of the other brokers of its cluster."""
