"""The delivery state of one share partition, as the share coordinator keeps it: what requests decide, and how records change it.

Decisions are those of Kafka 4.3: an epoch of -1 in a request is not compared, a write changes no epoch, a read with a higher
leader epoch records it, which fences the leaders of earlier epochs. Unlike in Kafka the start offset never goes back, and what a
state has is bounded in number: in Kafka, by what fits into a record of its topic. Both answer UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

import msgspec

from barnabas.broker.share_coordinator.state_batches import NO_START, Batches, StateBatch, merged, update
from barnabas.controller.metadata.decision import ApiError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.uuids import uuid_from_string, uuid_to_string

NO_EPOCH: Final = -1
UNKNOWN_COUNT: Final = -1  # of offsets whose delivery is complete
# Batches of one write, and of a state. A leader has no more records in flight than group.share.max.partition.max.record.locks,
# which is 10,000 at most, and the rest of a batch; it splits its writes.
WRITTEN_MAX: Final = 5_000
KEPT_MAX: Final = 12_000


class SharePartitionKey(NamedTuple):
    """A partition as a share group reads it."""

    group_id: str
    topic_id: bytes
    partition: int

    @property
    def text(self) -> str:
        """The key of its coordinator."""
        return f"{self.group_id}:{uuid_to_string(self.topic_id)}:{self.partition}"

    @classmethod
    def parse(cls, text: str) -> SharePartitionKey:
        """The inverse of `text`; group ids may have colons (KAFKA-20183). ValueError."""
        group_id, topic_id, partition = text.rsplit(":", 2)
        if not group_id:
            raise ValueError(f"{text!r} is no key of a share partition")
        return cls(group_id, uuid_from_string(topic_id), int(partition))


class ShareState(msgspec.Struct, frozen=True):
    """The state as of the last record. Times in ms since the epoch."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    create_time_ms: int
    write_time_ms: int
    batches: Batches = ()
    updates: int = 0  # since the last snapshot
    # The highest ones that were ever recorded: lower ones are fenced.
    highest_state_epoch: int = 0
    highest_leader_epoch: int = 0


class Snapshot(msgspec.Struct, frozen=True):
    """A record with the whole state; None when it is deleted."""

    key: SharePartitionKey
    state: ShareState | None


class Update(msgspec.Struct, frozen=True):
    """A record with changes of the state."""

    key: SharePartitionKey
    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: Batches


ShareRecord = Snapshot | Update


def refusal(error: ErrorCode) -> ApiError:
    return ApiError(error, error.message)


WRITE_UNINITIALIZED: Final = ApiError(
    ErrorCode.INVALID_REQUEST, "Write operation on uninitialized share partition not allowed."
)
READ_UNINITIALIZED: Final = ApiError(
    ErrorCode.INVALID_REQUEST, "Read operation on uninitialized share partition not allowed."
)
NEGATIVE_PARTITION: Final = ApiError(
    ErrorCode.INVALID_REQUEST, "The partition id cannot be a negative number."
)
TOO_MANY_WRITTEN: Final = ApiError(
    ErrorCode.UNKNOWN_SERVER_ERROR, f"A write has no more than {WRITTEN_MAX} state batches."
)
TOO_MANY_KEPT: Final = ApiError(
    ErrorCode.UNKNOWN_SERVER_ERROR,
    f"The state of a share partition has no more than {KEPT_MAX} state batches.",
)


# -- records


def apply(state: ShareState | None, record: ShareRecord) -> ShareState | None:
    """The state after the record."""
    if isinstance(record, Snapshot):
        new = record.state
        if new is None or state is None:
            return new
        return msgspec.structs.replace(
            new,
            highest_state_epoch=max(new.state_epoch, state.highest_state_epoch),
            highest_leader_epoch=max(new.leader_epoch, state.highest_leader_epoch),
        )
    if state is None:  # its snapshot was deleted from the log
        return None
    start = max(record.start_offset, state.start_offset)
    leader_epoch = state.leader_epoch if record.leader_epoch == NO_EPOCH else record.leader_epoch
    return msgspec.structs.replace(
        state,
        leader_epoch=leader_epoch,
        highest_leader_epoch=max(leader_epoch, state.highest_leader_epoch),
        start_offset=start,
        delivery_complete_count=record.delivery_complete_count,
        batches=update(start, state.batches, record.batches),
        updates=state.updates + 1,
    )


