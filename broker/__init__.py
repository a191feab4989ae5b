"""The broker: rooms by concept, put together by node.py. services.py is what handlers work with, extension.py the port of
extensions.

From the bottom, each room may import those before it: config, requests, network, cluster, partitions, then fetch,
coordinator and metrics, groups and transactions, services, fastpath, replica_fetcher, api, node (.importlinter holds it, imports for types
included).
"""
