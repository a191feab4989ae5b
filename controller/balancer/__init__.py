"""The balancer: load reports of brokers, plans of moves, and the moves of the active controller (barnabas.balancer).

`planner.py` decides and does nothing; `balancer.py` acts.
"""
