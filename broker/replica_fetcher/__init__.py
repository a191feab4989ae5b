"""The follower's side of replication: fetches from leaders, and truncates logs where they diverge.

It may import fastpath and the rooms below; only the node imports it.
"""
