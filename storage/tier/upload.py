"""Copies one closed segment to the object store: its log file as it is, and one object with what lies beside it.

The manifest names it afterwards; until then what has been written is an orphan, and another attempt uses other keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from barnabas.storage.disk.disk import Disk, File
from barnabas.storage.log.log import Log
from barnabas.storage.log.producer_snapshot import snapshot_path
from barnabas.storage.segment.segment import INDEX_SUFFIX, TIME_INDEX_SUFFIX, Segment, offset_file_name
from barnabas.storage.segment.transaction_index import TRANSACTION_INDEX_SUFFIX
from barnabas.storage.tier.keys import PartitionKeys, segment_name
from barnabas.storage.tier.manifest import CHUNK_BYTES, Entry, epochs_between
from barnabas.storage.tier.object_store import ObjectStore
from barnabas.wire.checksum import crc32c

CHUNKS_PER_PART: Final = 2


class SegmentToCopy(msgspec.Struct):
    """A closed segment, as the loop knows it. `files`: the paths of its offset, time and transaction index and of the snapshot of
    the producers at its end; one that does not exist is empty."""

    segment: Segment
    file: File
    first_offset: int
    last_offset: int
    files: list[str]
    epochs: list[tuple[int, int]]
    name: str


def segment_to_copy(log: Log, first_offset: int, leader_epoch: int, nonce: str) -> SegmentToCopy | None:
    """The segment that holds `first_offset`, from which on it is to be read there, if it may be copied: it is closed and on the disk
    with its indexes, and transactions in it have ended (it lies below the last stable offset). `leader_epoch` and `nonce` name the
    attempt. OSError."""
    segments = log.segments
    index = segments.index_of(first_offset)
    if index + 1 >= len(segments) or segments[index].size == 0 or first_offset < segments.bases[0]:
        return None
    segment, end = segments[index], segments[index + 1].base_offset
    if end > min(log.last_stable_offset, log.flusher.recovery_checkpoint):
        return None
    beside = [
        f"{log.directory}/{offset_file_name(segment.base_offset, suffix)}"
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
    ]
    return SegmentToCopy(
        segment,
        segment.open_for_read(),
        max(segment.base_offset, first_offset),
        end - 1,
        [*beside, snapshot_path(log.directory, end)],
        epochs_between(log.epochs.entries, segment.base_offset, end - 1),
        segment_name(segment.base_offset, leader_epoch, nonce),
    )


def copy_segment(
    disk: Disk,
    store: ObjectStore,
    keys: PartitionKeys,
    wanted: SegmentToCopy,
    before_part: Callable[[int], object],
) -> Entry:
    """Blocking. `before_part(size)`: before so many bytes are sent; it may wait, to keep to a rate. ObjectStoreError, OSError."""
    segment = wanted.segment
    size = segment.size
    checksums: list[int] = []
    store.put(keys.log(wanted.name), _parts(wanted.file, size, checksums, before_part))
    beside = [_content(disk, path) for path in wanted.files]
    beside.append(b"".join(checksum.to_bytes(4, "big") for checksum in checksums))
    aux = b"".join(beside)
    store.put(keys.aux(wanted.name), [aux])
    index, time_index, transactions, snapshot, sums = map(len, beside)
    return Entry(
        base_offset=segment.base_offset,
        first_offset=wanted.first_offset,
        last_offset=wanted.last_offset,
        end_offset=wanted.last_offset + 1,
        max_timestamp=segment.max_timestamp if segment.knows_timestamps else segment.find_max_timestamp()[0],
        log_size=size,
        aux_sizes=(index, time_index, transactions, snapshot, sums),
        aux_checksum=crc32c(aux),
        epochs=wanted.epochs,
        name=wanted.name,
    )


def _parts(
    file: File, size: int, checksums: list[int], before_part: Callable[[int], object]
) -> Iterator[bytes]:
    """The file's content, and the checksum of each chunk on the way."""
    part_bytes = CHUNKS_PER_PART * CHUNK_BYTES
    for position in range(0, size, part_bytes):
        part = file.pread(min(part_bytes, size - position), position)
        if len(part) < min(part_bytes, size - position):
            raise OSError(f"a segment of {size} bytes ends before {position + len(part)}")
        view = memoryview(part)
        checksums.extend(
            crc32c(view[start : start + CHUNK_BYTES]) for start in range(0, len(part), CHUNK_BYTES)
        )
        before_part(len(part))
        yield part


def _content(disk: Disk, path: str) -> bytes:
    try:
        return disk.read_file(path)
    except FileNotFoundError:
        return b""
