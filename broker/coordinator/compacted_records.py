"""Compacted view of a coordinator partition: the last value and the last tombstone of each key.

Of a million records of ten thousand keys only the last ones are decoded. CompactedRecords reads the frames of batches and
records and the bytes of the keys, and decodes the last record of each key at the end of the log. A key's last value is kept
beside its last tombstone, because a value that was removed later may have an effect of its own (a committed offset creates its
group). They are replayed in the order in which they were written, which gives the same state as all records.

Uncompressed batches without a transaction are read in flat loops, as this runs on the loop. All others are read by
CommittedRecords. Writes of transactions that are open at the end are replayed as pending ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from typing import Final

from barnabas.broker.coordinator import pending_writes
from barnabas.broker.coordinator.pending_writes import PendingWrite, PendingWrites
from barnabas.storage.errors import StorageError
from barnabas.storage.segment.transaction_marker import read_marker
from barnabas.wire.errors import ErrorCode
from barnabas.wire.primitives import varint
from barnabas.wire.record_batch import HEADER_SIZE, LOG_OVERHEAD, InvalidBatch, read_header
from barnabas.wire.records import SMALL_BATCH, Record, iterate_records

log = logging.getLogger(__name__)

STEP: Final = 128  # records in a step: about 0.1 ms
LARGE_RECORD: Final = 4096  # bytes; its decoding is a step

_KEY_OFFSET: Final = SMALL_BATCH.size
_LENGTH_END: Final = SMALL_BATCH.size - 4
_PADDING: Final = bytes(SMALL_BATCH.size - HEADER_SIZE)  # behind the data: the loops below end a varint here
_UNUSUAL: Final = 0x37  # attributes: compressed, transactional, control
_NULL: Final = 1  # the zigzag form of -1, in one byte

Replay = Callable[[bytes | None, bytes | None], object]  # key, value
# key, value, producer id, whether a committed record behind it is the value of the key
ReplayPending = Callable[[bytes | None, bytes | None, int, bool], object]


class CommittedRecords:
    """Takes the batches of a partition in their order and returns the committed records: those outside of transactions, and those
    of a transaction at the marker that commits it, unless the key has a value from a record behind it by then.

    As in Kafka, a tombstone is never part of a transaction; it also drops the writes to its key in open ones.
    """

    def __init__(self) -> None:
        self.pending: PendingWrites[bytes | None, Record] = PendingWrites()

    def of(self, batch: bytes) -> Iterator[Record]:
        """The records that this batch commits. RecordBatchError when it can't be read."""
        header = read_header(batch)
        pending = self.pending
        if header.is_control:
            marker = read_marker(batch)
            if marker is not None:
                yield from self._end(header.producer_id, marker.commit)
            return
        for record in iterate_records(batch):
            if header.is_transactional and record.value is not None:
                write = PendingWrite(header.producer_id, record)
                pending.set(record.key, pending_writes.add(pending.of(record.key), write))
                continue
            if pending and (writes := pending.of(record.key)):
                pending.set(record.key, () if record.value is None else pending_writes.supersede(writes))
            yield record

    def _end(self, producer_id: int, commit: bool) -> Iterator[Record]:
        for key in self.pending.keys_of(producer_id):
            writes, committed = pending_writes.end(self.pending.of(key), producer_id, commit=commit)
            self.pending.set(key, writes)
            if committed is not None:
                yield committed


