"""The follower's side of replication: fetches from leaders, truncates where logs diverge.

It may import fastpath and the rooms below; the node alone imports it.
"""
