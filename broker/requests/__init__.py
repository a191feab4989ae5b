"""Requests between connections and handlers: registrations, contexts, the dispatcher, work in slices, bounds.

It may import quotas, security and config.
"""
