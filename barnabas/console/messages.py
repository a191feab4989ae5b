"""Records for the messages page: read from the partitions' leaders, filtered, and cut to what a page shows.

One read fetches at most BYTES_MAX and looks at at most SCANNED_MAX records; where it stopped, the next one continues. Batches are
decompressed in threads, into at most UNPACKED_MAX, and taken apart in slices of the loop. Fields come cut to FIELD_BYTES; a
record that is asked for by its offset has FIELD_BYTES_OF_ONE of each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from barnabas.console.cluster import Cluster, Unanswered, error_name
from barnabas.console.topics import EARLIEST, LATEST, offsets
from barnabas.controller.metadata.image import NO_LEADER
from barnabas.runtime.http import HttpError
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.record_batch import (
    HEADER_SIZE,
    InvalidBatch,
    RecordBatchError,
    iterate_whole_headers,
    read_header,
)
from barnabas.wire.records import records_of, records_payload

if TYPE_CHECKING:
    from barnabas.controller.metadata.image import PartitionState
    from barnabas.runtime.slices import Steps
    from barnabas.wire.record_batch import BatchHeader
    from barnabas.wire.records import Record

FETCH: Final = 1
FETCH_VERSION: Final = 12  # the last that names topics
PARTITIONS_MAX: Final = 64  # read together
RECORDS_MAX: Final = 200  # of one answer
SCANNED_MAX: Final = 20_000  # records looked at for one answer
BYTES_MAX: Final = 8 * 1024 * 1024  # fetched for one answer
FETCH_BYTES: Final = 1024 * 1024  # of one fetch; one batch may be larger
PARTITION_BYTES: Final = 256 * 1024
BATCH_BYTES_MAX: Final = 16 * 1024 * 1024  # larger batches are not opened
UNPACKED_MAX: Final = 32 * 1024 * 1024
FIELD_BYTES: Final = 4096
FIELD_BYTES_OF_ONE: Final = 2 * 1024 * 1024
HEADERS_MAX: Final = 20
HEADER_BYTES: Final = 256
RECORDS_BETWEEN_PAUSES: Final = 32
SEARCHED_BYTES: Final = 1024 * 1024  # of each field
READ_COMMITTED: Final = 1


class Field(msgspec.Struct):
    """The first bytes of a key, a value or a header's value (base64 in JSON), and how many it has."""

    data: bytes
    size: int


class Row(msgspec.Struct):
    """A record; with a `problem`, a batch that can't be shown."""

    partition: int
    offset: int
    timestamp: int = -1
    key: Field | None = None
    value: Field | None = None
    headers: list[tuple[str, Field | None]] = []
    header_count: int = 0
    problem: str = ""


class Page(msgspec.Struct):
    """What was found, and for each partition read where the next page continues and where the partition ends."""

    records: list[Row]
    positions: dict[int, int]
    ends: dict[int, int]
    scanned: int
    is_end: bool  # all partitions were read to their ends
    problems: list[str]


class Wanted(msgspec.Struct):
    """What is searched for. `needle`: bytes of a key, a value or a header; empty: all records."""

    topic: str
    limit: int
    needle: bytes = b""
    is_committed: bool = False
    field_bytes: int = FIELD_BYTES


