"""One partition that this broker hosts: the log, who leads it, and what consumers may see.

With one replica every appended record is committed at once, unless flush.messages holds it back until it has
been synced: so the high watermark is the log's, and replication will move it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.purgatory import PartitionListener
    from barnabas.storage.log import AppendResult, Log
    from barnabas.wire.record_batch import BatchHeader


class Partition:
    """A partition led by this broker. All calls on the loop's thread."""

    __slots__ = (
        "fetch_waiters",
        "leader_epoch",
        "log",
        "partition",
        "stable_moved",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str, topic_id: bytes, partition: int, leader_epoch: int, log: Log) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.log = log
        self.fetch_waiters: set[PartitionListener] = set()
        self.stable_moved = True  # whether read_committed consumers saw more after the append that is told of

    @property
    def high_watermark(self) -> int:
        """Offset up to which (exclusive) consumers may read."""
        return self.log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Offset up to which (exclusive) read_committed consumers may read."""
        return self.log.last_stable_offset

    def append(self, records: memoryview | bytes, header: BatchHeader | None = None) -> AppendResult:
        """Append one record batch as the leader; wakes the fetches that wait for it. `header` is the batch's, if
        it has been read already and `records` are a view that ends with the batch.

        Raises storage errors, which carry their ErrorCode. Returning is the acknowledgement's base for
        every acks level, as the only replica has it; unless the result awaits a sync (flush.messages): then
        it is `log.when_synced`, and readers are shown the batch no sooner.
        """
        stable_offset = self.log.last_stable_offset if self.fetch_waiters else -1
        if header is None:
            result = self.log.append_as_leader(records, self.leader_epoch)
        else:
            assert isinstance(records, memoryview)
            result = self.log.append_batch(records, header, self.leader_epoch)
        if self.fetch_waiters or result.awaits_sync:
            byte_count = len(records)
            if result.awaits_sync:
                self.log.when_synced(result.last_offset + 1, lambda _: self._wake(byte_count, stable_offset))
            else:
                self._wake(byte_count, stable_offset)
        return result

    def _wake(self, byte_count: int, stable_offset: int) -> None:
        """Tell who waits of an append; before it the last stable offset was `stable_offset`."""
        self.stable_moved = self.log.last_stable_offset != stable_offset
        for waiter in tuple(self.fetch_waiters):
            waiter.appended(self, byte_count)

    def interrupt_waiters(self) -> None:
        """Something other than an append changed: let every waiting fetch look again."""
        for waiter in tuple(self.fetch_waiters):
            waiter.changed(self)

    def epoch_end_offset(self, leader_epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest epoch up to `leader_epoch`; (-1, -1) when there is none.

        The log knows an epoch from its first batch on, but a leader reigns from the day it was made one.
        """
        if leader_epoch == self.leader_epoch:
            return leader_epoch, self.log.log_end_offset
        return self.log.epoch_end_offset(leader_epoch)

    def start_epoch(self) -> int:
        """The leader epoch of the first offset, -1 when unknown."""
        log = self.log
        if log.log_start_offset == log.log_end_offset:
            return self.leader_epoch
        return log.epoch_for_offset(log.log_start_offset)

    def check_leader_epoch(self, current_leader_epoch: int) -> ErrorCode:
        """Compare what the client believes (KIP-320) with what is; -1 means that it does not say.

        KAFKA_STORAGE_ERROR when the log directory is offline.
        """
        if self.log.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if current_leader_epoch == -1 or current_leader_epoch == self.leader_epoch:
            return ErrorCode.NONE
        if current_leader_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH
