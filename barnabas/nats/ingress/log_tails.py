"""Tails of messages in a partition's log (records/tails.py), with their offsets.

Clients write to the log as well, so batches may be larger than messages make them, or unreadable: none of their records was
a message then. What can't be read is logged and left out.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from barnabas.nats.records.parts import SUBJECT_HEADER
from barnabas.nats.records.tails import read_tails
from barnabas.storage.errors import StorageError
from barnabas.wire.record_batch import BatchHeader, InvalidBatch, RecordBatchError, iterate_whole_headers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from barnabas.storage.log.log import Log

log = logging.getLogger("barnabas.nats")

LATEST_RECORDS: Final = (20_000, 2_000, 200)  # the most that are not larger together than
LATEST_BYTES_MAX: Final = 8 << 20
READ_BYTES: Final = 1 << 20


def tails_of_batches(
    partition_log: Log, data: bytes, from_ms: int = 0
) -> tuple[list[tuple[int, bytes]], int]:
    """The (offset, tail) of each message in the batches of `data` that are not older than `from_ms`, and the offset after
    the last whole batch, or -1."""
    found: list[tuple[int, bytes]] = []
    next_offset = -1
    view = memoryview(data)
    try:
        for position, header in iterate_whole_headers(view):
            if header.max_timestamp >= from_ms:
                batch = view[position : position + header.size]
                found += _tails_of_batch(partition_log, batch, header)
            next_offset = header.next_offset
    except RecordBatchError as error:
        _log_unreadable(partition_log, error)
    return found, next_offset


def read_log_tails(
    partition_log: Log, start: int, bytes_max: int, from_ms: int = 0
) -> Iterator[list[bytes] | None]:
    """The tails in the log from `start` on, piece by piece; ends with None if they are in more than `bytes_max` of the log."""
    size = 0
    try:
        while start < partition_log.log_end_offset:
            if size >= bytes_max:
                yield None
                return
            read = partition_log.read(start, READ_BYTES)
            data = b"".join(region.read() for region in read.regions)
            size += len(data)
            tails, next_offset = tails_of_batches(partition_log, data, from_ms)
            if next_offset <= start:
                return
            start = next_offset
            yield [tail for _, tail in tails]
    except (OSError, StorageError) as error:
        _log_unreadable(partition_log, error)


def count_latest_tails(partition_log: Log, from_ms: int) -> Counter[bytes]:
    """How often each of the latest tails is in the log, in batches that are not older than `from_ms`. Reading them takes
    time on the event loop, so fewer of large ones are read."""
    counts: Counter[bytes] = Counter()
    for records in LATEST_RECORDS:
        counts.clear()
        start = max(partition_log.log_start_offset, partition_log.log_end_offset - records)
        for tails in read_log_tails(partition_log, start, LATEST_BYTES_MAX, from_ms):
            if tails is None:
                break
            counts.update(tails)
        else:
            break
    return counts


def _tails_of_batch(partition_log: Log, batch: memoryview, header: BatchHeader) -> list[tuple[int, bytes]]:
    # The broker makes batches of messages of at most max.message.bytes before it compresses them.
    bytes_max = partition_log.config.max_message_bytes
    if header.record_count * len(SUBJECT_HEADER) > max(bytes_max, header.size):
        return []
    try:
        tails = read_tails(batch, bytes_max)
    except InvalidBatch as error:
        _log_unreadable(partition_log, error)
        return []
    return [(offset, tail) for offset, tail in enumerate(tails, header.base_offset) if SUBJECT_HEADER in tail]


def _log_unreadable(partition_log: Log, error: Exception) -> None:
    log.warning(
        "%s: its records can't be compared with the messages received from NATS: %s",
        partition_log.name,
        error,
    )
