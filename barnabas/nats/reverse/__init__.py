"""A topic's committed records published to subjects."""
