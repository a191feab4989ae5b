"""One partition that this broker hosts: its log, its leader, and what consumers may read.

A partition is led here or follows another broker, as the metadata says; `lead` and `follow` give it a role. With one
replica a batch is committed as it is appended, or with flush.messages as it is synced, which the log does. A leader of
several replicas has a PartitionLeadership, which moves the high
watermark. A follower's high watermark is that of its leader's last answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from barnabas.broker.partitions.leadership import PartitionLeadership
from barnabas.broker.partitions.replica import UNKNOWN, LocalReplica
from barnabas.controller.metadata.image import PartitionState
from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.broker.partitions.alter_partition import AlterPartitionManager
    from barnabas.broker.partitions.isr_rules import IsrRules
    from barnabas.storage.log.log import AppendResult, Log
    from barnabas.storage.log.validation import Inspected
    from barnabas.wire.record_batch import BatchHeader

NO_LEADER: Final = -1
ACKS_ALL: Final = -1
_NO_STATE: Final = PartitionState(replicas=[], isr=[], leader=NO_LEADER, leader_epoch=-1, partition_epoch=-1)


class ReplicaObserver(Protocol):
    """Follows what replication appends to the log of a follower, and what it cuts off."""

    def replicated(self, batches: memoryview) -> None:
        """These whole batches have been appended. Their buffer is used again when this returns."""
        ...

    def cutting(self, log: Log, offset: int) -> None:
        """The log is about to be cut at `offset`."""
        ...


class Partition(LocalReplica):
    """A partition of this broker. All calls on the loop's thread."""

    __slots__ = (
        "_alone",
        "is_leader",
        "leader_high_watermark",
        "leader_id",
        "leadership",
        "observer",
        "state",
    )

    def __init__(self, topic: str, topic_id: bytes, partition: int, log: Log) -> None:
        """It has no role yet: see `lead` and `follow`."""
        super().__init__(topic, topic_id, partition, log)
        self.observer: ReplicaObserver | None = None  # of what is fetched from the leader
        self.state = _NO_STATE  # as the metadata has it, or had when it was last looked at
        self.leader_id = NO_LEADER
        self.leader_high_watermark = UNKNOWN  # of the leader that is followed, as of its last answer
        self.is_leader = False
        self.leadership: PartitionLeadership | None = None  # where it is led here and has other replicas
        self._alone = False  # whether it is led here and has no other replica

    # -- roles

    def lead(self, state: PartitionState, rules: IsrRules, proposals: AlterPartitionManager) -> None:
        """This broker leads from now on, or leads on in another state. An older state than the present one changes
        nothing."""
        if state.partition_epoch < self.partition_epoch:
            return
        is_new_epoch = not self.is_leader or state.leader_epoch > self.leader_epoch
        if not is_new_epoch and state.partition_epoch == self.partition_epoch:
            self.state = state  # its own proposal, whose answer came first
            return
        if state.leader_epoch > self.leader_epoch + 1:  # others may have led, and followers cut their logs
            self._end_leadership()
        self._take(state)
        self.is_leader = True
        leadership = self.leadership
        if len(state.replicas) == 1:
            self._alone = True
            self.log.be_the_only_replica()
            if leadership is not None:
                self.leadership = None
                for end_offset, call in leadership.end_alone():
                    self.when_committed(end_offset, call)
        else:
            self._alone = False
            self.log.replicate()
            if (
                is_new_epoch
            ):  # followers may have records of epochs that this log has none of, and are to cut them
                self.log.assign_epoch_start_offset(self.leader_epoch)
            if leadership is None:
                leadership = self.leadership = PartitionLeadership(self, rules, proposals)
            leadership.take(state, is_new_epoch=is_new_epoch)
        if is_new_epoch:
            self.interrupt_waiters()
        elif self.replica_waiters:
            self.interrupt_followers()

    def follow(self, state: PartitionState) -> None:
        """Another broker leads from now on, or none. An older state than the present one changes nothing."""
        if state.partition_epoch < self.partition_epoch:
            return
        changes = self.is_leader or state.leader_epoch > self.leader_epoch
        self._take(state)
        self.is_leader = self._alone = False
        self.log.replicate()
        self._end_leadership()
        if changes:
            self.leader_high_watermark = UNKNOWN
            self.interrupt_waiters()

    def retire(self) -> None:
        """This broker no longer hosts the partition: it was deleted, or reassigned to others."""
        self.is_leader = self._alone = False
        self.leader_id = NO_LEADER
        self._end_leadership()
        self.interrupt_waiters()

    def reopened(self, log: Log) -> None:
        """Take another log. The partition has no role until the next state of it."""
        self._end_leadership()
        self.log = log
        self.state = _NO_STATE
        self.is_leader = self._alone = False
        self.leader_epoch = self.partition_epoch = -1

    def _take(self, state: PartitionState) -> None:
        self.state = state
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch

    def _end_leadership(self) -> None:
        leadership, self.leadership = self.leadership, None
        if leadership is not None:
            leadership.resign()

    @property
    def high_watermark(self) -> int:
        """Offset up to which (exclusive) consumers may read."""
        return self.log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Offset up to which (exclusive) read_committed consumers may read."""
        return self.log.last_stable_offset

    def append(
        self,
        records: memoryview | bytes,
        header: BatchHeader | None = None,
        required_acks: int = 1,
        from_client: bool = True,
        inspected: Inspected | None = None,
    ) -> AppendResult:
        """Append one record batch as the leader; wakes the fetches that wait for it. `header` is the batch's, if
        it has been read already and `records` are a view that ends with the batch. `from_client` False: this broker made
        the batch, and may set flags that clients may not.

        Raises storage errors, which carry their ErrorCode: NOT_LEADER_OR_FOLLOWER, and with required_acks -1
        NOT_ENOUGH_REPLICAS, among them. Returning is the acknowledgement's base for acks 1; for acks -1 it is
        as well with one replica. With a header RecordsUnread, too: then it is tried again with what that has come to as
        `inspected`. Unless the result awaits a sync (flush.messages): then it is
        `log.when_synced`, and readers are shown the batch no sooner; or, with acks -1, awaits the other replicas
        (`awaits_commit`): then it is `when_committed`.
        """
        if not self._alone:
            return self._append_replicated(records, header, required_acks, from_client, inspected)
        stable_offset = self.log.last_stable_offset if self.fetch_waiters else -1
        if header is None:
            result = self.log.append_as_leader(records, self.leader_epoch, from_client=from_client)
        else:
            assert isinstance(records, memoryview)
            result = self.log.append_batch(records, header, self.leader_epoch, from_client, inspected)
        if self.fetch_waiters or result.awaits_sync:
            byte_count = len(records)
            if result.awaits_sync:
                self.log.when_synced(result.last_offset + 1, lambda _: self.wake(byte_count, stable_offset))
            else:
                self.wake(byte_count, stable_offset)
        return result

    def _append_replicated(
        self,
        records: memoryview | bytes,
        header: BatchHeader | None,
        required_acks: int,
        from_client: bool,
        inspected: Inspected | None,
    ) -> AppendResult:
        leadership = self.leadership
        if self.log.offline:  # which has made it stop leading, and has a better message
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, str(self.log.failure))
        if leadership is None:
            raise StorageError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"{self.topic}-{self.partition} is not led by this broker",
            )
        if required_acks == ACKS_ALL:
            leadership.check_enough_replicas()
        try:
            if header is None:
                result = self.log.append_as_leader(records, self.leader_epoch, from_client=from_client)
            else:
                assert isinstance(records, memoryview)
                result = self.log.append_batch(records, header, self.leader_epoch, from_client, inspected)
        except StorageError as error:
            if error.error == ErrorCode.KAFKA_STORAGE_ERROR:
                leadership.append_failed()
            raise
        leadership.appended(result, len(records))
        return result

    def when_committed(self, end_offset: int, call: Callable[[ErrorCode], object]) -> None:
        """`call(error)` once, maybe at once: NONE when everything below `end_offset` is committed
        (NOT_ENOUGH_REPLICAS_AFTER_APPEND when the ISR is too small by then), NOT_LEADER_OR_FOLLOWER when this
        broker stops leading before, KAFKA_STORAGE_ERROR when the disk can't keep it."""
        leadership = self.leadership
        if leadership is not None:
            leadership.when_committed(end_offset, call)
        elif not self._alone:
            call(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self.log.high_watermark >= end_offset:
            call(ErrorCode.NONE)
        else:
            self.log.when_synced(
                end_offset,
                lambda failure: call(ErrorCode.NONE if failure is None else ErrorCode.KAFKA_STORAGE_ERROR),
            )

    # -- replication

    @property
    def is_caught_up(self) -> bool:
        """As a follower: whether everything is here that was committed as of the leader's last answer."""
        return UNKNOWN < self.leader_high_watermark <= self.log.log_end_offset

    def set_follower_high_watermark(self, offset: int, byte_count: int = 1) -> None:
        """As a follower: the leader says that everything below `offset` is committed, which is `byte_count` bytes
        more, or about that many. What is not here yet counts when it comes."""
        self.leader_high_watermark = offset
        stable_offset = self.log.last_stable_offset if self.fetch_waiters else -1
        if self.log.set_high_watermark(offset) and self.fetch_waiters:
            self.wake(byte_count, stable_offset)

    def follower_fetched(
        self, replica_id: int, broker_epoch: int, fetch_offset: int, follower_log_start_offset: int
    ) -> ErrorCode:
        """Record that a follower has everything below `fetch_offset`; before its fetch is read. Returns
        NOT_LEADER_OR_FOLLOWER when this is not the leader, or the follower is of an older broker epoch;
        UNKNOWN_LEADER_EPOCH when it is no replica in the metadata that has arrived here."""
        leadership = self.leadership
        replica = leadership.replicas.get(replica_id) if leadership is not None else None
        if leadership is None or replica is None:
            return ErrorCode.UNKNOWN_LEADER_EPOCH if self.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
        if leadership.follower_fetched(replica, broker_epoch, fetch_offset, follower_log_start_offset):
            return ErrorCode.NONE
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    @property
    def low_watermark(self) -> int:
        """As the leader: the smallest log start offset of the replicas that are alive."""
        return self.log.log_start_offset if self.leadership is None else self.leadership.low_watermark

    def when_deleted(self, offset: int, call: Callable[[ErrorCode], object]) -> None:
        """`call(error)` once, maybe at once: NONE when the low watermark has reached `offset`, NOT_LEADER_OR_FOLLOWER when
        this broker stops leading before."""
        if self.leadership is not None:
            self.leadership.when_deleted(offset, call)
        else:
            call(ErrorCode.NONE if self.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER)

    @property
    def isr(self) -> list[int]:
        """The in-sync replicas, as far as is known here."""
        return self.leadership.isr if self.leadership is not None else self.state.isr

    @property
    def knows_high_watermark(self) -> bool:
        """False for a new leader whose high watermark has not come to the start of its epoch: what was committed
        before may lie beyond it (KIP-207)."""
        leadership = self.leadership
        return leadership is None or self.log.high_watermark >= leadership.epoch_start_offset

    # -- leader epochs

    def epoch_end_offset(self, leader_epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest epoch up to `leader_epoch`; (-1, -1) when there is none.

        The log knows an epoch from its first batch on, but a leader's epoch starts when it becomes the leader.
        """
        if leader_epoch == self.leader_epoch and self.is_leader:
            return leader_epoch, self.log.log_end_offset
        return self.log.epoch_end_offset(leader_epoch)

    def start_epoch(self) -> int:
        """The leader epoch of the first offset, -1 when unknown."""
        log = self.log
        if log.log_start_offset == log.log_end_offset and self.is_leader:
            return self.leader_epoch
        return log.epoch_for_offset(log.log_start_offset)

    def check_leader_epoch(self, current_leader_epoch: int) -> ErrorCode:
        """Compare the client's leader epoch (KIP-320) with the partition's; -1: the client has none.

        KAFKA_STORAGE_ERROR when the log directory is offline.
        """
        if self.log.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if current_leader_epoch == -1 or current_leader_epoch == self.leader_epoch:
            return ErrorCode.NONE
        if current_leader_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH
