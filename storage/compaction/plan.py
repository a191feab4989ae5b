"""The plan of a cleaning: what a thread needs, gathered on the loop (cleaning.py)."""

from __future__ import annotations

from itertools import pairwise

from barnabas.storage.compaction.choice import LogToClean
from barnabas.storage.compaction.cleaning import Cleaning, Source
from barnabas.storage.disk.disk import Disk


def plan(choice: LogToClean, disk: Disk, now_ms: int, map_bytes: int, map_load_factor: float) -> Cleaning:
    """What a thread needs. OSError, RecordBatchError or StorageError when the log can't be read."""
    log, dirty = choice.log, choice.first_dirty_offset
    sources = _sources(choice)
    first_dirty = next(source for source in sources if source.end_offset > dirty)
    return Cleaning(
        disk=disk,
        directory=log.directory,
        config=log.config,
        sources=sources,
        first_dirty_offset=dirty,
        first_dirty_position=first_dirty.segment.index_position(dirty),
        now_ms=now_ms,
        map_bytes=map_bytes,
        map_load_factor=map_load_factor,
        last_records={
            producer_id: (entry.last_offset, entry.producer_epoch)
            for producer_id, entry in log.active_producers.items()
        },
        aborted=log.collect_aborted(sources[0].base_offset, choice.first_uncleanable_offset),
    )


def _sources(choice: LogToClean) -> list[Source]:
    """All segments below the first uncleanable one, as they are now."""
    found = []
    for segment, following in pairwise(choice.log.segments):
        if following.base_offset > choice.first_uncleanable_offset:
            break
        found.append(
            Source(
                segment,
                segment.path,
                segment.base_offset,
                following.base_offset,
                segment.size,
                8 * len(segment.offset_index),
                12 * len(segment.time_index),
            )
        )
    return found
