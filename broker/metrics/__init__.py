"""The metrics and the health of a node, and the HTTP listener that serves them (`barnabas.metrics.listener`).

It may import services and all rooms below: what they count is shown here. Extensions import `families`.
"""
