"""Rebuilding the producers of a log that is opened or truncated: the newest snapshot, then the batches behind it.

A damaged snapshot is removed and the next older one tried; without any the log is read from its start. What
recovery reads batch by batch is replayed while it is read (`replay`), so nothing is read twice.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Callable, Collection, Iterable, Sequence

from barnabas.storage.log.partition_directory import PartitionDirectory
from barnabas.storage.log.producer_snapshot import (
    SNAPSHOT_SUFFIX,
    CorruptSnapshot,
    encode_snapshot,
    read_snapshot,
    snapshot_path,
)
from barnabas.storage.log.producers import PRODUCER_ID_EXPIRATION_MS, ProducerStateManager
from barnabas.storage.segment.segment import Segment
from barnabas.storage.segment.transaction_index import (
    TRANSACTION_INDEX_SUFFIX,
    CorruptTransactionIndex,
    TransactionIndex,
)
from barnabas.storage.segment.transaction_marker import MARKER_SIZE_MAX, find_marker
from barnabas.wire.compression import Bytes
from barnabas.wire.record_batch import BatchHeader, RecordBatchError

logger = logging.getLogger("barnabas.storage")

_SCAN_WINDOW = 1 << 16  # bytes read at a time in search of headers
ALL_COMMITTED = 1 << 62  # a high watermark above every offset
_REPLAYED_AGAIN_MAX = (
    4 << 20
)  # bytes of a log: tens of milliseconds at most, and a start may have thousands of logs


def _list_snapshots(names: Iterable[str]) -> list[int]:
    stems = (name[: -len(SNAPSHOT_SUFFIX)] for name in names if name.endswith(SNAPSHOT_SUFFIX))
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def _is_transaction_index(name: str) -> bool:
    return name.endswith(TRANSACTION_INDEX_SUFFIX) and name[: -len(TRANSACTION_INDEX_SUFFIX)].isdecimal()


class ProducerRecovery:
    """The producers as of `offset`, brought forward step by step. OSError as the disk gives it."""

    def __init__(
        self,
        directory: PartitionDirectory,
        names: Collection[str],
        log_start_offset: int,
        *,
        high_watermark: int = ALL_COMMITTED,
        now_ms: int = 0,
        expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
    ) -> None:
        """`names` are those in `directory`; `now_ms` 0 lets no producer expire. A transaction whose marker lies at or above
        `high_watermark` holds readers back until that has passed the marker."""
        self.offset = -1
        self.producers = ProducerStateManager(directory.name)
        self.transaction_indexes: dict[int, TransactionIndex] = {}
        self.snapshot_offset = -1  # of the one that was loaded, or where the log is known to begin
        self._directory = directory
        self._log_start_offset = log_start_offset
        self._high_watermark = high_watermark
        self._has_markers = False  # whether the loaded snapshot knows a producer whose transaction has ended
        self._snapshots = _list_snapshots(names)
        self._indexed = {int(name[:20]) for name in names if _is_transaction_index(name)}
        self._now_ms = now_ms
        self._expiration_ms = expiration_ms

    def begin(self, recovery_point: int) -> None:
        """After a crash: load the newest snapshot of at most the recovery point, and remove those beyond it."""
        self.drop_snapshots_beyond(recovery_point)
        self._load_newest(recovery_point)

    def take_transaction_index(self, segment: Segment) -> bool:
        """Whether the segment's transaction index can be trusted, and is used from now on, or there is none."""
        if segment.base_offset not in self._indexed:
            return True
        index = TransactionIndex(self._directory.disk, self._directory.path, segment.base_offset, None)
        try:
            if index.entries():
                self.transaction_indexes[segment.base_offset] = index
        except CorruptTransactionIndex as error:
            logger.warning("%s is rebuilt: %s", index.path, error)
            return False
        return True

    def go_back(self, offset: int) -> None:
        """Drop the state of `offset` and beyond; `advance` then begins with an older snapshot."""
        self.drop_snapshots_beyond(offset)
        if self.offset > offset:
            self.offset = self.snapshot_offset = -1
            self.producers.restore([], self._now_ms, self._expiration_ms)

    def reset(self) -> None:
        """The log restarts: there are no producers."""
        self.go_back(-1)
        self.transaction_indexes.clear()

    def as_of(self, offset: int) -> ProducerRecovery:
        """A ProducerRecovery of the same log with the snapshots of at most `offset` only."""
        other = ProducerRecovery(
            self._directory, (), self._log_start_offset, high_watermark=self._high_watermark
        )
        other._snapshots = [snapshot for snapshot in self._snapshots if snapshot <= offset]
        return other

    def drop_snapshots_beyond(self, offset: int) -> None:
        """Remove them: the batches that they describe may not be in the log."""
        self._drop(lambda snapshot: snapshot > offset)

    def drop_snapshots_before(self, offset: int) -> None:
        """Remove them: they lack the sequences of later batches, which have been removed from the log."""
        self._drop(lambda snapshot: snapshot < offset)

    def finish(self, segments: Sequence[Segment], end_offset: int) -> None:
        """Advance to the log's end, and remove the files that describe nothing in it."""
        self.go_back(end_offset)
        self.cut_transaction_index(segments[-1].base_offset, end_offset)
        bases = {segment.base_offset for segment in segments}
        for base in self.transaction_indexes.keys() - bases:
            del self.transaction_indexes[base]
        self._drop_strays(bases)
        self.advance(segments, end_offset)
        index = self.transaction_indexes.get(segments[-1].base_offset)
        if index is not None:  # a marker whose entry could not be added would be in the log all the same
            index.hold()
        self._find_uncommitted_ends(segments)

    def advance(self, segments: Sequence[Segment], offset: int) -> None:
        """Advance to `offset`, which the batches in `segments` reach."""
        if self.offset >= offset:
            return
        self._load_or_begin(segments, offset)
        for index, segment in enumerate(segments):
            if self.offset < offset and (
                index + 1 == len(segments) or segments[index + 1].base_offset > self.offset
            ):
                self._scan(segment, offset)
        self.offset = offset

    def _load_or_begin(self, segments: Sequence[Segment], limit: int) -> None:
        """The newest snapshot of at most `limit`; without any, and without what is known, begin where the log does."""
        self._load_newest(limit)
        if self.offset < 0:
            first = segments[0].base_offset if segments else limit
            self.offset = self.snapshot_offset = min(limit, max(first, self._log_start_offset))

    def save(self) -> None:
        """Write a snapshot of the current state, synced: the segments before it may be removed soon."""
        if self.offset not in self._snapshots:
            content = encode_snapshot(self.producers.entries.values())
            self._directory.disk.write_file(snapshot_path(self._directory.path, self.offset), content)
            bisect.insort(self._snapshots, self.offset)

    def reached(self, offset: int) -> None:
        """Everything before `offset` has been replayed."""
        self.offset = max(self.offset, offset)

    def replay(self, segment: Segment, header: BatchHeader, batch: Bytes) -> None:
        """The next batch of `segment`; it is known already when it lies before `offset`. Of a control batch
        the whole is needed, of another only the header."""
        if header.producer_id < 0 or header.last_offset < self.offset:
            return
        aborted = self.producers.replay(header, find_marker(batch) if header.is_control else None)
        self.producers.committed_to(self._high_watermark)
        if aborted is None:
            return
        index = self.transaction_indexes.get(segment.base_offset)
        if index is None:
            index = TransactionIndex(self._directory.disk, self._directory.path, segment.base_offset, ())
            self.transaction_indexes[segment.base_offset] = index
        if index.last_offset < aborted.last_offset:  # otherwise the index has it already
            index.append(aborted)

    def cut_transaction_index(self, base_offset: int, offset: int) -> None:
        """Remove the transactions of that segment that end at `offset` or later."""
        index = self.transaction_indexes.get(base_offset)
        if index is not None and index.last_offset >= offset:
            kept = [transaction for transaction in index.entries() if transaction.last_offset < offset]
            self.transaction_indexes[base_offset] = TransactionIndex(
                self._directory.disk, self._directory.path, base_offset, kept
            )

    def _drop_strays(self, bases: Collection[int]) -> None:
        """Keep the snapshots of segments, and the newest one if it lies behind the last segment's, as Kafka does."""
        newest = self._snapshots[-1] if self._snapshots else -1
        last_base = max(bases)
        self._drop(lambda snapshot: snapshot not in bases and not snapshot == newest > last_base)

    def _load_newest(self, limit: int) -> None:
        """The newest snapshot of at most `limit`, when it is newer than what is known."""
        for snapshot in self._snapshots[::-1]:
            if snapshot <= self.offset:
                return
            if snapshot > limit:
                continue
            try:
                entries = read_snapshot(self._directory.disk, self._directory.path, snapshot)
            except (CorruptSnapshot, OSError) as error:
                logger.warning(
                    "%s: the snapshot of offset %d is dropped: %s", self._directory.path, snapshot, error
                )
                self._remove(snapshot)
                continue
            self.producers.restore(entries, self._now_ms, self._expiration_ms)
            self._has_markers = any(entry.coordinator_epoch >= 0 for entry in entries)
            self.offset = self.snapshot_offset = snapshot
            return

    def _scan(self, segment: Segment, offset: int) -> None:
        """Replay the batches of `segment` from `self.offset` to `offset`."""
        position = segment.index_position(self.offset)
        try:
            for at, header in segment.headers(position, _SCAN_WINDOW):
                if header.base_offset >= offset:
                    return
                batch = b""
                if header.is_control:
                    batch = segment.open_for_read().pread(min(header.size, MARKER_SIZE_MAX), at)
                self.replay(segment, header, batch)
        except RecordBatchError as error:  # reads report it; the log opens all the same
            logger.warning("%s: producers behind damage are unknown: %s", segment.path, error)

    def _find_uncommitted_ends(self, segments: Sequence[Segment]) -> None:
        """A snapshot does not say which transactions were ended between the high watermark and the snapshot. Where there are any,
        replay that part from an older snapshot as well; where that would take long, they count as having begun by the older
        snapshot."""
        start, end = self._high_watermark, self.snapshot_offset
        if not self._has_markers or start >= end:
            return
        last_marker = end - 1
        if _bytes_between(segments, start, end) <= _REPLAYED_AGAIN_MAX:
            last_marker = _last_marker(segments, start, end)
            if last_marker < 0:
                return
        earlier = self.as_of(start)
        earlier._load_or_begin(segments, start)
        if _bytes_between(segments, earlier.offset, end) <= _REPLAYED_AGAIN_MAX:
            earlier.advance(segments, end)
        else:
            earlier.producers.hold_back(earlier.producers.first_unstable_offset(earlier.offset), last_marker)
        self.producers.add_uncommitted_ends(earlier.producers)

    def _drop(self, unwanted: Callable[[int], bool]) -> None:
        for snapshot in [snapshot for snapshot in self._snapshots if unwanted(snapshot)]:
            self._remove(snapshot)

    def _remove(self, snapshot: int) -> None:
        self._directory.disk.remove(snapshot_path(self._directory.path, snapshot))
        self._snapshots.remove(snapshot)


def _bytes_between(segments: Sequence[Segment], start: int, end: int) -> int:
    """At most how many bytes of the log lie in [start, end), where `end` is the log's or a segment's base offset."""
    behind = [segment for segment in segments if segment.base_offset < end]
    while len(behind) > 1 and behind[1].base_offset <= start:
        del behind[0]
    return sum(segment.size for segment in behind) - (behind[0].index_position(start) if behind else 0)


def _last_marker(segments: Sequence[Segment], start: int, end: int) -> int:
    """The offset of the last control batch in [start, end); -1 when there is none."""
    last = -1
    for index, segment in enumerate(segments):
        if index + 1 < len(segments) and segments[index + 1].base_offset <= start:
            continue
        if segment.base_offset >= end:
            break
        try:
            for _, header in segment.headers(segment.index_position(start), _SCAN_WINDOW):
                if header.base_offset >= end:
                    break
                if header.is_control and header.base_offset >= start:
                    last = header.base_offset
        except RecordBatchError as error:
            logger.warning("%s: markers behind damage are unknown: %s", segment.path, error)
    return last
