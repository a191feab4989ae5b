"""What a test has the cluster itself do: leaders, groups, nodes, upkeep. `Broker` has all of it as methods (steering.py)."""
