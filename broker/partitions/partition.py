"""A partition that this broker hosts: its log, its role, and what consumers may read.

`lead` and `follow` give it the role that the metadata has. With one replica a batch is committed when it is appended, or with
flush.messages when it is synced, which the log does. A leader of several replicas has a PartitionLeadership, which moves the
high watermark. A follower's high watermark is that of its leader's last answer.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.broker.partitions.leadership import PartitionLeadership
from barnabas.broker.partitions.replica import UNKNOWN, LocalReplica
from barnabas.controller.metadata.image import NO_LEADER, PartitionState
from barnabas.storage.errors import StorageError
from barnabas.storage.log.verification import REQUEST_TIMEOUT_MS
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import read_header

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.broker.partitions.alter_partition import AlterPartitionManager
    from barnabas.broker.partitions.isr_rules import IsrRules
    from barnabas.broker.partitions.topic_stats import TopicStats
    from barnabas.storage.log.log import AppendResult, Log
    from barnabas.storage.log.validation import Inspected
    from barnabas.storage.log.verification import Verification
    from barnabas.wire.record_batch import BatchHeader

log = logging.getLogger("barnabas.partitions")

ACKS_ALL: Final = -1
_NO_STATE: Final = PartitionState(replicas=[], isr=[], leader=NO_LEADER, leader_epoch=-1, partition_epoch=-1)


class ReplicaObserver(Protocol):
    """Observes the log of a follower: what replication appends, and what it cuts off."""

    def replicated(self, batches: memoryview) -> None:
        """These whole batches have been appended. Their buffer is reused when this returns."""
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

    def __init__(
        self, topic: str, topic_id: bytes, partition: int, log: Log, stats: TopicStats | None = None
    ) -> None:
        """It has no role yet: see `lead` and `follow`."""
        super().__init__(topic, topic_id, partition, log, stats)
        self.observer: ReplicaObserver | None = None  # of what is fetched from the leader
        self.state = _NO_STATE  # in the metadata, as of the last change that was applied here
        self.leader_id = NO_LEADER
        self.leader_high_watermark = UNKNOWN  # as a follower: of the leader's last answer
        self.is_leader = False
        self.leadership: PartitionLeadership | None = None  # where it is led here and has other replicas
        self._alone = False  # whether it is led here and has no other replica

    # -- roles

    def lead(self, state: PartitionState, rules: IsrRules, proposals: AlterPartitionManager) -> None:
        """This broker leads, in this state of the metadata. A state older than the present one is ignored."""
        if state.partition_epoch < self.partition_epoch:
            return
        is_new_epoch = not self.is_leader or state.leader_epoch > self.leader_epoch
        if not is_new_epoch and state.partition_epoch == self.partition_epoch:
            self.state = state  # its own proposal, whose answer arrived before the metadata
            return
        if state.leader_epoch > self.leader_epoch + 1:  # others may have led, and followers cut their logs
            self._end_leadership()
        self._take(state)
        self.is_leader = True
        leadership = self.leadership
        if len(state.replicas) == 1:
            self._alone = True
            self.log.end_replication()
            if leadership is not None:
                self.leadership = None
                for end_offset, call in leadership.end_alone():
                    self.when_committed(end_offset, call)
                if not is_new_epoch:
                    self._show_all()
        else:
            self._alone = False
            self.log.replicate()
            if is_new_epoch:  # so that followers cut records of epochs that this log does not have
                self.log.assign_epoch_start_offset(self.leader_epoch)
            if leadership is None:
                leadership = self.leadership = PartitionLeadership(self, rules, proposals)
            leadership.take(state, is_new_epoch=is_new_epoch)
        if is_new_epoch:
            self.interrupt_waiters()
        elif self.replica_waiters:
            self.interrupt_followers()

    def _show_all(self) -> None:
        """Without other replicas all records are committed: have waiting fetches read them, those too that are being synced."""
        self.interrupt_waiters()
        log = self.log
        if log.high_watermark < log.log_end_offset:
            log.flusher.when_synced(log.log_end_offset, lambda _: self.interrupt_waiters())

    def follow(self, state: PartitionState) -> None:
        """Another broker leads, or none. A state older than the present one is ignored."""
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
        """This broker no longer hosts the partition: it was deleted, or reassigned."""
        self.is_leader = self._alone = False
        self.leader_id = NO_LEADER
        self._end_leadership()
        self.interrupt_waiters()

    def reopened(self, log: Log) -> None:
        """Use another log. The partition has no role until the next `lead` or `follow`."""
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
        verification: Verification | None = None,
    ) -> AppendResult:
        """Append one record batch as the leader, and wake the fetches that wait for it. `header` is the batch's, if it has been
        read already and `records` are a view that ends with the batch. `from_client` False: this broker has built the batch,
        and may set flags that clients may not. The first batch of a transaction brings along the `verification` that
        `begin_verification` has returned.

        Raises storage errors, which carry their ErrorCode, such as NOT_LEADER_OR_FOLLOWER, and NOT_ENOUGH_REPLICAS with
        required_acks -1. With a header also RecordsUnread: append again then, with the result of the inspection as
        `inspected`.

        The batch may be acknowledged when this returns, except: if the result awaits a sync (flush.messages), when
        `log.flusher.when_synced` calls, and consumers do not read it before; with acks -1, if it awaits other replicas
        (`awaits_commit`), when `when_committed` calls.
        """
        leadership = self.leadership
        byte_count = len(records)
        stats = self.stats
        if not self._alone:
            self._check_leadership(leadership, required_acks, byte_count)
        try:
            stable_offset = self.log.last_stable_offset if self.fetch_waiters else -1
            if header is None:
                result = self.log.append_as_leader(
                    records, self.leader_epoch, from_client=from_client, verification=verification
                )
            else:
                assert isinstance(records, memoryview)
                result = self.log.append_batch(
                    records, header, self.leader_epoch, from_client, inspected, verification
                )
        except StorageError as error:
            if error.error == ErrorCode.KAFKA_STORAGE_ERROR and leadership is not None:
                leadership.append_failed()
            stats.refused_append(error.error, byte_count)
            raise
        stats.produce_requests += 1
        stats.bytes_in += byte_count
        self.bytes_in += byte_count
        stats.messages_in += result.last_offset - result.base_offset + 1
        if leadership is not None:
            leadership.appended(result, byte_count)
        elif self.fetch_waiters or result.awaits_sync:
            if result.awaits_sync:
                self.log.flusher.when_synced(
                    result.last_offset + 1, lambda _: self.wake(byte_count, stable_offset)
                )
            else:
                self.wake(byte_count, stable_offset)
        return result

    def _check_leadership(
        self, leadership: PartitionLeadership | None, required_acks: int, byte_count: int
    ) -> None:
        try:
            if leadership is None or self.log.offline:
                raise self._cannot_append()
            if required_acks == ACKS_ALL:
                leadership.check_enough_replicas()
        except StorageError as error:
            self.stats.refused_append(error.error, byte_count)
            raise

    def _cannot_append(self) -> StorageError:
        if self.log.offline:  # it has stopped leading for this reason
            return StorageError(ErrorCode.KAFKA_STORAGE_ERROR, str(self.log.failure))
        return StorageError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"{self.name} is not led by this broker",
        )

    # -- transactions

    def begin_verification(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        *,
        supports_epoch_bump: bool,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> Verification | None:
        """What the first batch of the producer's transaction has to bring along once the transaction coordinator has verified
        that the partition belongs to it; None when the transaction is open here already, so there is nothing to verify.

        `base_sequence` is that of the batch; -1 of one without. `supports_epoch_bump`: the producer uses transaction.version 2.
        `request_timeout_ms`: how long the coordinator's answer may take.
        INVALID_PRODUCER_EPOCH for a fenced producer, NOT_ENOUGH_REPLICAS when too many are being verified,
        NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR.
        """
        if not self.is_leader or self.log.offline:
            raise self._cannot_append()
        return self.log.begin_verification(
            producer_id,
            producer_epoch,
            base_sequence,
            supports_epoch_bump=supports_epoch_bump,
            request_timeout_ms=request_timeout_ms,
        )

    def verification_failed(self, producer_id: int, verification: Verification, error: ErrorCode) -> None:
        """What `begin_verification` has returned was not verified: `error` of the transaction coordinator, or on the way to it."""
        self.log.verification_failed(producer_id, verification, is_final=not error.retriable)

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
        done: Callable[[ErrorCode], object],
    ) -> None:
        """End the producer's transaction, as the leader. `done(error)` once, maybe at once: NONE when the marker is committed.

        Before that it is an error of `append` with acks=all or of `when_committed`; INVALID_PRODUCER_EPOCH or
        TRANSACTION_COORDINATOR_FENCED for a marker that is out of date. A marker without a transaction is appended all the
        same: it raises the producer's epoch.
        """
        try:
            if not self.is_leader or self.log.offline:
                raise self._cannot_append()
            if self.leadership is not None:
                self.leadership.check_enough_replicas()
            marker = memoryview(
                self.log.marker_to_append(
                    producer_id,
                    producer_epoch,
                    commit=commit,
                    coordinator_epoch=coordinator_epoch,
                    transaction_version=transaction_version,
                )
            )
            result = self.append(marker, read_header(marker), ACKS_ALL, from_client=False)
        except StorageError as error:
            log.info("%s: a marker of producer %d was refused: %s", self.name, producer_id, error)
            done(error.error)
            return
        self.when_committed(result.last_offset + 1, done)

    # -- commits

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
            self.log.flusher.when_synced(
                end_offset,
                lambda failure: call(ErrorCode.NONE if failure is None else ErrorCode.KAFKA_STORAGE_ERROR),
            )

    # -- replication

    @property
    def is_caught_up(self) -> bool:
        """As a follower: whether the log has all that was committed as of the leader's last answer."""
        return UNKNOWN < self.leader_high_watermark <= self.log.log_end_offset

    def set_follower_high_watermark(self, offset: int, byte_count: int = 1) -> None:
        """As a follower: everything below `offset` is committed on the leader, about `byte_count` bytes more than before. Records
        that are not here yet are committed when they are appended."""
        self.leader_high_watermark = offset
        stable_offset = self.log.last_stable_offset if self.fetch_waiters else -1
        if self.log.set_high_watermark(offset) and self.fetch_waiters:
            self.wake(byte_count, stable_offset)

    def follower_fetched(
        self, replica_id: int, broker_epoch: int, fetch_offset: int, follower_log_start_offset: int
    ) -> ErrorCode:
        """Record that a follower has everything below `fetch_offset`, before its fetch is read. Returns NOT_LEADER_OR_FOLLOWER
        when this is not the leader, or the follower has an older broker epoch; UNKNOWN_LEADER_EPOCH when it is no replica in
        the metadata of this broker."""
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
        """`call(error)` once, maybe at once: NONE when the low watermark has reached `offset` and a kill of this broker would
        bring no segment back, NOT_LEADER_OR_FOLLOWER when this broker stops leading before."""

        def reached(error: ErrorCode) -> None:
            if error:
                call(error)
            else:
                self.log.when_start_kept(lambda: call(error))

        if self.leadership is not None:
            self.leadership.when_deleted(offset, reached)
        else:
            reached(ErrorCode.NONE if self.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER)

    @property
    def isr(self) -> list[int]:
        """The in-sync replicas, as this broker knows them."""
        return self.leadership.isr if self.leadership is not None else self.state.isr

    @property
    def knows_high_watermark(self) -> bool:
        """False for a new leader whose high watermark has not reached the start of its epoch: records behind it may have been
        committed before (KIP-207)."""
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
        return log.epochs.epoch_for_offset(log.log_start_offset)

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
