"""The records of __share_group_state, as Kafka 4.3 writes them.

Key type 0 is a snapshot of a share partition's state, or null when it is deleted; type 1 an update, which is merged into the
state behind the last snapshot. Both are keyed by group, topic id and partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from barnabas.broker.coordinator import record_encoding
from barnabas.broker.coordinator.record_encoding import UnknownRecord, decode_key, decode_value, record_type
from barnabas.broker.share_coordinator.state import (
    SharePartitionKey,
    ShareRecord,
    ShareState,
    Snapshot,
    Update,
    snapshot_of,
)
from barnabas.broker.share_coordinator.state_batches import Batches, StateBatch, merged
from barnabas.wire.messages import share_group_state
from barnabas.wire.messages.share_group_state import (
    SHARE_SNAPSHOT_KEY,
    SHARE_SNAPSHOT_VALUE,
    SHARE_UPDATE_KEY,
    SHARE_UPDATE_VALUE,
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
    ShareUpdateValueStateBatch,
)
from barnabas.wire.records import Record, build_batch

SHARE_SNAPSHOT: Final = 0
SHARE_UPDATE: Final = 1


def encode_batch(records: Sequence[ShareRecord], now_ms: int) -> bytes:
    """One record batch, uncompressed, base offset 0. EncodeError for a group id that is too long."""
    return build_batch([Record(index, now_ms, *encode_record(each)) for index, each in enumerate(records)])


def encode_record(record: ShareRecord) -> tuple[bytes, bytes | None]:
    """(key, value)."""
    if isinstance(record, Update):
        update_key = ShareUpdateKey(*record.key)
        return (
            record_encoding.encode_key(SHARE_UPDATE, SHARE_UPDATE_KEY, update_key),
            record_encoding.encode_value(0, SHARE_UPDATE_VALUE, _update_value(record)),
        )
    key = record_encoding.encode_key(SHARE_SNAPSHOT, SHARE_SNAPSHOT_KEY, ShareSnapshotKey(*record.key))
    if record.state is None:
        return key, None
    return key, record_encoding.encode_value(0, SHARE_SNAPSHOT_VALUE, _snapshot_value(record.state))


def _update_value(record: Update) -> ShareUpdateValue:
    return ShareUpdateValue(
        snapshot_epoch=record.snapshot_epoch,
        leader_epoch=record.leader_epoch,
        start_offset=record.start_offset,
        delivery_complete_count=record.delivery_complete_count,
        state_batches=[
            ShareUpdateValueStateBatch(
                each.first_offset, each.last_offset, each.delivery_state, each.delivery_count
            )
            for each in record.batches
        ],
    )


def _snapshot_value(state: ShareState) -> ShareSnapshotValue:
    return ShareSnapshotValue(
        snapshot_epoch=state.snapshot_epoch,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
        create_timestamp=state.create_time_ms,
        write_timestamp=state.write_time_ms,
        state_batches=[
            share_group_state.StateBatch(
                each.first_offset, each.last_offset, each.delivery_state, each.delivery_count
            )
            for each in state.batches
        ],
    )


def decode_record(key: bytes | None, value: bytes | None) -> ShareRecord:
    """UnknownRecord for other types, later versions and damaged records."""
    found = record_type(key)
    if found == SHARE_SNAPSHOT:
        named = decode_key(SHARE_SNAPSHOT_KEY, key)
        share_key = SharePartitionKey(named.group_id, named.topic_id, named.partition)
        if value is None:
            return Snapshot(share_key, None)
        snapshot = decode_value(SHARE_SNAPSHOT_VALUE, value)
        return Snapshot(
            share_key,
            snapshot_of(
                snapshot.snapshot_epoch,
                snapshot.state_epoch,
                snapshot.leader_epoch,
                snapshot.start_offset,
                snapshot.delivery_complete_count,
                _batches(snapshot.start_offset, snapshot.state_batches),
                snapshot.create_timestamp,
                snapshot.write_timestamp,
            ),
        )
    if found != SHARE_UPDATE or value is None:
        raise UnknownRecord(f"type {found}" if value is not None else f"type {found} without a value")
    updated = decode_key(SHARE_UPDATE_KEY, key)
    update = decode_value(SHARE_UPDATE_VALUE, value)
    return Update(
        SharePartitionKey(updated.group_id, updated.topic_id, updated.partition),
        update.snapshot_epoch,
        update.leader_epoch,
        update.start_offset,
        update.delivery_complete_count,
        _batches(update.start_offset, update.state_batches),
    )


def _batches(
    start_offset: int, batches: Sequence[share_group_state.StateBatch | ShareUpdateValueStateBatch]
) -> Batches:
    return merged(
        start_offset,
        [
            StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
            for each in batches
        ],
    )
