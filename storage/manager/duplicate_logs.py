"""Two copies of one log, found in two directories at a start.

Where the disk lost the last step of a move between directories, one copy is the beginning of the other, and the longer one has
all records. Copies that differ come from a directory that was left out of log.dirs, or replaced, and is used again: the
metadata says which of them has been served.
"""

from __future__ import annotations

from barnabas.storage.log.log import Log
from barnabas.wire.record_batch import RecordBatchError


def continues(longer: Log, shorter: Log) -> bool:
    """Whether `longer` has the records of `shorter`, judged by the last batch of `shorter`."""
    if shorter.log_end_offset == shorter.log_start_offset:
        return shorter.log_end_offset <= longer.log_start_offset or not shorter.log_end_offset
    offset = shorter.log_end_offset - 1
    if not longer.log_start_offset <= offset < longer.log_end_offset:
        return False
    try:
        mine, other = (next(log.segments.headers(offset), None) for log in (longer, shorter))
    except (OSError, RecordBatchError):
        return False
    return mine is not None and mine == other


def describe_duplicates(kept: Log, aside: Log, name: str) -> str:
    """The log line about them; `name` is the new name of the directory of `aside`."""
    return (
        f"{kept.name} lies in two directories; {kept.directory} (end {kept.log_end_offset}) is used, "
        f"{aside.directory} (end {aside.log_end_offset}) is set aside as {name}."
    )
