"""The last message of a stream that a partition holds, read from its log backwards.

A record made from a stream's message has the headers nats.stream, nats.seq and nats.timestamp, and such records are appended
in the stream's order. So the last one tells where to continue, whichever leader appended it. It counts though it may not be
committed yet: this leader will commit it.

Producers may write records with the same headers, for instance when they copy a topic. So only batches with a flag that
producers can't set count. A log may have lost these flags (Apache Kafka's cleaner has rewritten it) or be older than they
are: while a log has no flagged batch of the stream, batches without a producer id count, as ingress writes them.

The log is not read below `floor`, where a checkpoint covers it; only a flagged batch is searched for there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.nats.records.log_scan import find_last
from barnabas.nats.records.parts import SEQUENCE_HEADER, STREAM_HEADER, TIMESTAMP_HEADER
from barnabas.wire.record_batch import BatchHeader

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.runtime.interface import Runtime
    from barnabas.wire.records import Record

_STREAM_NAME: Final = STREAM_HEADER.decode()
_SEQUENCE_NAME: Final = SEQUENCE_HEADER.decode()
_TIMESTAMP_NAME: Final = TIMESTAMP_HEADER.decode()


class LogPosition(msgspec.Struct, frozen=True):
    """The last record of a stream in a partition: its sequence in the stream, when the stream stored it, its offset."""

    sequence: int
    timestamp_ns: int
    offset: int


async def find_position(
    runtime: Runtime, partition: Partition, stream: str, floor: int = 0
) -> LogPosition | None:
    """The last message of the stream that the partition holds at or above `floor`; None without one. StorageError: the log
    can't be read, or the partition is not led here any more."""
    name = stream.encode()

    def read(record: Record) -> LogPosition | None:
        return read_position(record, name)

    flagged = await find_last(runtime, partition, name, read, floor, counts=_is_flagged)
    if flagged is not None:
        return flagged
    unflagged = await find_last(runtime, partition, name, read, floor, counts=_may_have_lost_its_flag)
    if unflagged is None:
        return None
    below = await find_last(runtime, partition, name, read, end=floor, counts=_is_flagged)
    return unflagged if below is None else None


def _is_flagged(header: BatchHeader) -> bool:
    return header.is_from_extension


def _may_have_lost_its_flag(header: BatchHeader) -> bool:
    return not header.is_from_extension and not header.has_producer_id


def read_position(record: Record, stream: bytes) -> LogPosition | None:
    """The record's position in this stream; None when it is not a message of it.

    Ingress writes its headers in front of the message's own, so they count only there: a message's own headers can't claim
    another position.
    """
    headers = record.headers
    if (
        len(headers) < 4
        or headers[1] != (_STREAM_NAME, stream)
        or headers[2][0] != _SEQUENCE_NAME
        or headers[3][0] != _TIMESTAMP_NAME
    ):
        return None
    sequence, timestamp = headers[2][1], headers[3][1]
    if sequence is None or timestamp is None or not _is_number(sequence) or not _is_number(timestamp):
        return None
    return LogPosition(int(sequence), int(timestamp), record.offset)


def _is_number(text: bytes) -> bool:
    return 0 < len(text) <= 20 and text.isdigit()
