"""A tiered segment as the log's readers see it: a Segment whose log file is read through the cache.

Its indexes are files in the cache; of its log file only some chunks are. What waits for the disk in a local segment waits for
the object store here: in threads, and on the loop it is BlockingIOError.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from typing import NoReturn

from barnabas.storage.disk.disk import File
from barnabas.storage.log.producer_snapshot import SNAPSHOT_SUFFIX, CorruptSnapshot, decode_snapshot
from barnabas.storage.log.producers import ProducerEntry
from barnabas.storage.log.segments import AuxState
from barnabas.storage.segment.segment import Segment
from barnabas.storage.segment.transaction_index import TransactionIndex
from barnabas.storage.tier.keys import PartitionKeys
from barnabas.storage.tier.manifest import CHUNK_BYTES, Entry
from barnabas.storage.tier.object_store import ObjectMissing
from barnabas.storage.tier.remote_cache import DamagedObject, RemoteCache
from barnabas.wire.compression import Bytes
from barnabas.wire.record_batch import BatchHeader


class RemoteFile:
    """The log file of a tiered segment. It keeps the chunks that it has found open: they can be read, and sent, for as long as it
    is there."""

    __slots__ = ("_cache", "_chunks", "_entry", "_keys")

    def __init__(self, cache: RemoteCache, keys: PartitionKeys, entry: Entry) -> None:
        self._cache = cache
        self._keys = keys
        self._entry = entry
        self._chunks: dict[int, File] = {}

    def available(self, position: int, count: int) -> int:
        """How many of these bytes are in the cache, from the first on."""
        end = min(position + count, self._entry.log_size)
        at = position
        while at < end and self._open(at // CHUNK_BYTES) is not None:
            at = min(end, (at // CHUNK_BYTES + 1) * CHUNK_BYTES)
        return at - position

    def pread(self, count: int, position: int) -> bytes:
        """Reads what is missing from the store: in threads."""
        end = min(position + count, self._entry.log_size)
        self.load(position, count)
        return b"".join(
            self._chunk(number).pread(length, start) for number, start, length in _pieces(position, end)
        )

    def pread_now(self, count: int, position: int) -> bytes:
        end = min(position + count, self._entry.log_size)
        return b"".join(
            self._chunk(number).pread_now(length, start) for number, start, length in _pieces(position, end)
        )

    def pread_into_now(self, buffer: memoryview, position: int) -> int:
        data = self.pread_now(len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def is_cached(self, position: int, count: int) -> bool:
        end = min(position + count, self._entry.log_size)
        return all(
            (file := self._open(number)) is not None and file.is_cached(start, length)
            for number, start, length in _pieces(position, end)
        )

    def load(self, position: int, count: int) -> None:
        """Brings them into the cache, and into memory: in threads. ObjectStoreError, OSError."""
        end = min(position + count, self._entry.log_size)
        for number, start, length in _pieces(position, end):
            file = self._open(number)
            if file is None:
                self._cache.read_chunk(self._keys, self._entry, number)
                file = self._chunk(number)
            file.load(start, length)

    def send_to(self, socket_descriptor: int, position: int, count: int) -> int:
        """As sendfile, up to the end of a chunk."""
        for number, start, length in _pieces(position, min(position + count, self._entry.log_size)):
            return self._chunk(number).send_to(socket_descriptor, start, length)
        return 0

    def fileno(self) -> int:
        return -1

    def size(self) -> int:
        return self._entry.log_size

    def pwritev(self, buffers: Sequence[Bytes], position: int) -> int:  # noqa: ARG002
        self._refuse()

    def pwrite(self, data: Bytes, position: int) -> int:  # noqa: ARG002
        self._refuse()

    def truncate(self, size: int) -> None:  # noqa: ARG002
        self._refuse()

    def write_back(self, position: int, count: int) -> None:  # noqa: ARG002
        self._refuse()

    def sync(self) -> None:
        self._refuse()

    def _open(self, number: int) -> File | None:
        file = self._chunks.get(number)
        if file is None:
            file = self._cache.open_chunk(self._entry, number)
            if file is not None:
                self._chunks[number] = file
        return file

    def _chunk(self, number: int) -> File:
        file = self._open(number)
        if file is None:
            raise BlockingIOError(errno.EAGAIN, "not in the cache", self._entry.name)
        return file

    def _refuse(self) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), self._entry.name)


def _pieces(position: int, end: int) -> list[tuple[int, int, int]]:
    """(number, start in it, length) of the chunks that hold these bytes."""
    pieces = []
    while position < end:
        number, start = divmod(position, CHUNK_BYTES)
        length = min(CHUNK_BYTES - start, end - position)
        pieces.append((number, start, length))
        position += length
    return pieces


class RemoteSegment(Segment):
    """See the module. Its indexes can be used once `has_indexes`."""

    __slots__ = ("_cache", "entry", "keys")

    def __init__(self, cache: RemoteCache, keys: PartitionKeys, entry: Entry) -> None:
        super().__init__(
            cache.disk, cache.segment_directory(entry), entry.base_offset, entry.log_size, fresh=False
        )
        self.learn_timestamps((entry.max_timestamp, entry.last_offset))
        self._cache = cache
        self.keys = keys
        self.entry = entry

    @property
    def path(self) -> str:
        """The object's key, for messages."""
        return self.keys.log(self.entry.name)

    @property
    def has_indexes(self) -> bool:
        """Whether they are in the cache."""
        return self._cache.has_aux(self.entry)

    def make_ready(self) -> None:
        """Bring them there: in threads. ObjectStoreError, OSError."""
        self._cache.read_aux(self.keys, self.entry)

    def headers(
        self, position: int, window: int = 8192, *, wait: bool = True
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Up to the last record that the entry stands for."""
        for found, header in super().headers(position, window, wait=wait):
            if header.base_offset > self.entry.last_offset:
                return
            yield found, header

    def position_of(self, offset: int) -> int:
        """Where the batch begins that holds `offset`, the file's end where it has no such batch. BlockingIOError."""
        if offset >= self.entry.end_offset:
            return self.size
        for position, header in super().headers(self.index_position(offset, wait=False), wait=False):
            if header.last_offset >= offset:
                return position
        return self.size

    def open_for_read(self) -> RemoteFile:
        return RemoteFile(self._cache, self.keys, self.entry)

    def transaction_index(self) -> TransactionIndex:
        """Of its aborted transactions; the entry says whether there are any."""
        return TransactionIndex(
            self._cache.disk, self._cache.segment_directory(self.entry), self.base_offset, None
        )


# --- what a replica needs to begin behind a segment: Kafka calls it auxiliary state


def read_aux_state(
    cache: RemoteCache, keys: PartitionKeys, entries: Sequence[Entry], offset: int
) -> AuxState:
    """Of the end of the entry that holds the record before `offset`; `entries` ascend. Blocking. ObjectStoreError, OSError."""
    held = [entry for entry in entries if entry.first_offset < offset]
    if not held or held[-1].last_offset < offset - 1:
        raise ObjectMissing(f"no segment of {keys.manifest} holds the record before {offset}")
    last = held[-1]
    return AuxState(last.last_offset + 1, epochs_of(held), _producers(cache, keys, last))


def epochs_of(entries: Sequence[Entry]) -> list[tuple[int, int]]:
    """The leader epochs of the records in these, ascending, and where each begins."""
    found: list[tuple[int, int]] = []
    for entry in entries:
        for epoch, start in entry.epochs:
            if epoch >= 0 and start <= entry.last_offset and (not found or epoch > found[-1][0]):
                found.append((epoch, max(start, entry.first_offset)))
    return found


def _producers(cache: RemoteCache, keys: PartitionKeys, entry: Entry) -> list[ProducerEntry]:
    content = cache.read_beside(keys, entry, SNAPSHOT_SUFFIX)
    try:
        found = decode_snapshot(content) if content else []
    except CorruptSnapshot as error:
        raise DamagedObject(f"{keys.aux(entry.name)}: {error}") from error
    # Of a producer that has written behind the last record that counts, what it had written up to there is not known.
    return [each for each in found if not each.batches or each.batches[-1].last_offset <= entry.last_offset]
