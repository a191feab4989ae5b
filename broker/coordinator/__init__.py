"""The log of a coordinator: an internal topic whose records are replayed into a state machine, and its compacted view.

It may import partitions and what that may import.
"""
