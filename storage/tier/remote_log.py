"""The tiered part of one log, for reading: from the manifest to the bytes in the cache.

A read answers with what is in the cache, up to the first chunk that is not; if the first batch is not, WouldWait says what a
thread has to read. The next chunks are read ahead.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

import msgspec

from barnabas.runtime.interface import Runtime
from barnabas.runtime.slices import Steps
from barnabas.storage.disk.disk import FileRegion
from barnabas.storage.errors import OffsetOutOfRange, StorageError, WouldWait
from barnabas.storage.log.segments import NOTHING_READ, AuxState, ReadResult
from barnabas.storage.segment.segment import Segment
from barnabas.storage.segment.transaction_index import AbortedTransaction, TransactionIndex
from barnabas.storage.tier.keys import PartitionKeys
from barnabas.storage.tier.manifest import CHUNK_BYTES, Entry, Manifest
from barnabas.storage.tier.object_store import ObjectStoreError
from barnabas.storage.tier.remote_cache import RemoteCache
from barnabas.storage.tier.remote_segment import RemoteSegment, read_aux_state
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import RecordBatchError

logger = logging.getLogger("barnabas.tier")

PREFETCH_BYTES: Final = 16 * 1024 * 1024
SUPERSEDED_S: Final = 5.0  # until a manifest that the present leader has not claimed is looked at again
RETRY_S: Final = 1.0  # after a read from the store that failed: until then others fail at once


class TierStats(msgspec.Struct):
    """What the tier of a broker has done since the start, under the names of Kafka's BrokerTopicMetrics; bytes of log files."""

    copied_bytes: int = 0
    copy_requests: int = 0
    copy_errors: int = 0
    fetched_bytes: int = 0
    fetch_requests: int = 0
    fetch_errors: int = 0
    deleted_bytes: int = 0
    delete_requests: int = 0
    delete_errors: int = 0
    build_aux_requests: int = 0  # of replicas that begin behind what is tiered
    build_aux_errors: int = 0
    orphans_removed: int = 0  # objects
    orphan_bytes_removed: int = 0


class Quota(Protocol):
    """A limit of bytes a second (KIP-956)."""

    def record(self, size: int) -> None:
        """These bytes have been transferred."""
        ...

    def is_exceeded(self) -> bool:
        """Whether nothing may be transferred now."""
        ...

    def wait(self, size: int) -> None:
        """In a thread: wait until it allows more, and count these bytes. OSError where it will not."""
        ...


class Unlimited:
    """No limit."""

    def record(self, size: int) -> None:
        """Nothing."""

    def is_exceeded(self) -> bool:
        return False

    def wait(self, size: int) -> None:
        """Nothing."""


