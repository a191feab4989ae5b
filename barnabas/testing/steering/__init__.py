"""Changes of a running cluster: leaders, groups, nodes, upkeep. They are methods of `Broker`."""
