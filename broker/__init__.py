"""The broker: rooms by concept, put together by node.py. services.py is what handlers work with, extension.py the port of
extensions.

From the bottom, each room may import those before it: config, security, quotas, requests, network, cluster, partitions, then fetch
and coordinator, share_coordinator, then groups, transactions and telemetry, share_partitions, services, metrics, fastpath, then
replica_fetcher and extension, api, node. Those that an "and" joins may not import each other (.importlinter holds it, imports for
types included).
"""
