"""A bucket that was deleted and made anew: tombstones for the keys that the new one does not hold.

A deleted bucket sends no message about its keys. So before the new bucket is read, each partition is searched for keys whose
last record is a value of the old one: one that the bucket's stream has brought, or one that was published to it (below the
position of the group that publishes). Those that the new bucket holds are left to it; the others get a tombstone, which
stands for revision 0 of the new bucket, so it is not published, and tells the next leader where the old bucket ends.

A record that is still to be published keeps its key. Keys take KEYS_BYTES_MAX of memory at most: of more, a share at a time
is looked for, and the log is read once for each. The loop is held up by one batch of tombstones at a time.
"""

from __future__ import annotations

import logging
import zlib
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from barnabas.broker.partitions.partition import ACKS_ALL
from barnabas.nats.jetstream.api import JetStreamError
from barnabas.nats.jetstream.positions import TRIES_MAX, read_position
from barnabas.nats.jetstream.steps import Answer, in_thread
from barnabas.nats.kv.bucket import key_of, key_problem
from barnabas.nats.records.batch_builder import Batch, BatchBuilder
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
from barnabas.storage.errors import StorageError, WouldWait
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import BatchHeader, InvalidBatch, RecordBatchError, read_header
from barnabas.wire.records import UnpacksTooLarge, decode_records

if TYPE_CHECKING:
    from collections.abc import Iterable

    from barnabas.broker.partitions.partition import Partition
    from barnabas.nats.jetstream.api import JetStreamApi
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.disk.disk import FileRegion
    from barnabas.wire.record_batch import Record

log = logging.getLogger("barnabas.nats")

KEYS_BYTES_MAX: Final = 64 << 20
KEY_BYTES: Final = 120  # that a key takes beside itself
READ_BYTES: Final = 1 << 20
REST_BYTES: Final = 32 << 10  # that the loop reads itself
REST_UNPACKED_BYTES: Final = 128 << 10
ROUNDS_MAX: Final = 100
TOGETHER_MAX: Final = 500  # tombstones of a batch
NANOSECONDS_OF_MS: Final = 1_000_000


class _TooMany(Exception):
    """Keys for one share."""


class OldKeys:
    """The keys of one partition whose last record is the old bucket's; of them share `share` of `shares`."""

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
        """To the log's end. StorageError; _TooMany."""
        tries = 0
        while True:
            try:
                result = self._next(READ_BYTES, wait=tries >= TRIES_MAX)
            except WouldWait as cold:
                tries += 1
                await in_thread(self._runtime, cold.prepare)
                continue
            tries = 0
            if result is None:
                return
            await in_thread(self._runtime, partial(self._search, result))

    def read_rest(self) -> bool:
        """What has been appended since `read`, on the loop: then `keys` are as of the log's end. False when it is too much."""
        try:
            while (result := self._next(REST_BYTES, wait=False)) is not None:
                if sum(region.length for region in result) > REST_BYTES:
                    return False
                self._search(result, REST_UNPACKED_BYTES)
        except (WouldWait, UnpacksTooLarge):
            return False
        return True

    def _next(self, size: int, *, wait: bool) -> tuple[FileRegion, ...] | None:
        """What follows in the log, at least a batch; None at its end."""
        partition = self._partition
        if not partition.is_leader or partition.leader_epoch != self._epoch:
            raise StorageError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition is not led here any more")
        start, end = max(self.read_to, partition.log.log_start_offset), partition.log.log_end_offset
        if start >= end:
            return None
        return partition.log.read(start, size, end_offset=end, wait=wait).regions or None

    def _search(self, regions: Iterable[FileRegion], unpacked_max: int | None = None) -> None:
        try:
            data = b"".join(region.read() for region in regions)
        except OSError as error:
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log can't be read: {error}") from error
        position, start = 0, self.read_to
        try:
            while position + 61 <= len(data):
                header = read_header(data, position)
                if position + header.size > len(data):
                    break
                if not header.is_control:
                    self._search_batch(header, data[position : position + header.size], unpacked_max)
                position += header.size
                self.read_to = header.next_offset
        except UnpacksTooLarge:
            raise
        except RecordBatchError as error:
            raise StorageError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        if self.read_to <= start:
            raise StorageError(ErrorCode.CORRUPT_MESSAGE, f"no whole batch at {start}")

    def _search_batch(self, header: BatchHeader, batch: bytes, unpacked_max: int | None) -> None:
        """An unreadable batch has no keys. UnpacksTooLarge where there is a limit."""
        try:
            for record in decode_records(batch, unpacked_max):
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
                raise _TooMany
            self.keys[key] = None

    def forget(self, key: bytes) -> None:
        """It is no old one."""
        if key in self.keys:
            del self.keys[key]
            self._size -= len(key) + KEY_BYTES

    def forget_those_of(self, subjects: Iterable[str]) -> None:
        """In a thread: there may be 100,000."""
        for subject in subjects:
            self.forget(key_of(subject.encode()))

    def tombstones(self, created_ns: int) -> Batch | None:
        """For some of the keys, which are old ones no more; None when there are none left."""
        keys = list(islice(self.keys, TOGETHER_MAX))
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


async def bury_old_keys(
    runtime: Runtime,
    api: JetStreamApi,
    partition: Partition,
    bucket_prefix: bytes,
    stream: str,
    created_ns: int,
    published_to: int,
) -> int:
    """Append the tombstones of one partition; how many. `published_to`: records below this offset were published to the old
    bucket, or came from it. Raises what the API and the log raise; then it may be called again."""
    shares, share, count = 1, 0, 0
    while share < shares:
        old = OldKeys(runtime, partition, bucket_prefix, stream, published_to, share, shares)
        try:
            await old.read()
            await _leave_to_the_new_one(runtime, api, stream, old)
            while True:
                await _read_to_the_end(old)
                batch = old.tombstones(created_ns)
                if batch is None:
                    break
                partition.append(batch.records, batch.header, ACKS_ALL, from_client=False)
                count += batch.header.record_count
        except _TooMany:
            shares, share = 2 * shares, 0
            continue
        share += 1
    if count:
        log.warning(
            "%s: the bucket was made anew, and %d keys are not in it any more", partition.log.name, count
        )
    return count


async def _read_to_the_end(old: OldKeys) -> None:
    """So that what is appended next follows what was read. StorageError where clients write faster than it is read."""
    for _ in range(ROUNDS_MAX):
        await old.read()
        if old.read_rest():
            return
    raise StorageError(ErrorCode.REQUEST_TIMED_OUT, "so much is written that the log's end is not reached")


async def _leave_to_the_new_one(runtime: Runtime, api: JetStreamApi, stream: str, old: OldKeys) -> None:
    """What the new bucket has of the keys comes from there. JetStreamError where the answers don't name all of them: a key
    that is there must get no tombstone."""
    offset = 0
    while old.keys:
        page = Answer[tuple[tuple[str, ...], int]](partial(api.stream_subjects, stream, offset))
        subjects, total = await page
        await in_thread(runtime, partial(old.forget_those_of, subjects))
        offset += len(subjects)
        if offset >= total:
            return
        if not subjects:
            raise JetStreamError(f"the stream {stream} names {offset} of its {total} subjects")
