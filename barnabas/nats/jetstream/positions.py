"""How far a partition has come in a stream: read from the partition's own log, backwards from its end.

Every record that was a message of a stream says so in its headers (nats.stream, nats.seq, nats.timestamp), and they are
appended in the stream's order. So the last such record tells where to go on, whichever leader appended it; a record that
is in the log of the leader counts, committed or not, because it is this leader's to commit. Producers may write records with
the same headers, as those do that pass on what they have read: batches alone count that a broker has made of a stream's
messages, which say so in a flag that no producer can set. A log may have lost all flags, as where Apache Kafka's cleaner has
rewritten it, or be older than they are: while it has none of that stream, batches without a producer's id count, as a
broker writes them. Others may have written to the partition since, as much as they liked: then more is read, a window at a
time, off the loop, each window larger than the one before, and no further back than `floor`, below which somebody has looked
already, but for a flag where there is none above.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from barnabas.nats.jetstream.steps import in_thread
from barnabas.nats.records.parts import SEQUENCE_HEADER, STREAM_HEADER, TIMESTAMP_HEADER
from barnabas.storage.errors import StorageError, WouldWait
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import CODEC_MASK, BatchHeader, RecordBatchError, iterate_records, read_header

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.disk.disk import FileRegion
    from barnabas.wire.record_batch import Record

FIRST_WINDOW: Final = 512  # offsets
WINDOW_MAX: Final = 1 << 17
READ_BYTES: Final = 1 << 20
TRIES_MAX: Final = 8  # memory so short that what a thread brings in is gone again: then the loop waits

T = TypeVar("T")

_STREAM_NAME: Final = STREAM_HEADER.decode()
_SEQUENCE_NAME: Final = SEQUENCE_HEADER.decode()
_TIMESTAMP_NAME: Final = TIMESTAMP_HEADER.decode()


class LogPosition(msgspec.Struct, frozen=True):
    """The last record of a stream in a partition: its number in the stream, when the stream stored it, its offset."""

    sequence: int
    timestamp_ns: int
    offset: int


async def find_position(
    runtime: Runtime, partition: Partition, stream: str, floor: int = 0
) -> LogPosition | None:
    """The last message of the stream that the partition holds at `floor` or behind; None when there is none.

    StorageError: the log can't be read, or the partition is not led here (any more).
    """
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


async def find_last(
    runtime: Runtime,
    partition: Partition,
    sign: bytes,
    read: Callable[[Record], T | None],
    floor: int = 0,
    *,
    end: int | None = None,
    counts: Callable[[BatchHeader], bool] | None = None,
) -> T | None:
    """What `read` makes of the last record of which it makes something; it holds the bytes `sign`, and is below `end`.
    `counts`: whether a batch is looked at; all are by default. As `find_position`."""
    if end is None:
        end = partition.log.log_end_offset
    epoch = partition.leader_epoch
    window = FIRST_WINDOW
    while True:
        lowest = max(floor, partition.log.log_start_offset)
        if end <= lowest:
            return None
        start = max(lowest, end - window)
        found = await _last_within(runtime, partition, epoch, sign, read, start, end, counts)
        if found is not None:
            return found
        end = start
        window = min(2 * window, WINDOW_MAX)


async def _last_within(
    runtime: Runtime,
    partition: Partition,
    epoch: int,
    sign: bytes,
    read: Callable[[Record], T | None],
    start: int,
    end: int,
    counts: Callable[[BatchHeader], bool] | None,
) -> T | None:
    """The last one among the offsets from `start` to `end`."""
    found: T | None = None
    tries = 0
    while start < end:
        if not partition.is_leader or partition.leader_epoch != epoch:
            raise StorageError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition is not led here any more")
        log = partition.log
        start = max(start, log.log_start_offset)  # retention may have removed what was here a moment ago
        if start >= end:
            break
        try:
            result = log.read(start, READ_BYTES, end_offset=end, wait=tries >= TRIES_MAX)
        except WouldWait as cold:
            tries += 1
            await in_thread(runtime, cold.prepare)
            continue
        tries = 0
        if not result.regions:
            break
        searched: tuple[int, T | None] = await in_thread(
            runtime, partial(_search, result.regions, sign, read, start, end, counts)
        )
        next_offset, last = searched
        if next_offset <= start:
            raise StorageError(ErrorCode.CORRUPT_MESSAGE, f"{log.name}: no whole batch at {start}")
        found = last or found
        start = next_offset
    return found


def _search(
    regions: tuple[FileRegion, ...],
    sign: bytes,
    read: Callable[[Record], T | None],
    start: int,
    end: int,
    counts: Callable[[BatchHeader], bool] | None,
) -> tuple[int, T | None]:
    """(the offset behind the last whole batch, the last of those that are looked for from `start` to `end`)."""
    try:
        data = b"".join(region.read() for region in regions)
    except OSError as error:
        raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log can't be read: {error}") from error
    batches: list[tuple[int, BatchHeader]] = []
    position, next_offset = 0, start
    try:
        while position + 61 <= len(data):
            header = read_header(data, position)
            if position + header.size > len(data):
                break
            batches.append((position, header))
            position += header.size
            next_offset = header.next_offset
        for position, header in reversed(batches):
            if header.is_control or (counts is not None and not counts(header)):
                continue
            if not header.attributes & CODEC_MASK and data.find(sign, position, position + header.size) < 0:
                continue
            for record in reversed(list(iterate_records(data[position : position + header.size]))):
                if start <= record.offset < end:
                    found = read(record)
                    if found is not None:
                        return next_offset, found
    except RecordBatchError as error:
        raise StorageError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    return next_offset, None


def read_position(record: Record, stream: bytes) -> LogPosition | None:
    """What the record tells of this stream; None when it is not of it, or only looks so.

    The bridge writes its headers in front of the message's own, so they count at their place alone: a message's own
    headers can't claim that it is another one.
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