class RemoteLog:
    """See the module; RemoteReads (storage/log/segments.py)."""

    __slots__ = (
        "_cache",
        "_failed_until",
        "_failure",
        "_found",
        "_is_claimed",
        "_leader_epoch",
        "_leaders_tiered_offset",
        "_look_again_at",
        "_prefetched",
        "_quota",
        "_read_at",
        "_read_manifest",
        "_runtime",
        "_stats",
        "_tiered_offset",
        "_transaction_indexes",
        "_view",
        "keys",
        "manifest",
        "name",
    )  # fmt: skip

    def __init__(
        self,
        runtime: Runtime,
        cache: RemoteCache,
        stats: TierStats,
        keys: PartitionKeys,
        name: str,
        read_manifest: Callable[[], Manifest | None],
        quota: Quota,
    ) -> None:
        """`quota`: of what is read. `name`: of the log, for messages. `read_manifest()` reads it from the store, in a thread; None where there is none."""
        self._runtime = runtime
        self._cache = cache
        self._stats = stats
        self.keys = keys
        self.name = name
        self._read_manifest = read_manifest
        self._quota = quota
        self.manifest: Manifest | None = None  # None: not read yet
        self._view: tuple[list[Entry], list[int]] = (
            [],
            [],
        )  # the entries that can be read, and their first offsets
        self._tiered_offset = -1  # also of entries that have expired since; -1: none is known
        self._leaders_tiered_offset = -1  # as the leader that is followed here has said; -1: none, or not yet
        self._is_claimed = False  # this broker leads and has claimed the manifest: no other can be newer
        self._leader_epoch = -1  # of the partition, whichever broker leads it
        self._transaction_indexes: dict[
            str, TransactionIndex
        ] = {}  # by the segment's name, of those that were looked at
        # What a thread has read from the store, when, on the monotonic clock, and for which leader epoch; adopted on the loop.
        self._found: tuple[Manifest | None, float, int] | None = None
        self._read_at = 0.0
        self._look_again_at = 0.0  # on the monotonic clock
        self._failed_until = 0.0
        self._failure = ""
        self._prefetched: tuple[str, int] | None = None  # the last chunk that was asked for ahead

    def claimed(self, manifest: Manifest) -> None:
        """The leader here has written this manifest, or knows that there is none in the store."""
        self._is_claimed = True
        self._adopt(manifest)

    def _adopt(self, manifest: Manifest) -> None:
        entries = manifest.present
        if entries:
            self._tiered_offset = entries[-1].last_offset
        elif self._tiered_offset >= manifest.log_start_offset:
            self._tiered_offset = -1  # its segments have not expired: the log has been cut
        self._view = entries, [entry.first_offset for entry in entries]
        self._transaction_indexes.clear()
        self.manifest = manifest

    def forget(self, leader_epoch: int) -> None:
        """The partition has another leader, or another leader epoch: what has been read of the manifest no longer counts."""
        self._is_claimed = False
        self._leader_epoch = leader_epoch
        self.manifest, self._view, self._tiered_offset, self._leaders_tiered_offset = None, ([], []), -1, -1
        self._found, self._read_at, self._look_again_at = None, 0.0, 0.0
        self._transaction_indexes.clear()

    @property
    def is_over_quota(self) -> bool:
        """Whether clients get nothing from the store for now."""
        return self._quota.is_exceeded()

    @property
    def entries(self) -> Sequence[Entry]:
        """Those that can be read, ascending."""
        return self._view[0]

    @property
    def size(self) -> int:
        """Bytes of their log files."""
        return sum(entry.log_size for entry in self.entries)

    @property
    def tiered_offset(self) -> int:
        """The last offset that is tiered, or has been and expired; -1 when none is, or that is not known: before a leader has claimed
        the manifest it is open whether it keeps what that names. A follower knows what its leader has said."""
        return self._tiered_offset if self._is_claimed else self._leaders_tiered_offset

    # --- reading

    def read(self, offset: int, max_bytes: int, min_one_batch: bool, limit: int) -> ReadResult:
        """As RemoteReads says."""
        self._check_failure()
        segment = self._holding(offset)
        try:
            if not segment.has_indexes:
                raise BlockingIOError
            located = segment.locate(offset, wait=False)
            if located is None:
                return NOTHING_READ
            position, header = located
            file = segment.open_for_read()
            stop = segment.position_of(min(limit, segment.entry.last_offset + 1))
            length = min(stop - position, max_bytes)
            if header.size > max_bytes:
                if not min_one_batch:
                    return NOTHING_READ
                length = header.size
            length = file.available(position, length)
            if length < header.size:
                raise BlockingIOError
        except (BlockingIOError, FileNotFoundError) as missing:
            stop_offset = min(limit, segment.entry.last_offset + 1)
            self._note_missing(segment, missing)
            raise self._would_wait(partial(_load, segment, offset, max_bytes, stop_offset)) from None
        except (OSError, RecordBatchError) as error:
            raise self._error(error) from error
        self._stats.fetch_requests += 1
        self._stats.fetched_bytes += length
        self._quota.record(length)
        self._prefetch(segment.entry, position + length)
        return ReadResult((FileRegion(file, position, length),), length, segment.entry.first_offset, position)

    def collect_aborted(
        self, start: int, end: int, found: list[AbortedTransaction], limit: int | None
    ) -> bool:
        """As RemoteReads says."""
        entries, firsts = self._view
        for entry in entries[max(0, bisect_right(firsts, start) - 1) :]:
            if not entry.has_aborted:
                continue
            segment = RemoteSegment(self._cache, self.keys, entry)
            index = self._transaction_indexes.get(entry.name)
            if index is None:
                index = self._transaction_indexes[entry.name] = segment.transaction_index()
            before = len(found)
            try:
                if not segment.has_indexes:
                    raise BlockingIOError
                is_all = index.collect(start, end, found, limit, wait=False)
            except (BlockingIOError, FileNotFoundError) as missing:
                self._note_missing(segment, missing)
                raise self._would_wait(partial(_load_transactions, segment, index)) from None
            except OSError as error:
                raise self._error(error) from error
            if entry.is_cut:  # markers behind its last record are not in this log
                found[before:] = [each for each in found[before:] if each.last_offset <= entry.last_offset]
            elif is_all:
                return True
        return False

    def indexed_end(self, read: ReadResult) -> int:
        """As RemoteReads says."""
        segment = self._holding(read.segment_base)
        try:
            beyond = segment.offset_index.first_at(read.position + read.size, wait=False)
        except (BlockingIOError, FileNotFoundError) as missing:
            self._note_missing(segment, missing)
            raise self._would_wait(partial(_load_offset_index, segment)) from None
        except OSError as error:
            raise self._error(error) from error
        return segment.base_offset + beyond[0] if beyond is not None else segment.entry.last_offset + 1

    def aux_state(self, offset: int, leader_epoch: int) -> Steps[AuxState]:
        """As RemoteReads says."""
        self._stats.build_aux_requests += 1
        try:
            state: AuxState = yield partial(self._read_aux_state, offset, leader_epoch)
        except Exception:
            self._stats.build_aux_errors += 1
            raise
        return state

    def _read_aux_state(self, offset: int, leader_epoch: int) -> AuxState:
        manifest = self._read_manifest()
        if manifest is None or manifest.leader_epoch != leader_epoch:
            raise ObjectStoreError(
                f"the leader of epoch {leader_epoch} has not claimed the manifest of {self.name} yet"
            )
        return read_aux_state(self._cache, self.keys, manifest.present, offset)

    def leader_has_tiered(self, tiered_offset: int) -> None:
        """As RemoteReads says."""
        self._leaders_tiered_offset = tiered_offset

    def segments(self, start: int, end: int) -> Steps[Sequence[Segment]]:
        """As RemoteReads says."""
        if self.manifest is None:
            self._check_failure()
            yield partial(self._note_failure, self._manifest_loader())
            self._check_failure()
            self._take_found()
        return [
            RemoteSegment(self._cache, self.keys, entry)
            for entry in self.entries
            if entry.last_offset >= start and entry.first_offset < end
        ]

    def _holding(self, offset: int) -> RemoteSegment:
        self._take_found()
        if self.manifest is None and not self._read_at:
            raise self._would_wait(self._manifest_loader())
        entries, firsts = self._view
        index = bisect_right(firsts, offset) - 1
        if index < 0 or entries[index].last_offset < offset:
            if not self._is_claimed and self._runtime.monotonic() - self._read_at > RETRY_S:
                raise self._would_wait(self._manifest_loader())  # the leader may have written another
            raise OffsetOutOfRange(f"offset {offset} of {self.name} is neither here nor in remote storage")
        self._replace_superseded()
        return RemoteSegment(self._cache, self.keys, entries[index])

    def _replace_superseded(self) -> None:
        """Where the manifest is that of an earlier leader: the present one will claim it, and may take some entries out. Readers do
        not wait for that: a store that is away would make all that is in the cache useless."""
        if self._is_claimed or self.manifest is None or self.manifest.leader_epoch >= self._leader_epoch:
            return
        now = self._runtime.monotonic()
        if now >= self._look_again_at and now - self._read_at > RETRY_S:
            self._look_again_at = now + SUPERSEDED_S
            self._runtime.run_in_thread(self._manifest_loader(), _ignore, remote=True)

    def _note_missing(self, segment: RemoteSegment, error: OSError) -> None:
        """A read of the segment has met this; a file of its indexes may have been removed by another program."""
        if isinstance(error, FileNotFoundError):
            self._cache.forget_indexes(segment.entry)

    def _would_wait(self, work: Callable[[], object]) -> WouldWait:
        return WouldWait(partial(self._note_failure, work), is_remote=True)

    # --- in threads

    def _note_failure(self, work: Callable[[], object]) -> None:
        try:
            work()
        except (BlockingIOError, FileNotFoundError):  # dropped from the cache again: the read is tried again
            pass
        except Exception as error:  # noqa: BLE001 - it is the reader's, whatever an object holds
            self._failure = f"{self.name} can't be read from remote storage: {error}"
            self._failed_until = self._runtime.monotonic() + RETRY_S
            logger.warning("%s", self._failure)

    def _manifest_loader(self) -> Callable[[], object]:
        leader_epoch = self._leader_epoch

        def load() -> None:
            self._found = self._read_manifest(), self._runtime.monotonic(), leader_epoch

        return load

    def _take_found(self) -> None:
        """On the loop: adopt what a thread has read, unless the leader here knows better by now."""
        found, self._found = self._found, None
        if found is None or self._is_claimed or found[2] != self._leader_epoch:
            return
        manifest, self._read_at, _ = found
        if manifest is not None:
            self._adopt(manifest)

    def _check_failure(self) -> None:
        if self._failed_until and self._runtime.monotonic() < self._failed_until:
            self._stats.fetch_errors += 1
            raise StorageError(ErrorCode.KAFKA_STORAGE_ERROR, self._failure)

    def _error(self, error: BaseException) -> StorageError:
        return StorageError(ErrorCode.KAFKA_STORAGE_ERROR, f"Error while reading {self.name}: {error}")

    def _prefetch(self, entry: Entry, position: int) -> None:
        """A reader has got the bytes before `position` and will ask for those behind it."""
        chunk = min(position, entry.log_size - 1) // CHUNK_BYTES
        wanted = self._chunks_from(entry, chunk)
        last = wanted[-1][0].name, wanted[-1][1]
        if last == self._prefetched:
            return
        self._prefetched = last
        missing = [each for each in wanted if not self._cache.is_coming(*each)]
        for missed, number in missing:
            work = partial(self._cache.read_chunk, self.keys, missed, number)
            self._runtime.run_in_thread(work, _ignore, remote=True)

    def _chunks_from(self, entry: Entry, chunk: int) -> list[tuple[Entry, int]]:
        """The chunks of PREFETCH_BYTES from this one on, across segments."""
        wanted: list[tuple[Entry, int]] = []
        entries, firsts = self._view
        for each in entries[bisect_right(firsts, entry.first_offset) - 1 :]:
            for number in range(chunk if each is entry else 0, each.chunk_count):
                wanted.append((each, number))
                if len(wanted) * CHUNK_BYTES >= PREFETCH_BYTES:
                    return wanted
        return wanted


def _load(segment: RemoteSegment, offset: int, max_bytes: int, stop_offset: int) -> None:
    """What a read from `offset` up to `stop_offset` needs; where the file goes on behind that, the header there."""
    segment.make_ready()
    located = segment.locate(offset)
    if located is not None:
        segment.offset_index.load()
        position, header = located
        segment.open_for_read().load(position, max(header.size, min(max_bytes, CHUNK_BYTES)))
    if stop_offset < segment.entry.end_offset:
        segment.locate(stop_offset)


def _load_transactions(segment: RemoteSegment, index: TransactionIndex) -> None:
    segment.make_ready()
    index.load()


def _load_offset_index(segment: RemoteSegment) -> None:
    segment.make_ready()
    segment.offset_index.load()


def _ignore(_result: object, error: BaseException | None) -> None:
    """Of reading ahead: who needs the chunk reads it again."""
    if error is not None:
        logger.debug("reading ahead failed: %s", error)
