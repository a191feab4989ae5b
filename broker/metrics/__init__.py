"""What the broker measures, and the HTTP listener that serves it."""
