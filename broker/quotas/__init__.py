"""Quotas: rates over windows, token buckets, and the client quotas of this broker (KIP-13, 124, 546, 599, 612).

It may import security and config.
"""
