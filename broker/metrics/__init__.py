"""The metrics of a node and the HTTP listener that serves them (`barnabas.metrics.listener`).

It may import share_partitions and all rooms below: what they count is shown here. Extensions import `families`.
"""
