"""The batches of a fetch response that a follower appends: whole, as the leader has them, at the same offsets.

Nothing is decoded and nothing is changed, so the copy is byte for byte the leader's. Lengths, CRC and ascending offsets of
all batches are checked before the first is written. Producers and transactions are updated without checks, as in recovery:
the leader has checked them.

As Kafka's UnifiedLog.appendAsFollower. A batch of a later leader epoch than the fetch was made in is left out with everything
behind it (KAFKA-18723): a leader that has become a follower itself may have truncated its log and written on while its
answer was sent.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from barnabas.storage.errors import StorageError
from barnabas.storage.log import validation
from barnabas.storage.segment.legacy_format import read_stored_header, verify_stored_crc
from barnabas.wire.checksum import crc32c
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import (
    ATTRIBUTES_OFFSET,
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    RecordBatchError,
    read_header,
)

logger = logging.getLogger("barnabas.storage")

ANY_EPOCH: Final = 0x7FFFFFFF
ALL_BATCHES: Final = 0x7FFFFFFF


class FollowerAppend(msgspec.Struct, gc=False):
    """What has been appended: so many bytes, whole batches. `awaits_sync`: it is not to be claimed before
    `when_synced(log_end_offset)`; `awaits_write_back`: more is not to be fetched before `when_written_back`.
    `is_partial`: `batches_max` has left some behind."""

    size: int
    batches: int = 0
    is_partial: bool = False
    awaits_sync: bool = False
    awaits_write_back: bool = False

    def add(self, before: FollowerAppend) -> None:
        """Make this the result of both, `before` being the earlier one."""
        self.size += before.size
        self.batches += before.batches
        self.awaits_sync |= before.awaits_sync
        self.awaits_write_back |= before.awaits_write_back


class UnexpectedAppendOffset(StorageError):
    """The first batch begins below the log's end."""

    def __init__(self, name: str, first_offset: int, last_offset: int, end_offset: int) -> None:
        super().__init__(
            ErrorCode.INVALID_RECORD,
            f"Unexpected offset in append to {name}. First offset {first_offset}, last offset {last_offset} of "
            f"the first batch, the log's next offset is {end_offset}",
        )
        self.first_offset = first_offset
        self.last_offset = last_offset


def whole_batches(
    records: memoryview, leader_epoch: int, batches_max: int, next_offset: int, partition: str
) -> list[BatchHeader]:
    """The headers of the first `batches_max` whole batches, which may all be appended at `next_offset`.

    UnexpectedAppendOffset, or StorageError CORRUPT_MESSAGE.
    """
    headers: list[BatchHeader] = []
    position, end = 0, len(records)
    try:
        while end - position > LOG_OVERHEAD and len(headers) < batches_max:
            if end - position >= HEADER_SIZE and records[position + 16] == 2:
                header = read_header(records, position)
            else:  # a cut batch, or an older format
                length = int.from_bytes(records[position + 8 : position + LOG_OVERHEAD], "big", signed=True)
                if length < 0 or length > end - position - LOG_OVERHEAD:
                    break
                header = read_stored_header(records, position)
            size = header.batch_length + LOG_OVERHEAD
            if size > end - position:
                break
            if header.magic != 2:
                verify_stored_crc(records, position, header)
            elif crc32c(records[position + ATTRIBUTES_OFFSET : position + size]) != header.crc:
                raise StorageError(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"Record is corrupt (crc) in a fetched batch of {partition}",
                )
            if header.partition_leader_epoch > leader_epoch:
                logger.info(
                    "%s: a batch of leader epoch %d was fetched in epoch %d and is left out",
                    partition,
                    header.partition_leader_epoch,
                    leader_epoch,
                )
                break
            if header.base_offset < next_offset or header.last_offset_delta < 0:
                if not headers and header.last_offset_delta >= 0:
                    raise UnexpectedAppendOffset(
                        partition, header.base_offset, header.last_offset, next_offset
                    )
                raise StorageError(
                    ErrorCode.CORRUPT_MESSAGE, f"Out of order offsets in fetched batches of {partition}"
                )
            headers.append(header)
            next_offset = header.base_offset + header.last_offset_delta + 1
            position += size
    except RecordBatchError as error:
        raise validation.header_error(error) from None
    return headers
