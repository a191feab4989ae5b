"""From a message to the bytes of its record, and back."""
