"""The share coordinator (KIP-932): the delivery state of share partitions, kept in __share_group_state.

A share partition is a partition of a topic as a share group reads it; its key is "group:topic id:partition". state.py decides
about one, without I/O; shard.py has those of one partition of the topic; coordinator.py all that this broker coordinates.
state_batches.py merges ranges of offsets, records.py encodes the records. persister.py is the coordinator's client, for the
leaders of share partitions (broker/share_partitions) and for the group coordinator.

It may import coordinator and what that may import.
"""
