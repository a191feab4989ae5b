"""The records of NATS messages: keys, partitions and bytes, and what is read back from logs.

Imports binding and client only.
"""
