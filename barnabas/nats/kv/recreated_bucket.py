"""Tombstones for the keys of a bucket that was deleted and recreated.

A deleted bucket sends no message about its keys. So before the new bucket is read, each partition is searched for keys whose
last record is a value of the old bucket: it came from the bucket's stream, or was published to it (its offset is below the
position of the publishing group). Keys that the new bucket holds are left to it; the others get a tombstone. A tombstone has
revision 0 of the new bucket, so that it is not published, and the next leader finds where the old bucket ends.

A record that has not been published yet keeps its key. The keys take at most KEYS_BYTES_MAX of memory: if there are more,
they are searched for in several passes over the log, each for a share of the keys. Tombstones are appended one batch a turn.
"""

from __future__ import annotations

import logging
import zlib
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from barnabas.broker.partitions.partition import ACKS_ALL
from barnabas.nats.jetstream.api import JetStreamError
from barnabas.nats.jetstream.log_position import read_position
from barnabas.nats.kv.bucket import key_of, key_problem
from barnabas.nats.records.batch_builder import Batch, BatchBuilder
from barnabas.nats.records.log_scan import StoredBatch, read_in_thread, read_regions, whole_batches
from barnabas.nats.records.parts import (
    NULL_PART,
    SEQUENCE_HEADER,
    STREAM_HEADER,
    SUBJECT_HEADER,
    TIMESTAMP_HEADER,
    VARINTS,
    header_parts,
    sized,
)
from barnabas.runtime.procedures import Call, in_thread
from barnabas.storage.errors import StorageError, WouldWait
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import BatchHeader, InvalidBatch
from barnabas.wire.records import UnpacksTooLarge, iterate_records

if TYPE_CHECKING:
    from collections.abc import Iterable

    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.jetstream.api import JetStreamApi
    from barnabas.runtime.interface import Runtime
    from barnabas.wire.records import Record

log = logging.getLogger("barnabas.nats")

KEYS_BYTES_MAX: Final = 64 << 20
KEY_BYTES: Final = 120  # overhead of a key in memory
REST_BYTES: Final = 32 << 10  # read on the loop
REST_UNPACKED_BYTES: Final = 128 << 10
ROUNDS_MAX: Final = 100
BATCH_RECORDS_MAX: Final = 500
NANOSECONDS_OF_MS: Final = 1_000_000


class _TooManyKeys(Exception):
    """The keys of one share do not fit into memory."""


