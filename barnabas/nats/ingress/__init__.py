"""Core bindings: subscriptions, whether they were there for every message, and what followers keep beside."""
