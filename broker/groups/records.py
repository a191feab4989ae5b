"""The records of __consumer_offsets, as Kafka 4.3 writes them.

A key is a version (int16, which names the kind of record) and its fields; a value is a version and its fields, or null, which
removes the key. Written: OffsetCommit keys 1 with values 4 (1 when the client gave a retention time), GroupMetadata keys 2
with values 3. Read: every version of both; other kinds of record (consumer and share groups) are reported as unknown.
Source: OffsetCommitKey/Value.json, GroupMetadataKey/Value.json of the group coordinator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from barnabas.broker.coordinator.pending_writes import PendingWrite
from barnabas.broker.groups.offsets import CommittedOffset, Key
from barnabas.wire.message_type import MessageType
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
from barnabas.wire.primitives import DecodeError
from barnabas.wire.records import Record, build_batch

if TYPE_CHECKING:
    from barnabas.broker.groups.group import ClassicGroup

OFFSET_COMMIT_KINDS: Final = (0, 1)  # 0 by brokers before 0.9; the fields of the key are the same
OFFSET_COMMIT_KIND: Final = 1
GROUP_METADATA_KIND: Final = 2
OFFSET_COMMIT_VALUE_VERSION: Final = 4
OFFSET_COMMIT_VALUE_WITH_EXPIRY_VERSION: Final = 1  # the only one with an expire timestamp
GROUP_METADATA_VALUE_VERSION: Final = 3

M = TypeVar("M", bound=msgspec.Struct)


class UnknownRecord(ValueError):
    """A record this broker can't read; it is skipped, as Kafka does."""


class UnknownValue(UnknownRecord):
    """The key is a known one: its earlier value counts."""


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


GroupRecord = OffsetWritten | PendingOffsetWritten | TransactionEnded | GroupWritten | GroupTombstone


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
        return _encode(OFFSET_COMMIT_KIND, OFFSET_COMMIT_KEY, 0, key), _encode_offset(value)
    group_key = GroupMetadataKey(group=record.group_id)
    key_bytes = _encode(GROUP_METADATA_KIND, GROUP_METADATA_KEY, 0, group_key)
    if isinstance(record, GroupTombstone):
        return key_bytes, None
    version = GROUP_METADATA_VALUE_VERSION
    return key_bytes, _encode(version, GROUP_METADATA_VALUE, version, record.value)


def _encode(prefix: int, message_type: MessageType[M], version: int, message: M) -> bytes:
    parts = message_type.encode(version, message)  # all of them bytes: these messages hold no records
    return prefix.to_bytes(2, "big") + b"".join(part for part in parts if isinstance(part, bytes))


def _decode_value(message_type: MessageType[M], data: bytes) -> M:
    version = int.from_bytes(data[:2], "big", signed=True)
    if len(data) < 2 or not message_type.min_version <= version <= message_type.max_version:
        raise UnknownValue(f"{message_type.name} version {version}")
    try:
        return message_type.decode(version, data, 2)[0]
    except DecodeError as error:
        raise UnknownValue(str(error)) from None


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
    return _encode(version, OFFSET_COMMIT_VALUE, version, message)


def decode_record(key: bytes | None, value: bytes | None) -> GroupRecord:
    """Decode a record. UnknownRecord for other kinds, newer versions and damaged records."""
    if key is None or len(key) < 2:
        raise UnknownRecord("a record without a key")
    kind = int.from_bytes(key[:2], "big")
    try:
        if kind in OFFSET_COMMIT_KINDS:
            offset_key = OFFSET_COMMIT_KEY.decode(0, key, 2)[0]
            position = (offset_key.group, offset_key.topic, offset_key.partition)
            if value is None:
                return OffsetWritten(position, None)
            return OffsetWritten(position, _offset_of(_decode_value(OFFSET_COMMIT_VALUE, value)))
        if kind == GROUP_METADATA_KIND:
            group_id = GROUP_METADATA_KEY.decode(0, key, 2)[0].group
            if value is None:
                return GroupTombstone(group_id)
            return GroupWritten(group_id, _decode_value(GROUP_METADATA_VALUE, value))
    except DecodeError as error:
        raise UnknownRecord(str(error)) from None
    raise UnknownRecord(f"key version {kind}")


def _offset_of(value: OffsetCommitValue) -> CommittedOffset:
    return CommittedOffset(
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        commit_timestamp=value.commit_timestamp,
        expire_timestamp=value.expire_timestamp,
        topic_id=value.topic_id,
    )
