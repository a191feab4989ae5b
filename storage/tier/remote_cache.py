"""What has been read from the object store, as files: chunks of tiered segments, and the objects beside them unpacked.

It lies in Kafka's directory for it, `remote-log-index-cache` of a log directory, holds `size_max` bytes and drops what has not
been used for longest. It begins empty: what a killed broker had read is removed at the start. A file that is dropped stays
readable for those who have it open, so a fetch can always send what it has found.

    <cache>/<segment's name>/<base offset>.index, .timeindex, .txnindex, .snapshot, .checksums
    <cache>/<segment's name>/<number>.chunk
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from barnabas.runtime.locks import Lock, SingleFlight
from barnabas.storage.disk.disk import Disk, File
from barnabas.storage.log.producer_snapshot import SNAPSHOT_SUFFIX
from barnabas.storage.segment.segment import INDEX_SUFFIX, TIME_INDEX_SUFFIX, offset_file_name
from barnabas.storage.segment.transaction_index import TRANSACTION_INDEX_SUFFIX
from barnabas.storage.tier.keys import PartitionKeys
from barnabas.storage.tier.manifest import CHUNK_BYTES, Entry
from barnabas.storage.tier.object_store import ObjectStore, ObjectStoreError
from barnabas.wire.checksum import crc32c

logger = logging.getLogger("barnabas.tier")

CACHE_DIRECTORY: Final = "remote-log-index-cache"
CHECKSUMS_SUFFIX: Final = ".checksums"  # CRC-32C of each chunk of the log, 4 bytes big-endian
# In the order in which they lie in the object.
AUX_SUFFIXES: Final = (
    INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    CHECKSUMS_SUFFIX,
)
SIZE_MIN: Final = 32 * 1024 * 1024  # a reader needs some chunks and the indexes beside them at once
WAIT_S: Final = 30.0  # for another thread that reads the same; then the read is tried again
AUX: Final = -1  # in the place of a chunk's number


class DamagedObject(ObjectStoreError):
    """An object is not what was uploaded: its size or checksum differs."""


class Cached(msgspec.Struct, frozen=True):
    """What the cache counts as one: a chunk, or the files beside the log (AUX)."""

    name: str
    chunk: int


class RemoteCache:
    """See the module. `open_chunk` and `has_aux` do not wait; the others do, in threads. Of all threads."""

    def __init__(self, disk: Disk, store: ObjectStore, directory: str, size_max: int) -> None:
        """The directory is emptied. OSError."""
        self.disk = disk
        self.directory = directory
        self.size_max = max(size_max, SIZE_MIN)
        self._store = store
        self._lock = Lock()
        self._sizes: dict[Cached, int] = {}  # the one used last is last
        self._size = 0
        self._flights = SingleFlight()
        if disk.exists(directory):
            disk.remove_tree(directory)
        disk.make_directory(directory, parents=True)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return self._size

    def segment_directory(self, entry: Entry) -> str:
        """Where the files of this segment lie."""
        return f"{self.directory}/{entry.name}"

    def has_aux(self, entry: Entry) -> bool:
        """Whether the indexes are here."""
        return self._use(Cached(entry.name, AUX))

    def open_chunk(self, entry: Entry, chunk: int) -> File | None:
        """The chunk's file; None where it has to be read first."""
        cached = Cached(entry.name, chunk)
        if not self._use(cached):
            return None
        try:
            return self.disk.open(self._chunk_path(cached))
        except FileNotFoundError:  # dropped a moment ago, or removed by another program
            self._forget([cached])
            return None

    def is_coming(self, entry: Entry, chunk: int) -> bool:
        """Whether it is here, or a thread reads it."""
        cached = Cached(entry.name, chunk)
        return cached in self._sizes or self._flights.is_under_way(cached)

    def read_aux(self, keys: PartitionKeys, entry: Entry) -> None:
        """Have the indexes here. ObjectStoreError, OSError."""
        self._read(Cached(entry.name, AUX), partial(self._unpack_aux, keys, entry))

    def read_beside(self, keys: PartitionKeys, entry: Entry, suffix: str) -> bytes:
        """The content of one of these files. ObjectStoreError, OSError."""
        path = f"{self.segment_directory(entry)}/{offset_file_name(entry.base_offset, suffix)}"
        self.read_aux(keys, entry)
        try:
            return self.disk.read_file(path)
        except FileNotFoundError:  # dropped a moment ago, or removed by another program
            self.forget_indexes(entry)
            self.read_aux(keys, entry)
            return self.disk.read_file(path)

    def read_chunk(self, keys: PartitionKeys, entry: Entry, chunk: int) -> None:
        """Have the chunk here. ObjectStoreError, OSError."""
        self._read(Cached(entry.name, chunk), partial(self._download_chunk, keys, entry, chunk))

    def forget(self, entry: Entry) -> None:
        """Drop all that belongs to the segment."""
        self._forget([cached for cached in tuple(self._sizes) if cached.name == entry.name])

    def forget_indexes(self, entry: Entry) -> None:
        """Drop the files beside the log, of which one is missing."""
        self._forget([Cached(entry.name, AUX)])

    def _forget(self, dropped: list[Cached]) -> None:
        with self._lock:
            self._drop([cached for cached in dropped if cached in self._sizes])

    def _use(self, cached: Cached) -> bool:
        with self._lock:
            size = self._sizes.pop(cached, None)
            if size is None:
                return False
            self._sizes[cached] = size
        return True

    def _read(self, cached: Cached, work: Callable[[], int]) -> None:
        def read() -> None:
            if cached in self._sizes:  # another flight has ended a moment ago
                return
            size = work()
            with self._lock:
                self._sizes[cached] = size
                self._size += size
                self._drop(self._choose_to_drop(cached))

        if cached not in self._sizes:
            self._flights.do(cached, read, WAIT_S)

    def _choose_to_drop(self, kept: Cached) -> list[Cached]:
        excess = self._size - self.size_max
        dropped = []
        for cached, size in self._sizes.items():
            if excess <= 0:
                break
            if cached != kept:
                dropped.append(cached)
                excess -= size
        return dropped

    def _drop(self, dropped: list[Cached]) -> None:
        """With the lock: a file that is read again meanwhile must not be removed."""
        for cached in dropped:
            self._size -= self._sizes.pop(cached, 0)
            try:
                for path in self._paths(cached):
                    self.disk.remove(path)
            except OSError as error:
                logger.warning("%s of %s could not be dropped: %s", cached.name, self.directory, error)

    def _paths(self, cached: Cached) -> list[str]:
        if cached.chunk != AUX:
            return [self._chunk_path(cached)]
        base_offset = int(cached.name.split("-")[0])
        return [
            f"{self.directory}/{cached.name}/{offset_file_name(base_offset, suffix)}"
            for suffix in AUX_SUFFIXES
        ]

    def _chunk_path(self, cached: Cached) -> str:
        return f"{self.directory}/{cached.name}/{cached.chunk}.chunk"

    def _download_chunk(self, keys: PartitionKeys, entry: Entry, chunk: int) -> int:
        checksum = self.read_beside(keys, entry, CHECKSUMS_SUFFIX)[4 * chunk : 4 * chunk + 4]
        start = chunk * CHUNK_BYTES
        length = min(CHUNK_BYTES, entry.log_size - start)
        data = self._store.get_range(keys.log(entry.name), start, length)
        if len(data) != length or crc32c(data).to_bytes(4, "big") != checksum:
            raise DamagedObject(f"{keys.log(entry.name)} from byte {start} on is not what was uploaded")
        self._write(entry, f"{chunk}.chunk", data)
        return length

    def _unpack_aux(self, keys: PartitionKeys, entry: Entry) -> int:
        data, _ = self._store.get(keys.aux(entry.name), entry.aux_size)
        if len(data) != entry.aux_size or crc32c(data) != entry.aux_checksum:
            raise DamagedObject(f"{keys.aux(entry.name)} is not what was uploaded")
        rest = memoryview(data)
        for suffix, size in zip(AUX_SUFFIXES, entry.aux_sizes, strict=True):
            part, rest = rest[:size], rest[size:]
            self._write(entry, offset_file_name(entry.base_offset, suffix), part)
        return len(data)

    def _write(self, entry: Entry, name: str, data: bytes | memoryview) -> None:
        directory = self.segment_directory(entry)
        if not self.disk.exists(directory):
            self.disk.make_directory(directory, parents=True)
        self.disk.write_file(f"{directory}/{name}", data, sync=False)
