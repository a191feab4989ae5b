"""Client connections: bytes in, answers out, and their limits.

It may import requests and config.
"""
