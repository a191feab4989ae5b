"""The records of __transaction_state, as Kafka 4.3 writes them.

A key is version 0 and the transactional id; a value is a version and the fields of TransactionLogValue, or null when the id is
removed. Version 1 adds the tagged fields of KIP-890; it is written where the finalized transaction.version is 1 or higher, and
for a transaction that needs those fields. Kafka fails to write such a transaction while transaction.version is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from barnabas.broker.coordinator import record_encoding
from barnabas.broker.coordinator.record_encoding import UnknownRecord, decode_key, decode_value, record_type
from barnabas.broker.transactions.state import TransactionState
from barnabas.broker.transactions.transaction import Transition, by_topic
from barnabas.wire.messages.transaction_log import (
    TRANSACTION_LOG_KEY,
    TRANSACTION_LOG_VALUE,
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from barnabas.wire.records import Record, build_batch

TRANSACTION_LOG_TYPE: Final = 0

# Read from the log, but not states that an id can be in there.
_NEVER_WRITTEN: Final = frozenset({TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE})


class TransactionRecord(msgspec.Struct, frozen=True):
    """The data of a transactional id, or (None) its removal."""

    transactional_id: str
    data: Transition | None


def encode_batch(records: Sequence[TransactionRecord], now_ms: int, transaction_version: int) -> bytes:
    """One record batch, uncompressed, base offset 0."""
    return build_batch(
        [
            Record(
                index, now_ms, encode_key(each.transactional_id), encode_value(each.data, transaction_version)
            )
            for index, each in enumerate(records)
        ]
    )


def encode_key(transactional_id: str) -> bytes:
    """EncodeError for an id that is too long."""
    key = TransactionLogKey(transactional_id=transactional_id)
    return record_encoding.encode_key(TRANSACTION_LOG_TYPE, TRANSACTION_LOG_KEY, key)


def encode_value(data: Transition | None, transaction_version: int) -> bytes | None:
    """`transaction_version` is the finalized one."""
    if data is None:
        return None
    value = TransactionLogValue(
        producer_id=data.producer_id,
        producer_epoch=data.producer_epoch,
        transaction_timeout_ms=data.timeout_ms,
        transaction_status=data.state,
        transaction_partitions=None
        if data.state == TransactionState.EMPTY
        else [
            PartitionsSchema(topic=topic, partition_ids=ids)
            for topic, ids in by_topic(data.partitions).items()
        ],
        transaction_last_update_timestamp_ms=data.last_update_timestamp,
        transaction_start_timestamp_ms=data.start_timestamp,
    )
    version = int(transaction_version >= 1 or data.client_transaction_version > 0)
    if version:
        value.previous_producer_id = data.previous_producer_id
        value.next_producer_id = data.next_producer_id
        value.client_transaction_version = data.client_transaction_version
    return record_encoding.encode_value(version, TRANSACTION_LOG_VALUE, value)


def decode_record(key: bytes | None, value: bytes | None) -> TransactionRecord:
    """UnknownRecord for later versions and damaged records."""
    found = record_type(key)
    if found != TRANSACTION_LOG_TYPE:
        raise UnknownRecord(f"key version {found}")
    transactional_id = decode_key(TRANSACTION_LOG_KEY, key).transactional_id
    if value is None:
        return TransactionRecord(transactional_id, None)
    return TransactionRecord(transactional_id, _data_of(decode_value(TRANSACTION_LOG_VALUE, value)))


def _data_of(value: TransactionLogValue) -> Transition:
    try:
        state = TransactionState(value.transaction_status)
    except ValueError as error:
        raise UnknownRecord(str(error)) from None
    if state in _NEVER_WRITTEN:
        raise UnknownRecord(f"state {state.label}")
    partitions = () if state == TransactionState.EMPTY else value.transaction_partitions or ()
    return Transition(
        producer_id=value.producer_id,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=state,
        partitions=frozenset((each.topic, index) for each in partitions for index in each.partition_ids),
        start_timestamp=value.transaction_start_timestamp_ms,
        last_update_timestamp=value.transaction_last_update_timestamp_ms,
        client_transaction_version=value.client_transaction_version,
    )
