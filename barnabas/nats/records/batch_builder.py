"""Builds Kafka record batches (format 2) for one partition from the tails of records.

Tails (records/parts.py) are collected while a piece of socket data is parsed; `finish` makes a batch of all of them: the
bytes before each tail come from tables, one join copies every byte once, and the batch header is written into the result.
Batches are uncompressed, with CreateTime and without a producer id. Those of a stream's messages have a flag
(BatchHeader.is_from_extension), because clients may write records with the same headers.

Timestamps are one for all records (core messages: the time of arrival) or one for each (`add_at`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from barnabas.nats.records.parts import VARINT_COUNT, VARINTS
from barnabas.wire.primitives import varint
from barnabas.wire.record_batch import (
    EXTENSION_FLAG,
    HEADER_SIZE,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    seal_batch,
)

_ROOM: Final = bytes(HEADER_SIZE)
# A record's head is between its length and its tail. This is the head of the i-th record with the base timestamp:
# attributes 0, timestamp delta 0, offset delta i.
_HEADS: Final = tuple(b"\0\0" + delta for delta in VARINTS)


class Batch(msgspec.Struct, gc=False):
    """A batch to append: `header.record_count` of the collected records, from number `first` on. `records` is the whole
    batch, writable, because a log assigns offsets in place."""

    records: memoryview
    header: BatchHeader
    first: int


class TooLarge(msgspec.Struct, gc=False):
    """Collected record number `first`, which alone would make a batch of `size` bytes."""

    first: int
    size: int
    tail: bytes


class BatchBuilder:
    """Collects the records of one partition until `finish`.

    The encoder appends to `tails` directly, so it stays the same list. Either every record has its own timestamp or none
    has.
    """

    __slots__ = ("_attributes", "tails", "timestamps")

    def __init__(self, *, is_bridged: bool = False) -> None:
        """`is_bridged`: the records are messages of a stream."""
        self._attributes = EXTENSION_FLAG if is_bridged else 0
        self.tails: list[bytes] = []
        self.timestamps: list[int] = []

    def __len__(self) -> int:
        return len(self.tails)

    def add(self, tail: bytes) -> int:
        """Adds a record whose timestamp is that of `finish`; returns its number, from 0 after each `finish`."""
        self.tails.append(tail)
        return len(self.tails) - 1

    def add_at(self, tail: bytes, timestamp_ms: int) -> int:
        """As `add`, with the record's own timestamp."""
        self.timestamps.append(timestamp_ms)
        self.tails.append(tail)
        return len(self.tails) - 1

    def finish(self, timestamp_ms: int, size_max: int) -> list[Batch | TooLarge]:
        """Returns all records as batches of at most `size_max` bytes, in their order, and empties the builder. Usually this
        is one batch. `timestamp_ms` is for records without their own."""
        tails = self.tails
        if not tails:
            return []
        timestamps = self.timestamps
        assert not timestamps or len(timestamps) == len(tails), "timestamps for some of the records only"
        if timestamps:
            base = timestamps[0]
            batch = _assemble(tails, _heads_at(timestamps, base), base, max(timestamps), self._attributes)
        else:
            batch = _assemble(tails, _heads(len(tails)), timestamp_ms, timestamp_ms, self._attributes)
        if len(batch.records) <= size_max:
            finished: list[Batch | TooLarge] = [batch]
        else:
            finished = _split(tails, timestamps or [timestamp_ms] * len(tails), size_max, self._attributes)
        tails.clear()
        timestamps.clear()
        return finished


def _heads(count: int) -> Sequence[bytes]:
    if count <= VARINT_COUNT:
        return _HEADS[:count]
    return [*_HEADS, *(_head(0, index) for index in range(VARINT_COUNT, count))]


def _heads_at(timestamps: Sequence[int], base: int) -> Sequence[bytes]:
    if len(timestamps) <= VARINT_COUNT and base <= min(timestamps) and max(timestamps) - base < VARINT_COUNT:
        return [
            head if time == base else b"\0" + VARINTS[time - base] + delta
            for time, head, delta in zip(timestamps, _HEADS, VARINTS, strict=False)
        ]
    return [_head(time - base, index) for index, time in enumerate(timestamps)]


def _head(timestamp_delta: int, offset_delta: int) -> bytes:
    return b"\0" + varint(timestamp_delta) + varint(offset_delta)


def _assemble(
    tails: Sequence[bytes], heads: Sequence[bytes], base: int, timestamp_max: int, attributes: int
) -> Batch:
    """One batch of these heads and tails."""
    try:
        sizes = [VARINTS[len(head) + len(tail)] for head, tail in zip(heads, tails, strict=True)]
    except IndexError:  # one beyond the table
        sizes = [varint(len(head) + len(tail)) for head, tail in zip(heads, tails, strict=True)]
    count = len(tails)
    pieces = [_ROOM] * (3 * count + 1)
    pieces[1::3] = sizes
    pieces[2::3] = heads
    pieces[3::3] = tails
    batch = bytearray().join(pieces)
    header = BatchHeader(
        base_offset=0,
        batch_length=0,
        partition_leader_epoch=NO_LEADER_EPOCH,
        magic=2,
        crc=0,
        attributes=attributes,
        last_offset_delta=count - 1,
        base_timestamp=base,
        max_timestamp=timestamp_max,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        record_count=count,
    )
    seal_batch(batch, header)
    return Batch(memoryview(batch), header, 0)


def _split(
    tails: list[bytes], timestamps: list[int], size_max: int, attributes: int
) -> list[Batch | TooLarge]:
    """As few batches as possible, in the order of the records."""
    finished: list[Batch | TooLarge] = []
    heads: list[bytes] = []
    first = size = 0

    def close(end: int) -> None:
        if heads:
            times = timestamps[first:end]
            batch = _assemble(tails[first:end], heads, times[0], max(times), attributes)
            batch.first = first
            finished.append(batch)
            heads.clear()

    for index, tail in enumerate(tails):
        head = _head(timestamps[index] - timestamps[first], index - first)
        needed = _record_size(head, tail)
        if not heads or size + needed > size_max:
            close(index)
            first = index
            head = _head(0, 0)
            needed = _record_size(head, tail)
            size = HEADER_SIZE
            if size + needed > size_max:
                finished.append(TooLarge(index, size + needed, tail))
                continue
        heads.append(head)
        size += needed
    close(len(tails))
    return finished


def _record_size(head: bytes, tail: bytes) -> int:
    size = len(head) + len(tail)
    return len(varint(size)) + size
