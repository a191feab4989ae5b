"""The metrics of a node and the HTTP listener that serves them (`barnabas.metrics.listener`).

It may import partitions and the rooms below it; it imports config alone. Extensions import `families`.
"""
