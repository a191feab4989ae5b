"""The group coordinator: classic groups and their offsets, one state machine per partition of __consumer_offsets.

Requests are decided (classic, offset_requests), appended, and replayed into the state (group_store, group, offsets); records has the
file format. It may import coordinator, partitions, cluster, requests and config.
"""
