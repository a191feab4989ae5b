"""The partitions of this broker: roles, leadership and the ISR, waiting produces, quotas of replication, log directories.

It may import cluster, network, requests and config.
"""
