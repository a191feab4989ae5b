"""Compacted view of a coordinator partition: the last value and the last tombstone of each key.

A log that holds a million records of ten thousand keys is not decoded a million times. CompactedRecords reads the frames of
batches and records and the bytes of the keys; the last record of a key is decoded when the end of the log is known. A
key's last value is kept beside its last tombstone, because a value that was removed later may have had an effect of its own
(a committed offset creates its group). They are replayed in the order in which they were written, which gives the state that
all records would have given.

The usual batch, without a transaction and uncompressed, is read in flat loops: this runs on the loop. Every other batch goes
through CommittedRecords. This broker writes no transactions yet; a partition that Kafka wrote may hold them.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Generator, Iterator
from typing import Final

from barnabas.storage.errors import StorageError
from barnabas.storage.segment.transaction_marker import read_marker
from barnabas.wire.errors import ErrorCode
from barnabas.wire.primitives import varint
from barnabas.wire.record_batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    InvalidBatch,
    Record,
    iterate_records,
    read_header,
)

log = logging.getLogger(__name__)

STEP: Final = 128  # records between two looks at the clock: some 0.1 ms

# Base offset, batch length, magic, attributes, last offset delta, record count; and what stands in front of the first
# record's key, if the record's length takes two bytes: those, and one each for attributes, timestamp delta, offset
# delta and the key's size, as one number, which is the key's size when the others are 0.
_FRAME: Final = struct.Struct(">qi4xb4xhi30xiHI")
_KEY_OFFSET: Final = _FRAME.size
_LENGTH_END: Final = _FRAME.size - 4
_PADDING: Final = bytes(_FRAME.size - HEADER_SIZE)  # behind the data: the loops below end a varint here
_UNUSUAL: Final = 0x37  # attributes: compressed, transactional, control
_NULL: Final = 1  # the zigzag form of -1, in one byte

Replay = Callable[[bytes | None, bytes | None], object]  # key, value


class CommittedRecords:
    """Takes the batches of one partition in their order and returns the committed records: those outside of transactions, and
    those of a transaction at the place of the marker that commits it.

    A key keeps what was written to it last, also when a transaction commits that had written to it before, as in
    Kafka. A transaction without an end is left out.
    """

    def __init__(self) -> None:
        self._pending: dict[int, list[Record]] = {}  # by producer id
        self._written_meanwhile: dict[bytes | None, int] = {}  # key -> offset of what counts

    @property
    def has_pending(self) -> bool:
        """Whether a transaction has no end yet, so that all further batches must pass here."""
        return bool(self._pending)

    def of(self, batch: bytes) -> Iterator[Record]:
        """The records that this batch commits. RecordBatchError when it can't be read."""
        header = read_header(batch)
        pending, written_meanwhile = self._pending, self._written_meanwhile
        if header.is_control:
            marker = read_marker(batch)
            ended = pending.pop(header.producer_id, []) if marker is not None else []
            counted = iter(ended if marker is not None and marker.commit else ())
        elif header.is_transactional:
            pending.setdefault(header.producer_id, []).extend(iterate_records(batch))
            return
        else:
            counted = iterate_records(batch)
        for record in counted:
            if written_meanwhile.get(record.key, -1) > record.offset:
                continue
            if record.value is None:
                written_meanwhile.pop(record.key, None)
            elif pending:
                written_meanwhile[record.key] = record.offset
            yield record
        if not pending:
            written_meanwhile.clear()

    def end(self, name: str) -> None:
        """After the last batch: logs what is left out; `name` is the partition's."""
        if self._pending:
            log.warning(
                "%s: %d records of transactions that have not ended are passed over",
                name,
                sum(map(len, self._pending.values())),
            )


class CompactedRecords:
    """Takes the whole batches of a log in their order, and replays the compacted view: `take` each piece, then `finish`. Both
    run in slices, and raise RecordBatchError for what can't be read and StorageError where offsets go back.

    With `every`, each committed record is replayed at its place, also if a later one supersedes it.
    """

    def __init__(self, name: str, replay: Replay, *, every: bool = False) -> None:
        """`name` of the partition, for the log."""
        self.next_offset = 0  # behind what was taken
        self.name = name
        self._replay = replay
        self.every = every
        self._settled = CommittedRecords()
        # In the order of writing: a key, with its last value (the size in front, headers behind), or a key in a
        # tuple, which was removed.
        self._last: dict[bytes | tuple[bytes], bytes] = {}

    def take(self, data: bytes) -> Iterator[None]:
        """Take the batches at the start of `data`. The last one may be cut off, and is not taken."""
        last, forget = self._last, self._last.pop
        unpack = _FRAME.unpack_from
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
            if base + last_delta < next_offset:  # or it would be read again and again
                raise StorageError(ErrorCode.CORRUPT_MESSAGE, f"offsets go back at {next_offset}")
            next_offset = base + last_delta + 1
            if not is_plain or attributes & _UNUSUAL or magic != 2:
                yield from self._take_settled(data[pos:end])
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
                yield from self._take_settled(data[pos:end])
            pos = end
            if steps <= 0:
                steps = STEP
                yield
        self.next_offset = next_offset

    def _is_plain(self) -> bool:
        """Whether no transaction is open and only the last record of a key counts."""
        return not self.every and not self._settled.has_pending

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

    def _take_settled(self, batch: bytes) -> Iterator[None]:
        """Take a batch of any kind, and the records that it commits."""
        last = self._last
        for number, record in enumerate(self._settled.of(batch), 1):
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
        """After the last batch: replay the compacted view."""
        self._settled.end(self.name)
        last, self._last = self._last, {}
        for number, (key, rest) in enumerate(last.items(), 1):
            if isinstance(key, tuple):
                self._replay(key[0], None)
            else:
                self._replay(key, _value_of(rest))
            if not number % (STEP // 8):
                yield


def _value_of(rest: bytes) -> bytes | None:
    """The value at the start of what follows a record's key."""
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
