"""What recovery need not read: the part of a segment that lies below the recovery point.

It was synced, so only what came later has to be looked at. Where to begin says the offset index, if it can be
believed: it is not synced with the log, and of what a power failure took from it zeros are left, or nothing. So
all of it is checked, which is half a percent of the log, and its last entry below the recovery point has to
point at the batch that it names, written in the leader epoch that the cache knows for it. The time index may have
been saved less far: behind the entry that its last one was made with nothing is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.storage.log.leader_epochs import LeaderEpochCache
from barnabas.storage.segment.segment import Segment
from barnabas.wire.record_batch import RecordBatchError


def skip_synced_part(segment: Segment, epochs: LeaderEpochCache, recovery_point: int) -> int | None:
    """Cut the segment and its indexes back to its last index entry below the recovery point.

    `segment.size` has to be the file's; afterwards it is where reading has to go on, and the offset expected
    there is returned. None, and nothing has changed, when there is no such entry or the indexes can't be
    believed.
    """
    try:
        if not (segment.offset_index.is_well_formed() and segment.time_index.is_well_formed()):
            return None
        offsets, times = segment.offset_index.entries(), segment.time_index.entries()
        if not _ascend(offsets) or not _ascend(times):
            return None
        if not times:
            return None
        known = next((relative for relative, _ in offsets if relative >= times[-1][1]), recovery_point)
        below = [
            entry
            for entry in offsets
            if entry[0] <= known and segment.base_offset + entry[0] < recovery_point
        ]
        if not below:
            return None
        relative, position = below[-1]
        _, header = next(segment.headers(position))
        if (
            header.last_offset != segment.base_offset + relative
            or epochs.epoch_for_offset(header.base_offset) != header.partition_leader_epoch
            or not _is_true(segment, offsets, [entry for entry in times if entry[1] <= relative])
        ):
            return None
        segment.offset_index.truncate(lambda entry, _: entry <= relative)
        segment.time_index.truncate(lambda _, entry: entry <= relative)
    except (OSError, RecordBatchError, StopIteration):
        return None
    segment.size = position
    segment.bytes_since_index_entry = 0
    segment.reset_timestamps(segment.time_index.last())
    return header.base_offset


def _is_true(segment: Segment, offsets: Sequence[tuple[int, int]], times: Sequence[tuple[int, int]]) -> bool:
    """Whether the last of `times` is what the batch that it names says. Entries may be left from what the log
    held before it was cut back."""
    if not times:
        return False
    timestamp, relative = times[-1]
    position = max((position for offset, position in offsets if offset <= relative), default=0)
    wanted = segment.base_offset + relative
    header = next(header for _, header in segment.headers(position) if header.last_offset >= wanted)
    return header.last_offset == wanted and header.max_timestamp == timestamp


def _ascend(entries: Sequence[tuple[int, int]]) -> bool:
    """Whether both fields grow from entry to entry (the second may stay), from above zero on."""
    previous = (0, 0)
    for entry in entries:
        if entry[0] <= previous[0] or entry[1] < previous[1]:
            return False
        previous = entry
    return True
