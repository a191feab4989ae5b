"""The partitions of this broker: roles, leadership and the ISR, delayed produces, replication quotas, log directories.

It may import cluster, network, requests, quotas, security and config.
"""
