"""The metrics of a node and the HTTP listener that serves them (`barnabas.metrics.listener`).

It may import partitions and what that may import. Extensions import `families`.
"""
