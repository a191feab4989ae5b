"""The records of __consumer_offsets, as Kafka 4.3 writes them.

Written: OffsetCommit keys 1 with values 4 (1 when the client gave a retention time), GroupMetadata keys 2 with values 3. Read:
every version of both. The records.py of consumer/, share/ and streams/ have those of the modern groups; of others the types are
reported as unknown.
Source: OffsetCommitKey/Value.json, GroupMetadataKey/Value.json of the group coordinator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.broker.coordinator.pending_writes import PendingWrite
from barnabas.broker.coordinator.record_encoding import (
    UnknownRecord,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    record_type,
)
from barnabas.broker.groups.consumer import records as consumer_records
from barnabas.broker.groups.modern.group import ModernGroupRecord
from barnabas.broker.groups.offsets import CommittedOffset, Key
from barnabas.broker.groups.share import records as share_records
from barnabas.broker.groups.streams import records as streams_records
from barnabas.wire.messages.consumer_offsets import (
    GROUP_METADATA_KEY,
    GROUP_METADATA_VALUE,
    OFFSET_COMMIT_KEY,
    OFFSET_COMMIT_VALUE,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from barnabas.wire.records import Record, build_batch

if TYPE_CHECKING:
    from barnabas.broker.groups.group import ClassicGroup

OFFSET_COMMIT_TYPES: Final = (0, 1)  # 0 by brokers before 0.9; the fields of the key are the same
OFFSET_COMMIT_TYPE: Final = 1
GROUP_METADATA_TYPE: Final = 2
OFFSET_COMMIT_VALUE_VERSION: Final = 4
OFFSET_COMMIT_VALUE_WITH_EXPIRY_VERSION: Final = 1  # the only one with an expire timestamp
GROUP_METADATA_VALUE_VERSION: Final = 3
_CODECS_BY_KEY: Final = {
    key: codec
    for codec in (consumer_records.CODEC, share_records.CODEC, streams_records.CODEC)
    for key in codec.keys
}


class OffsetWritten(msgspec.Struct, frozen=True):
    """A position was committed, or (None) removed."""

    key: Key
    value: CommittedOffset | None


class PendingOffsetWritten(msgspec.Struct, frozen=True):
    """A position was written inside a transaction that has not ended."""

    key: Key
    write: PendingWrite[CommittedOffset]


class TransactionEnded(msgspec.Struct, frozen=True):
    """A marker, which ends the producer's transaction."""

    producer_id: int
    commit: bool


class GroupWritten(msgspec.Struct, frozen=True):
    group_id: str
    value: GroupMetadataValue


class GroupTombstone(msgspec.Struct, frozen=True):
    group_id: str


GroupRecord = (
    OffsetWritten
    | PendingOffsetWritten
    | TransactionEnded
    | GroupWritten
    | GroupTombstone
    | ModernGroupRecord
)


def group_metadata_record(group: ClassicGroup, assignments: dict[str, bytes]) -> GroupWritten:
    """The group in its present state, each member with its assignment."""
    members = [
        MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.subscription(group.protocol_name or ""),
            assignment=assignments[member.member_id],
        )
        for member in group.members.values()
    ]
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation_id,
        protocol=group.protocol_name,
        leader=group.leader_id,
        current_state_timestamp=-1 if group.state_timestamp is None else group.state_timestamp,
        members=members,
    )
    return GroupWritten(group.group_id, value)


def encode_batch(records: Sequence[GroupRecord], now_ms: int) -> bytes:
    """One record batch, uncompressed, base offset 0."""
    return build_batch(_encode_records(records, now_ms))


def encode_transactional_batch(
    records: Sequence[PendingOffsetWritten], now_ms: int, producer_id: int, producer_epoch: int
) -> bytes:
    """As `encode_batch`, as part of the producer's transaction. Like Kafka's it has no sequence number."""
    return build_batch(
        _encode_records(records, now_ms),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
    )


def _encode_records(records: Sequence[GroupRecord], now_ms: int) -> list[Record]:
    return [Record(index, now_ms, *encode_record(each)) for index, each in enumerate(records)]


def encode_record(record: GroupRecord) -> tuple[bytes, bytes | None]:
    """(key, value) bytes."""
    assert not isinstance(record, TransactionEnded), "a partition appends its markers itself"
    if isinstance(record, OffsetWritten | PendingOffsetWritten):
        group_id, topic, partition = record.key
        key = OffsetCommitKey(group=group_id, topic=topic, partition=partition)
        value = record.value if isinstance(record, OffsetWritten) else record.write.value
        return encode_key(OFFSET_COMMIT_TYPE, OFFSET_COMMIT_KEY, key), _encode_offset(value)
    if isinstance(record, ModernGroupRecord):
        return _CODECS_BY_KEY[record.key].encode(record)
    assert isinstance(record, GroupWritten | GroupTombstone)
    key_bytes = encode_key(GROUP_METADATA_TYPE, GROUP_METADATA_KEY, GroupMetadataKey(group=record.group_id))
    if isinstance(record, GroupTombstone):
        return key_bytes, None
    return key_bytes, encode_value(GROUP_METADATA_VALUE_VERSION, GROUP_METADATA_VALUE, record.value)


def _encode_offset(value: CommittedOffset | None) -> bytes | None:
    if value is None:
        return None
    message = OffsetCommitValue(
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        commit_timestamp=value.commit_timestamp,
        expire_timestamp=value.expire_timestamp,
        topic_id=value.topic_id,
    )
    version = OFFSET_COMMIT_VALUE_VERSION
    if value.expire_timestamp != -1:
        version = OFFSET_COMMIT_VALUE_WITH_EXPIRY_VERSION
    return encode_value(version, OFFSET_COMMIT_VALUE, message)


def decode_record(key: bytes | None, value: bytes | None) -> GroupRecord:
    """Decode a record. UnknownRecord for other types, newer versions and damaged records."""
    found = record_type(key)
    if found in OFFSET_COMMIT_TYPES:
        offset_key = decode_key(OFFSET_COMMIT_KEY, key)
        position = (offset_key.group, offset_key.topic, offset_key.partition)
        if value is None:
            return OffsetWritten(position, None)
        return OffsetWritten(position, _offset_of(decode_value(OFFSET_COMMIT_VALUE, value)))
    if found == GROUP_METADATA_TYPE:
        group_id = decode_key(GROUP_METADATA_KEY, key).group
        if value is None:
            return GroupTombstone(group_id)
        return GroupWritten(group_id, decode_value(GROUP_METADATA_VALUE, value))
    if found in _CODECS_BY_KEY:
        return _CODECS_BY_KEY[found].decode(found, key, value)
    raise UnknownRecord(f"key version {found}")


def _offset_of(value: OffsetCommitValue) -> CommittedOffset:
    return CommittedOffset(
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        commit_timestamp=value.commit_timestamp,
        expire_timestamp=value.expire_timestamp,
        topic_id=value.topic_id,
    )