class CompactedRecords:
    """Takes the batches of a log in their order, and replays the compacted view: `take` each piece, then `finish`. Both are steps
    of a few records, and raise RecordBatchError for a damaged batch and StorageError where offsets go back.

    With `every`, each committed record is replayed in its turn, also if a later one supersedes it.
    """

    def __init__(
        self,
        name: str,
        replay: Replay,
        *,
        every: bool = False,
        replay_pending: ReplayPending | None = None,
    ) -> None:
        """`name` of the partition, for the log. `replay_pending` is called at the end, with the writes of open transactions;
        those of one key in the order of the log. Without it they are passed over."""
        self.next_offset = 0  # behind the last batch taken
        self.name = name
        self._replay = replay
        self._replay_pending = replay_pending
        self.every = every
        self._committed = CommittedRecords()
        # In the order of writing: a key, with its last value (the size in front, headers behind), or a key in a
        # tuple, which was removed.
        self._last: dict[bytes | tuple[bytes], bytes] = {}

    def take(self, data: bytes) -> Iterator[None]:
        """Take the batches at the start of `data`, without a last one that is incomplete."""
        last, forget = self._last, self._last.pop
        unpack = SMALL_BATCH.unpack_from
        is_plain = self._is_plain()
        next_offset = self.next_offset
        size = len(data)
        data += _PADDING
        steps = STEP
        pos = 0
        while pos + HEADER_SIZE <= size:
            base, length, magic, attributes, last_delta, count, record_length, key_size = unpack(data, pos)
            end = pos + LOG_OVERHEAD + length
            if end > size:
                break
            if base + last_delta < next_offset:  # it would be read for ever
                raise StorageError(ErrorCode.CORRUPT_MESSAGE, f"offsets go back at {next_offset}")
            next_offset = base + last_delta + 1
            if not is_plain or attributes & _UNUSUAL or magic != 2:
                yield from self._take_committed(data[pos:end])
                is_plain = self._is_plain()
            elif (
                count == 1
                and key_size < 0x80
                and not key_size & 1
                and record_length >> 8 >= 0x80
                and (record_length >> 8 & 0x7F | record_length << 7 & 0x7F80) == end - pos - _LENGTH_END << 1
                and (behind_key := pos + _KEY_OFFSET + (key_size >> 1)) < end
            ):
                if data[behind_key] == _NULL:
                    removed = (data[pos + _KEY_OFFSET : behind_key],)
                    forget(removed, None)
                    last[removed] = b""
                else:
                    written = data[pos + _KEY_OFFSET : behind_key]
                    forget(written, None)
                    last[written] = data[behind_key:end]
                steps -= 1
            elif (yield from self._take_plain(data, pos + HEADER_SIZE, end, count)):
                steps -= count
            else:
                yield from self._take_committed(data[pos:end])
            pos = end
            if steps <= 0:
                steps = STEP
                yield
        self.next_offset = next_offset

    def _is_plain(self) -> bool:
        """Whether no transaction is open, and only the last record of each key is replayed."""
        return not self.every and not self._committed.pending

    def _take_plain(self, data: bytes, pos: int, end: int, count: int) -> Generator[None, None, bool]:
        """Take the records of a plain batch; False when one is unusual: then the batch is decoded."""
        last, forget = self._last, self._last.pop
        for number in range(1, count + 1):
            length = data[pos]
            pos += 1
            if length > 0x7F:
                length += (data[pos] << 7) - 0x80
                pos += 1
                if length > 0x3FFF:
                    length += (data[pos] << 14) - 0x4000
                    pos += 1
            record_end = pos + (length >> 1)
            pos += 1  # attributes
            while data[pos] > 0x7F:  # timestamp delta
                pos += 1
            pos += 1
            while data[pos] > 0x7F:  # offset delta
                pos += 1
            key_size = data[pos + 1]
            pos += 2
            if key_size > 0x7F:
                key_size += (data[pos] << 7) - 0x80
                pos += 1
            behind_key = pos + (key_size >> 1)
            if (
                (length | key_size) & 1
                or length > 0x1FFFFF
                or key_size > 0x3FFF
                or record_end > end
                or behind_key >= record_end
            ):
                return False
            if data[behind_key] == _NULL:
                removed = (data[pos:behind_key],)
                forget(removed, None)
                last[removed] = b""
            else:
                written = data[pos:behind_key]
                forget(written, None)
                last[written] = data[behind_key:record_end]
            pos = record_end
            if not number % STEP:
                yield
        return pos == end

    def _take_committed(self, batch: bytes) -> Iterator[None]:
        """Take a batch of any kind, and the records that it commits."""
        last = self._last
        for number, record in enumerate(self._committed.of(batch), 1):
            if self.every or record.key is None:
                self._replay(record.key, record.value)
            else:
                is_removed = record.value is None
                key = (record.key,) if is_removed else record.key
                last.pop(key, None)
                last[key] = b"" if record.value is None else varint(len(record.value)) + record.value
            if not number % (STEP // 8):
                yield
        yield

    def finish(self) -> Iterator[None]:
        """After the last batch: replay the compacted view, then what is pending."""
        last, self._last = self._last, {}
        for number, (key, rest) in enumerate(last.items(), 1):
            if isinstance(key, tuple):
                self._replay(key[0], None)
            else:
                self._replay(key, _value_of(rest))
            if not number % (STEP // 8) or len(rest) > LARGE_RECORD:
                yield
        if self._replay_pending is not None:
            yield from self._finish_pending(self._replay_pending)
        elif self._committed.pending:
            count = sum(len(writes) for _, writes in self._committed.pending)
            log.warning(
                "%s: %d records of transactions that have not ended are passed over", self.name, count
            )

    def _finish_pending(self, replay: ReplayPending) -> Iterator[None]:
        for number, (key, writes) in enumerate(self._committed.pending, 1):
            for write in writes:
                replay(key, write.value.value, write.producer_id, write.is_superseded)
            if not number % (STEP // 8):
                yield


def _value_of(rest: bytes) -> bytes | None:
    """The value of a record; `rest` is the part of the record behind its key."""
    size = shift = pos = 0
    byte = 0x80
    while byte > 0x7F and pos < min(len(rest), 5):
        byte = rest[pos]
        size |= (byte & 0x7F) << shift
        shift += 7
        pos += 1
    if size == _NULL and byte < 0x80:
        return None
    end = pos + (size >> 1)
    if byte > 0x7F or size & 1 or end > len(rest):
        raise InvalidBatch("a record's length differs from its content")
    return rest[pos:end]