def snapshot_of(
    snapshot_epoch: int,
    state_epoch: int,
    leader_epoch: int,
    start_offset: int,
    delivery_complete_count: int,
    batches: Batches,
    create_time_ms: int,
    write_time_ms: int,
) -> ShareState:
    """The state as a snapshot record has it."""
    return ShareState(
        snapshot_epoch,
        state_epoch,
        leader_epoch,
        start_offset,
        delivery_complete_count,
        create_time_ms,
        write_time_ms,
        batches,
        0,
        state_epoch,
        leader_epoch,
    )


# -- decisions


def initialize(
    key: SharePartitionKey, state: ShareState | None, state_epoch: int, start_offset: int, now_ms: int
) -> ShareRecord | ApiError:
    """InitializeShareGroupState: the new state replaces the old one."""
    if state is not None and state_epoch != NO_EPOCH and state_epoch < state.highest_state_epoch:
        return refusal(ErrorCode.FENCED_STATE_EPOCH)
    complete_count = UNKNOWN_COUNT if start_offset == NO_START else 0
    snapshot_epoch = 0 if state is None else state.snapshot_epoch + 1
    return Snapshot(
        key,
        snapshot_of(snapshot_epoch, state_epoch, 0, start_offset, complete_count, (), now_ms, now_ms),
    )


def read(
    key: SharePartitionKey,
    state: ShareState | None,
    leader_epoch: int,
    updates_per_snapshot: int,
    now_ms: int,
) -> ShareRecord | ApiError | None:
    """ReadShareGroupState: None when there is nothing to record."""
    if state is None:
        return READ_UNINITIALIZED
    if leader_epoch == NO_EPOCH or leader_epoch == state.highest_leader_epoch:
        return None
    if leader_epoch < state.highest_leader_epoch:
        return refusal(ErrorCode.FENCED_LEADER_EPOCH)
    return _record(
        key,
        state,
        leader_epoch,
        state.start_offset,
        state.delivery_complete_count,
        (),
        updates_per_snapshot,
        now_ms,
    )


def write(
    key: SharePartitionKey,
    state: ShareState | None,
    state_epoch: int,
    leader_epoch: int,
    start_offset: int,
    delivery_complete_count: int,
    batches: Collection[StateBatch],
    updates_per_snapshot: int,
    now_ms: int,
) -> ShareRecord | ApiError:
    """WriteShareGroupState."""
    if state is None:
        return WRITE_UNINITIALIZED
    if leader_epoch != NO_EPOCH and leader_epoch < state.highest_leader_epoch:
        return refusal(ErrorCode.FENCED_LEADER_EPOCH)
    if state_epoch != NO_EPOCH and state_epoch < state.highest_state_epoch:
        return refusal(ErrorCode.FENCED_STATE_EPOCH)
    decision = _record(
        key,
        state,
        state.leader_epoch,
        start_offset,
        delivery_complete_count,
        batches,
        updates_per_snapshot,
        now_ms,
    )
    if 2 * (len(state.batches) + len(batches)) <= KEPT_MAX:  # as many borders
        return decision
    after = apply(state, decision)
    is_larger = after is not None and len(after.batches) > max(KEPT_MAX, len(state.batches))
    return TOO_MANY_KEPT if is_larger else decision


def _record(
    key: SharePartitionKey,
    state: ShareState,
    leader_epoch: int,
    start_offset: int,
    delivery_complete_count: int,
    batches: Collection[StateBatch],
    updates_per_snapshot: int,
    now_ms: int,
) -> ShareRecord:
    """An update, or a snapshot when there are enough updates behind the last one."""
    start = max(start_offset, state.start_offset)
    if state.updates < updates_per_snapshot:
        return Update(
            key,
            state.snapshot_epoch,
            leader_epoch,
            start_offset if start_offset == NO_START else start,
            delivery_complete_count,
            merged(start, batches),
        )
    return Snapshot(
        key,
        snapshot_of(
            state.snapshot_epoch + 1,
            state.state_epoch,
            leader_epoch,
            start,
            delivery_complete_count,
            update(start, state.batches, merged(start, batches)),
            now_ms,
            now_ms,
        ),
    )


def snapshot_again(key: SharePartitionKey, state: ShareState, now_ms: int) -> Snapshot:
    """The same state as a new snapshot, so that the records before it can be deleted."""
    return Snapshot(
        key,
        snapshot_of(
            state.snapshot_epoch + 1,
            state.state_epoch,
            state.leader_epoch,
            state.start_offset,
            state.delivery_complete_count,
            state.batches,
            state.create_time_ms,
            now_ms,
        ),
    )