class StaleKeys:
    """The keys of one partition whose last record is a value of the old bucket: share number `share` of `shares`."""

    def __init__(
        self,
        runtime: Runtime,
        partition: Partition,
        prefix: bytes,
        stream: str,
        published_to: int,
        share: int,
        shares: int,
    ) -> None:
        self.keys: dict[bytes, None] = {}
        self.read_to = partition.log.log_start_offset
        self._runtime = runtime
        self._partition = partition
        self._epoch = partition.leader_epoch
        self._prefix = prefix
        self._stream = stream.encode()
        self._published_to = published_to
        self._share = share
        self._shares = shares
        self._size = 0

    async def read(self) -> None:
        """Reads to the end of the log. StorageError; _TooManyKeys."""
        while await read_in_thread(
            self._runtime, self._partition, self._epoch, self.read_to, self._log_end, self._search
        ):
            pass

    def read_rest(self) -> bool:
        """Reads, on the loop, what was appended since `read`: then `keys` are those of the whole log. False when that is too
        much."""
        try:
            while True:
                start, regions = read_regions(
                    self._partition, self._epoch, self.read_to, self._log_end, REST_BYTES
                )
                if not regions:
                    return True
                if sum(region.length for region in regions) > REST_BYTES:
                    return False
                self._search(start, whole_batches(start, regions), REST_UNPACKED_BYTES)
        except (WouldWait, UnpacksTooLarge):
            return False

    @property
    def _log_end(self) -> int:
        return self._partition.log.log_end_offset

    def _search(self, _start: int, batches: Iterable[StoredBatch], unpacked_max: int | None = None) -> None:
        for header, batch in batches:
            if not header.is_control:
                self._search_batch(header, batch, unpacked_max)
            self.read_to = header.next_offset

    def _search_batch(self, header: BatchHeader, batch: bytes, unpacked_max: int | None) -> None:
        """An unreadable batch has no keys. With a limit, UnpacksTooLarge."""
        try:
            for record in iterate_records(batch, unpacked_max):
                self._note(record, header)
        except InvalidBatch as error:
            if unpacked_max is not None and isinstance(error, UnpacksTooLarge):
                raise

    def _note(self, record: Record, header: BatchHeader) -> None:
        key = record.key
        if key is None or (self._shares > 1 and zlib.crc32(key) % self._shares != self._share):
            return
        is_old = record.value is not None and (
            (header.is_from_extension and read_position(record, self._stream) is not None)
            or (record.offset < self._published_to and not key_problem(key))
        )
        if not is_old:
            self.forget(key)
        elif key not in self.keys:
            self._size += len(key) + KEY_BYTES
            if self._size > KEYS_BYTES_MAX:
                raise _TooManyKeys
            self.keys[key] = None

    def forget(self, key: bytes) -> None:
        """The key is not stale."""
        if key in self.keys:
            del self.keys[key]
            self._size -= len(key) + KEY_BYTES

    def forget_subjects(self, subjects: Iterable[str]) -> None:
        """To be called in a thread, because there may be 100,000 subjects."""
        for subject in subjects:
            self.forget(key_of(subject.encode()))

    def tombstones(self, created_ns: int) -> Batch | None:
        """A batch of tombstones for some of the keys, which are removed; None when none are left."""
        keys = list(islice(self.keys, BATCH_RECORDS_MAX))
        if not keys:
            return None
        builder = BatchBuilder(is_bridged=True)
        for key in keys:
            headers = (
                (SUBJECT_HEADER, self._prefix + key),
                (STREAM_HEADER, self._stream),
                (SEQUENCE_HEADER, b"0"),
                (TIMESTAMP_HEADER, b"%d" % created_ns),
            )
            parts = [part for pair in headers for part in header_parts(*pair)]
            tail = b"".join((sized(key), NULL_PART, VARINTS[len(headers)], *parts))
            builder.add_at(tail, created_ns // NANOSECONDS_OF_MS)
        config = self._partition.log.config
        batch = builder.finish(0, min(config.max_message_bytes, config.segment_bytes))[0]
        if not isinstance(batch, Batch):
            raise StorageError(
                ErrorCode.MESSAGE_TOO_LARGE, f"no tombstone has room for the key {keys[0][:100]!r}"
            )
        for key in keys[: batch.header.record_count]:
            self.forget(key)
        return batch


async def write_tombstones(
    runtime: Runtime,
    api: JetStreamApi,
    partition: Partition,
    bucket_prefix: bytes,
    stream: str,
    created_ns: int,
    published_to: int,
) -> int:
    """Appends the tombstones of one partition, and returns their number. `published_to`: records below this offset were
    published to the old bucket, or came from it. After an error of the API or the log it may be called again."""
    shares, share, count = 1, 0, 0
    while share < shares:
        stale = StaleKeys(runtime, partition, bucket_prefix, stream, published_to, share, shares)
        try:
            await stale.read()
            await _forget_keys_in_use(runtime, api, stream, stale)
            while True:
                await _read_to_end(stale)
                batch = stale.tombstones(created_ns)
                if batch is None:
                    break
                partition.append(batch.records, batch.header, ACKS_ALL, from_client=False)
                count += batch.header.record_count
        except _TooManyKeys:
            shares, share = 2 * shares, 0
            continue
        share += 1
    if count:
        log.warning(
            "%s: the bucket was recreated, and %d keys are not in it any more", partition.log.name, count
        )
    return count


async def _read_to_end(stale: StaleKeys) -> None:
    """Returns in the turn in which the end of the log is reached, so that the next append follows it. StorageError when
    clients write faster than the log is read."""
    for _ in range(ROUNDS_MAX):
        await stale.read()
        if stale.read_rest():
            return
    raise StorageError(ErrorCode.REQUEST_TIMED_OUT, "so much is written that the log's end is not reached")


async def _forget_keys_in_use(runtime: Runtime, api: JetStreamApi, stream: str, stale: StaleKeys) -> None:
    """Keeps the keys that the new bucket does not hold. JetStreamError when its answers do not list all of its keys, because
    such a key must not get a tombstone."""
    offset = 0
    while stale.keys:
        page = Call[tuple[tuple[str, ...], int]](partial(api.stream_subjects, stream, offset))
        subjects, total = await page
        await in_thread(runtime, partial(stale.forget_subjects, subjects))
        offset += len(subjects)
        if offset >= total:
            return
        if not subjects:
            raise JetStreamError(f"the stream {stream} names {offset} of its {total} subjects")
