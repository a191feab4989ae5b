"""The parts of a coordinator: a state machine for each partition of an internal topic, whose log is that partition.

A coordinator (broker/groups, broker/transactions, broker/share_coordinator) is put together of:

- `CoordinatorTopic` (topic.py): the internal topic in the metadata; which broker coordinates a key; creation on first use.
- `Shards` (shards.py): one shard for each partition of the topic that this broker leads, loaded and unloaded by leader epoch,
  and the errors for keys that are not coordinated here, or not yet.
- `ShardLog` (shard_log.py): a shard's log. A request is decided into records and a response; `append` writes the records and
  replays them at once, takes them back if the append fails, and calls back when they are committed, so that the response can
  leave. Replay alone changes what the records stand for.
- `CoordinatorLog` (log.py): appends to the topic's partitions, and reads them to load shards: loading.py, and
  compacted_records.py for the last record of each key, pending_writes.py for those of transactions that have not ended,
  unknown_records.py for those that can't be read.
- `DeadlineTimer` (timers.py): session timeouts and the like.

The coordinator itself has the records with their encoding, `replay`, and what its requests decide.

It may import partitions and what that may import.
"""