async def first_positions(
    cluster: Cluster, topic: str, partition: int | None, begin: str, value: int, limit: int
) -> dict[int, int]:
    """Where to begin in each partition. `begin`: start, end (the last `limit` records), tail, offset or time."""
    known = cluster.topic(topic).partitions
    if partition is not None and partition not in known:
        raise HttpError(404, f"there is no partition {partition}")
    indexes = sorted(known)[:PARTITIONS_MAX] if partition is None else [partition]
    states = {index: known[index] for index in indexes}
    found = await offsets(cluster, {topic: states}, EARLIEST)
    starts = {index: offset for (_, index), offset in found.found.items()}
    if begin == "start":
        return starts
    ends = {
        index: offset
        for (_, index), offset in (await offsets(cluster, {topic: states}, LATEST)).found.items()
    }
    if begin == "time":
        times = (await offsets(cluster, {topic: states}, max(0, value))).found
        found_at = {index: times.get((topic, index), -1) for index in indexes}
        return {index: found_at[index] if found_at[index] >= 0 else end for index, end in ends.items()}
    back = {"offset": None, "end": -(-limit // max(1, len(indexes))), "tail": 0}
    if begin not in back:
        raise HttpError(400, "a read begins at start, end, tail, offset or time")
    count = back[begin]
    wanted = {index: value if count is None else end - count for index, end in ends.items()}
    return {index: min(max(wanted[index], starts.get(index, 0)), end) for index, end in ends.items()}


async def read(cluster: Cluster, wanted: Wanted, positions: Mapping[int, int]) -> Page:
    """A page from these positions on, oldest first. Each partition contributes its share."""
    states = cluster.topic(wanted.topic).partitions
    reader = _Reader(cluster, wanted, {index: at for index, at in positions.items() if index in states})
    async with cluster.reads:
        await reader.read(states)
    reader.rows.sort(key=lambda row: (row.timestamp, row.partition, row.offset))
    is_end = not reader.pending and not reader.problems
    return Page(reader.rows, reader.positions, reader.ends, reader.scanned, is_end, reader.problems)


async def read_one(cluster: Cluster, topic: str, partition: int, offset: int) -> Row:
    """One record with all that a page shows of it. HttpError."""
    wanted = Wanted(topic, 1, field_bytes=FIELD_BYTES_OF_ONE)
    page = await read(cluster, wanted, {partition: offset})
    if not page.records or page.records[0].offset != offset:
        raise HttpError(404, page.problems[0] if page.problems else "there is no such record any more")
    return page.records[0]


class _Reader:
    """One read of several partitions."""

    def __init__(self, cluster: Cluster, wanted: Wanted, positions: dict[int, int]) -> None:
        self.rows: list[Row] = []
        self.positions = positions
        self.ends: dict[int, int] = {}
        self.scanned = 0
        self.problems: list[str] = []
        self.pending = set(positions)  # not at their ends, and without a problem
        self._cluster = cluster
        self._wanted = wanted
        self._share = -(-wanted.limit // max(1, len(positions)))
        self._counts: dict[int, int] = dict.fromkeys(positions, 0)
        self._bytes = 0

    async def read(self, states: Mapping[int, PartitionState]) -> None:
        while self._bytes < BYTES_MAX and self.scanned < SCANNED_MAX:
            before = dict(self.positions)
            by_leader: dict[int, list[int]] = defaultdict(list)
            for index in sorted(self.pending, key=lambda index: (self._counts[index], index)):
                if states[index].leader == NO_LEADER:
                    self._fail(index, "it has no leader")
                elif self._counts[index] < self._share:
                    by_leader[states[index].leader].append(index)
            for leader, indexes in by_leader.items():
                await self._fetch(leader, indexes)
            if self.positions == before:  # all are at their ends, or have shown their share
                return

    async def _fetch(self, leader: int, indexes: list[int]) -> None:
        parts = [
            FetchPartition(
                partition=index, fetch_offset=self.positions[index], partition_max_bytes=PARTITION_BYTES
            )
            for index in indexes
        ]
        request = FetchRequest(
            max_bytes=FETCH_BYTES,
            isolation_level=READ_COMMITTED if self._wanted.is_committed else 0,
            topics=[FetchTopic(topic=self._wanted.topic, partitions=parts)],
        )
        try:
            response: Any = await self._cluster.ask(leader, FETCH, FETCH_VERSION, request)
        except Unanswered as error:
            for index in indexes:
                self._fail(index, str(error))
            return
        if response.error_code:
            for index in indexes:
                self._fail(index, error_name(response.error_code))
            return
        answers = [
            each
            for topic in response.responses
            for each in topic.partitions
            if each.partition_index in self.pending
        ]
        # The first partition with records gives a batch, whatever its size; the others are empty when there is no room left.
        has_none = not any(_size(each.records or b"") for each in answers)
        for each in answers:
            await self._cluster.in_slices(self._take(each, is_end=has_none))

    def _fail(self, index: int, why: str) -> None:
        self.pending.discard(index)
        self.problems.append(f"partition {index}: {why}")

    def _take(self, fetched: Any, *, is_end: bool) -> Steps[None]:
        """The records of one partition's answer. `is_end`: no records follow, whatever the offsets say (compaction)."""
        index, position = fetched.partition_index, self.positions[fetched.partition_index]
        if fetched.error_code:
            self._fail(index, error_name(fetched.error_code))
            return
        end = fetched.last_stable_offset if self._wanted.is_committed else fetched.high_watermark
        self.ends[index] = end
        parts = fetched.records or b""
        size = _size(parts)
        self._bytes += size
        if size > BATCH_BYTES_MAX:
            header = read_header((yield partial(_read, parts, HEADER_SIZE)))
            self._show_problem(index, header, f"{header.record_count} records in a batch of {size} bytes")
            return
        data = parts if isinstance(parts, bytes) else (yield partial(_read, parts, size))
        is_aborted = _aborted(fetched.aborted_transactions or [])
        try:
            for begin, header in iterate_whole_headers(data):
                if header.last_offset < position:
                    continue
                if is_aborted(header) or header.is_control:  # it is asked of each
                    self.positions[index] = header.next_offset
                    continue
                yield from self._open(index, memoryview(data)[begin : begin + header.size], header)
                if self._is_full(index):
                    break
        except RecordBatchError as error:
            self._fail(index, str(error))
            return
        if self.positions[index] >= end or is_end:
            self.positions[index] = max(self.positions[index], end)
            self.pending.discard(index)

    def _open(self, index: int, batch: memoryview, header: BatchHeader) -> Steps[None]:
        """The records of one batch."""
        unpack = partial(records_payload, batch, header, UNPACKED_MAX)
        begin = self.positions[index]
        try:
            payload = (yield unpack) if header.codec else unpack()
            for number, record in enumerate(records_of(header, payload), 1):
                if not number % RECORDS_BETWEEN_PAUSES:
                    yield None
                if record.offset < begin:
                    continue
                self.positions[index] = record.offset + 1
                self.scanned += 1
                if _has(record, self._wanted.needle):
                    self.rows.append(_row(index, record, self._wanted.field_bytes))
                    self._counts[index] += 1
                if self._is_full(index):
                    return
        except InvalidBatch as error:
            self._show_problem(index, header, f"{header.record_count} records: {error}")
        self.positions[index] = header.next_offset

    def _show_problem(self, index: int, header: BatchHeader, what: str) -> None:
        self.rows.append(
            Row(index, header.base_offset, header.max_timestamp, problem=f"{what} can't be shown here")
        )
        self._counts[index] += 1
        self.positions[index] = header.next_offset

    def _is_full(self, index: int) -> bool:
        return self._counts[index] >= self._share or self.scanned >= SCANNED_MAX


def _size(parts: Any) -> int:
    return len(parts) if isinstance(parts, (bytes, memoryview)) else sum(each.length for each in parts)


def _read(parts: Any, count: int) -> bytes:
    """The first bytes of an answer's records: bytes, or regions of files."""
    if isinstance(parts, (bytes, memoryview)):
        return bytes(parts[:count])
    data = bytearray()
    for region in parts:
        if len(data) < count:
            data += region.read(0, min(region.length, count - len(data)))
    return bytes(data)


def _aborted(transactions: list[Any]) -> Callable[[BatchHeader], bool]:
    """Asked of each batch in order, as consumers do it: an aborted transaction ends with its producer's marker."""
    begins = sorted(transactions, key=lambda each: each.first_offset, reverse=True)
    producers: set[int] = set()

    def is_aborted(header: BatchHeader) -> bool:
        while begins and begins[-1].first_offset <= header.last_offset:
            producers.add(begins.pop().producer_id)
        if header.is_control:
            producers.discard(header.producer_id)
        return header.is_transactional and header.producer_id in producers

    return is_aborted


def _has(record: Record, needle: bytes) -> bool:
    if not needle:
        return True
    for field in (record.key, record.value):
        if field is not None and needle in field[:SEARCHED_BYTES]:
            return True
    return any(
        needle in name.encode() or (value is not None and needle in value) for name, value in record.headers
    )


def _row(index: int, record: Record, field_bytes: int) -> Row:
    return Row(
        index,
        record.offset,
        record.timestamp,
        _field(record.key, field_bytes),
        _field(record.value, field_bytes),
        [
            (name[:HEADER_BYTES], _field(value, min(field_bytes, HEADER_BYTES)))
            for name, value in record.headers[:HEADERS_MAX]
        ],
        len(record.headers),
    )


def _field(data: bytes | None, count: int) -> Field | None:
    return None if data is None else Field(data[:count], len(data))
