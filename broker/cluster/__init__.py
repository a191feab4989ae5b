"""This broker as a member of a cluster: its part in the metadata quorum, its registration and heartbeats (broker_lifecycle),
requests to the active controller and of other nodes to this one's, connections to other brokers, what a node asks of others and
shows to them (node_security), and the metadata as clients see it.

It may import network, requests, quotas, security and config.
"""
