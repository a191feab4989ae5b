"""What the active controller knows beyond the metadata: which brokers live, and which should lead."""
