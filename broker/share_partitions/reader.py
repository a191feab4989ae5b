"""Reads records for a share partition: the offsets of batches from their headers, aborted batches, and slices of files.

Records are not read. A slice is a region of the log's file, or its bytes where it is small.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.broker.fetch.reader import COPIED_BYTES, copied
from barnabas.storage.disk.disk import FileRegion
from barnabas.storage.errors import WouldWait
from barnabas.storage.log.segments import ReadResult
from barnabas.wire.record_batch import HEADER_SIZE, BatchHeader, read_header

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barnabas.broker.partitions.partition import Partition
    from barnabas.broker.share_partitions.acquisition import AcquiredRange

WINDOW_BYTES: Final = 64 * 1024  # read at a time, for the headers


class ReadBatches(msgspec.Struct):
    """Whole batches that were read at an offset: their headers, and where they begin and end in `result`."""

    result: ReadResult
    headers: list[BatchHeader]
    positions: list[int]  # one more than headers

    @property
    def size(self) -> int:
        return self.positions[-1] if self.positions else 0

    def offsets(self) -> list[tuple[int, int]]:
        """(first, last) of each batch."""
        return [(each.base_offset, each.last_offset) for each in self.headers]

    def slice(self, acquired: Sequence[AcquiredRange]) -> bytes | tuple[FileRegion, ...]:
        """The batches from the one with the first acquired record to the one with the last."""
        first, last = acquired[0].first, acquired[-1].last
        chosen = [
            index
            for index, each in enumerate(self.headers)
            if each.last_offset >= first and each.base_offset <= last
        ]
        if not chosen:
            return b""
        begin, end = self.positions[chosen[0]], self.positions[chosen[-1] + 1]
        (region,) = self.result.regions
        part = FileRegion(region.file, region.position + begin, end - begin, region.is_hot)
        if end - begin > COPIED_BYTES:
            return (part,)
        return copied(ReadResult((part,), end - begin))


NOTHING: Final = ReadBatches(ReadResult((), 0), [], [])


def read_batches(
    partition: Partition,
    offset: int,
    max_bytes: int,
    end_offset: int,
    records_max: int,
    *,
    min_one_batch: bool,
    wait: bool,
) -> ReadBatches:
    """The whole batches from the one that holds `offset` on, until there are enough records; with `min_one_batch` one that is
    larger than `max_bytes`, too. StorageError; WouldWait without `wait` where the disk is needed."""
    result = partition.log.read(
        offset, max_bytes, min_one_batch=min_one_batch, end_offset=end_offset, wait=wait
    )
    if not result.regions:
        return NOTHING
    (region,) = result.regions
    headers: list[BatchHeader] = []
    positions = [0]
    window, window_start = b"", 0
    while positions[-1] + HEADER_SIZE <= region.length:
        position = positions[-1]
        if position + HEADER_SIZE > window_start + len(window):
            window_start = position
            window = _read(region, position, min(WINDOW_BYTES, region.length - position), wait=wait)
        header = read_header(window, position - window_start)
        if position + header.size > region.length:
            break
        headers.append(header)
        positions.append(position + header.size)
        if header.last_offset >= offset + records_max - 1:
            break
    return ReadBatches(result, headers, positions)


def _read(region: FileRegion, position: int, count: int, *, wait: bool) -> bytes:
    read = region.file.pread if wait or region.is_hot else region.file.pread_now
    try:
        return read(count, region.position + position)
    except BlockingIOError:
        raise WouldWait(partial(region.load, position, count)) from None


def aborted_ranges(
    partition: Partition, offset: int, read: ReadBatches, *, wait: bool
) -> list[tuple[int, int]]:
    """(first, last) offsets of the batches of aborted transactions. StorageError, WouldWait."""
    found = partition.log.aborted_within(offset, read.result, wait=wait)
    if not found:
        return []
    coming = sorted(found, key=lambda each: each[1])
    aborted: set[int] = set()
    ranges: list[tuple[int, int]] = []
    place = 0
    for header in read.headers:
        while place < len(coming) and coming[place][1] <= header.last_offset:
            aborted.add(coming[place][0])
            place += 1
        if header.is_control:
            aborted.discard(header.producer_id)  # its marker
        elif header.is_transactional and header.producer_id in aborted:
            ranges.append((header.base_offset, header.last_offset))
    return ranges
