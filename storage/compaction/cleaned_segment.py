"""Writing the segment that compaction puts in place of others: its log, its indexes, its transaction index.

Every file is named `.cleaned` and synced before the log uses it; a start removes files of that
name. One writer is used by one thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.storage.disk.disk import Disk, write_rest
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.segment.segment import CLEANED_SUFFIX, Segment
from barnabas.storage.segment.transaction_index import (
    AbortedTransaction,
    encode_transactions,
    transaction_index_path,
)
from barnabas.wire.compression import Bytes
from barnabas.wire.record_batch import BatchHeader

_WRITE_BYTES = 1 << 20  # gathered before they are written


class CleanedSegmentWriter:
    """Append batches in offset order, then `finish` or `discard`, once."""

    def __init__(self, disk: Disk, directory: str, base_offset: int, config: LogConfig) -> None:
        """OSError leaves at most an empty file."""
        self._disk = disk
        self._directory = directory
        self._config = config
        self._segment = Segment(disk, directory, base_offset, 0, fresh=True, suffix=CLEANED_SUFFIX)
        self._file = disk.open(self._segment.path, create=True)
        self._file.truncate(0)  # of a cleaning that was given up and could not remove it
        self._parts: list[bytes] = []
        self._gathered = 0
        self._position = 0

    def append(self, batch: Bytes, header: BatchHeader) -> None:
        """The next batch; what it is a view of is not kept."""
        size = header.size
        self._segment.appended(
            header, size, self._config.index_interval_bytes, self._config.segment_index_bytes
        )
        self._parts.append(bytes(batch))
        self._gathered += size
        if self._gathered >= _WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._parts:
            write_rest(self._file, b"".join(self._parts), 0, self._position)
            self._position += self._gathered
            self._parts.clear()
            self._gathered = 0

    def finish(self, aborted: Sequence[AbortedTransaction], like: str) -> Segment:
        """The segment, synced; as old as the file `like`, for retention."""
        segment = self._segment
        self._flush()
        self._file.sync()
        segment.add_time_index_entry()
        segment.save_indexes(sync=True)
        if aborted:
            path = transaction_index_path(self._directory, segment.base_offset) + CLEANED_SUFFIX
            self._disk.write_file(path, encode_transactions(aborted))
        self._disk.set_modified_ms(segment.path, self._disk.modified_ms(like))
        self._disk.sync_directory(self._directory)
        return segment

    def discard(self) -> None:
        """Remove what has been written, as far as the disk allows; a start does the rest."""
        try:
            for path in self._segment.files:
                self._disk.remove(path)
        except OSError:
            pass
