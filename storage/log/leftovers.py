"""What interrupted work has left in a partition's directory: removed, or brought to its end.

`.deleted` and `.tmp` go. `.cleaned` goes: it was never announced as whole. `.swap` was: the segments that it
stands for (those between its base offset and the end of its last batch) go if they are still there, and it
takes the usual name. A `.swap` next to a `.cleaned` of no higher offset is the exception: it was being renamed,
or is half of a split segment (KAFKA-6264), and what it stands for is still whole. The rules are those of
Kafka's LogLoader, so either broker can go on where the other was interrupted. Doing it twice changes nothing,
and neither does a crash in between.
"""

from __future__ import annotations

import logging

from barnabas.storage.disk.deletion import DELETED_SUFFIX
from barnabas.storage.disk.disk import Disk
from barnabas.storage.segment.segment import LOG_SUFFIX, Segment
from barnabas.wire.record_batch import RecordBatchError

logger = logging.getLogger("barnabas.storage")

CLEANED_SUFFIX = ".cleaned"  # being written
SWAP_SUFFIX = ".swap"  # written, synced, and about to take the place of others
_GARBAGE = (DELETED_SUFFIX, ".tmp")


def settle_leftovers(disk: Disk, directory: str) -> list[str]:
    """See the module; the names in the directory afterwards. OSError when it can't be read or changed."""
    names = disk.list(directory)
    garbage = [name for name in names if name.endswith(_GARBAGE)]
    cleaned = [name for name in names if name.endswith(CLEANED_SUFFIX)]
    swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
    if not (garbage or cleaned or swaps):
        return names
    lowest = min(map(_offset, cleaned), default=1 << 63)
    undone = [name for name in swaps if _offset(name) >= lowest]
    _remove(disk, directory, [*garbage, *undone])
    _remove(disk, directory, cleaned)
    whole = [name for name in swaps if name not in undone]
    if whole:
        rest = [name for name in names if not name.endswith((*_GARBAGE, CLEANED_SUFFIX, SWAP_SUFFIX))]
        _complete(disk, directory, whole, rest)
    disk.sync_directory(directory)
    return disk.list(directory)


def _complete(disk: Disk, directory: str, swaps: list[str], names: list[str]) -> None:
    """Remove what the swapped segments replace among `names`; when that is certain, let them take the names."""
    ranges = [
        (_offset(name), _end_offset(disk, directory, _offset(name)))
        for name in swaps
        if name == f"{_offset(name):020d}{LOG_SUFFIX}{SWAP_SUFFIX}"
    ]
    if ranges:
        start, end = min(start for start, _ in ranges), max(end for _, end in ranges)
        logger.info("%s: completing a swap of the segments between offsets %d and %d", directory, start, end)
        keeps = f"{start:020d}.snapshot"  # says what lies before
        replaced = [name for name in names if name != keeps and start <= _offset(name) < end]
        _remove(disk, directory, replaced)
        disk.sync_directory(directory)
    for name in swaps:
        disk.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(SWAP_SUFFIX)}")


def _end_offset(disk: Disk, directory: str, base_offset: int) -> int:
    path = f"{directory}/{base_offset:020d}{LOG_SUFFIX}{SWAP_SUFFIX}"
    segment = Segment(disk, directory, base_offset, disk.size(path), fresh=True, suffix=SWAP_SUFFIX)
    end = base_offset
    try:
        for _, header in segment.headers(0):
            end = header.next_offset
    except RecordBatchError as error:  # recovery of the segment will say the same, and cut it
        logger.warning("%s is damaged: %s", path, error)
    return end


def _remove(disk: Disk, directory: str, names: list[str]) -> None:
    for name in names:
        disk.remove(f"{directory}/{name}")


def _offset(name: str) -> int:
    """The offset that a segment's file is named after; -1 for any other file."""
    stem = name.partition(".")[0]
    return int(stem) if stem.isdecimal() else -1
