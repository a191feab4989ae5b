"""Reads records for a share partition: the offsets of batches from their headers, aborted batches, and slices of files.

Records are not read. A slice is a region of the log's file, or its bytes where it is small.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.broker.fetch.reader import ABORTED_MAX, COPIED_BYTES, copied
from barnabas.storage.disk.disk import FileRegion
from barnabas.storage.errors import WouldWait
from barnabas.storage.log.segments import ReadResult
from barnabas.wire.record_batch import HEADER_SIZE, BatchHeader, read_header

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barnabas.broker.partitions.partition import Partition
    from barnabas.broker.share_partitions.acquisition import AcquiredRange

WINDOW_BYTES: Final = 64 * 1024  # read at a time, for the headers

_base_offset = attrgetter("base_offset")
_last_offset = attrgetter("last_offset")
_first_offset = attrgetter("first_offset")


class ReadBatches(msgspec.Struct):
    """Whole batches that were read at an offset: their headers, and where they begin and end in `result`. `aborted`: (first, last)
    offsets of those of aborted transactions, ascending."""

    result: ReadResult
    headers: list[BatchHeader]
    positions: list[int]  # one more than headers
    aborted: list[tuple[int, int]] = []

    @property
    def size(self) -> int:
        return self.positions[-1] if self.positions else 0

    def offsets(self) -> list[tuple[int, int]]:
        """(first, last) of each batch."""
        return [(each.base_offset, each.last_offset) for each in self.headers]

    def keep(self, count: int) -> None:
        """Drop all batches but the first."""
        del self.headers[count:]
        del self.positions[count + 1 :]

    def slice(self, acquired: Sequence[AcquiredRange]) -> bytes | tuple[FileRegion, ...]:
        """The batches from the one with the first acquired record to the one with the last."""
        first = bisect_left(self.headers, acquired[0].first, key=_last_offset)
        last = bisect_right(self.headers, acquired[-1].last, key=_base_offset) - 1
        if first > last:
            return b""
        begin, end = self.positions[first], self.positions[last + 1]
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
    batches_max: int,
    *,
    min_one_batch: bool,
    wait: bool,
) -> ReadBatches:
    """The whole batches from the one that holds `offset` on, until there are enough records or batches; with `min_one_batch` one
    that is larger than `max_bytes`, too. StorageError; WouldWait without `wait` where the disk is needed."""
    result = partition.log.read(
        offset, max_bytes, min_one_batch=min_one_batch, end_offset=end_offset, wait=wait
    )
    if not result.regions:
        return NOTHING
    (region,) = result.regions
    headers: list[BatchHeader] = []
    positions = [0]
    window, window_start = b"", 0
    while positions[-1] + HEADER_SIZE <= region.length and len(headers) < batches_max:
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


def mark_aborted(partition: Partition, offset: int, read: ReadBatches, *, wait: bool) -> None:
    """Note which of the batches that were read at `offset` belong to aborted transactions. Where these are more than ABORTED_MAX
    the last batches are dropped: only one batch may lie in as many. StorageError, WouldWait."""
    if not read.headers:
        return
    while True:
        limit = ABORTED_MAX + 1 if len(read.headers) > 1 else None
        found = partition.log.aborted_between(offset, read.headers[-1].last_offset + 1, limit, wait=wait)
        if len(found) != limit:
            break
        read.keep(len(read.headers) // 2)
    coming = sorted(found, key=_first_offset)
    aborted_to: dict[int, int] = {}  # by producer: the last offset of the transaction that it is in
    place = 0
    read.aborted = []
    for header in read.headers:
        while place < len(coming) and coming[place].first_offset <= header.last_offset:
            aborted_to[coming[place].producer_id] = coming[place].last_offset
            place += 1
        if (
            header.is_transactional
            and not header.is_control
            and header.base_offset <= aborted_to.get(header.producer_id, -1)
        ):
            read.aborted.append((header.base_offset, header.last_offset))
