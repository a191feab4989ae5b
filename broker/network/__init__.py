"""Client connections: bytes in, answers out, limits."""
