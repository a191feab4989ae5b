"""What the broker measures, and the HTTP listener that serves it.

It may import partitions and what that may import.
"""
