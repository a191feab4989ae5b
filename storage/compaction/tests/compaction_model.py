"""A slow model of compaction: batches as plain lists, every question answered by looking at all of them.

No maps, no indexes, no slices. What a cleaning must leave is computed from the log as it was before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from barnabas.storage.segment.transaction_marker import find_marker
from barnabas.wire.record_batch import read_header
from barnabas.wire.records import Record, iterate_records


@dataclass(frozen=True)
class ModelBatch:
    """One batch, decoded. `raw` are its bytes as long as nothing had to change; then None."""

    base: int
    last: int
    records: tuple[Record, ...]
    max_timestamp: int
    codec: int
    producer: tuple[int, int, int]  # id, epoch, base sequence
    leader_epoch: int
    transactional: bool
    commits: bool | None  # of a control batch; None of data
    control: bool
    append_time: bool
    horizon: int | None
    raw: bytes | None = field(default=None, compare=False)

    @property
    def producer_id(self) -> int:
        return self.producer[0]


def decode(raw: bytes) -> ModelBatch:
    """The model's view of one batch's bytes."""
    header = read_header(raw)
    marker = find_marker(raw) if header.is_control else None
    return ModelBatch(
        header.base_offset,
        header.last_offset,
        tuple(iterate_records(raw)),
        header.max_timestamp,
        header.codec,
        (header.producer_id, header.producer_epoch, header.base_sequence),
        header.partition_leader_epoch,
        header.is_transactional,
        marker.commit if marker is not None else None,
        header.is_control,
        header.is_log_append_time,
        header.delete_horizon_ms,
        raw,
    )


def is_aborted(log: list[ModelBatch], batch: ModelBatch) -> bool:
    """Whether the next marker of the batch's producer says ABORT."""
    if batch.control or not batch.transactional:
        return False
    ends = [
        other.commits
        for other in log
        if other.control and other.producer_id == batch.producer_id and other.base > batch.last
    ]
    return bool(ends) and ends[0] is False


def has_data(log: list[ModelBatch], marker: ModelBatch) -> bool:
    """Whether a batch of the transaction that `marker` ends is still in the log."""
    before = [
        other
        for other in log
        if other.transactional and other.producer_id == marker.producer_id and other.base < marker.base
    ]
    return bool(before) and not before[-1].control


def mapped(log: list[ModelBatch], first_dirty: int, end: int, room: int) -> tuple[dict[bytes, int], int]:
    """(key -> its last offset in the dirty section, the last offset that this speaks for)."""
    offsets: dict[bytes, int] = {}
    latest = -1
    for batch in log:
        if batch.last < first_dirty or batch.base >= end:
            continue
        if not batch.control and not is_aborted(log, batch):
            for record in batch.records:
                if record.key is not None and record.offset >= first_dirty:
                    if len(offsets) >= room:
                        return offsets, latest
                    offsets[record.key] = latest = record.offset
        latest = batch.last
    return offsets, end - 1


def clean(
    log: list[ModelBatch],
    *,
    first_dirty: int,
    end: int,
    now: int,
    retention: int,
    last_records: dict[int, tuple[int, int]],
    segment_bases: list[int],
    room: int = 1 << 60,
) -> tuple[list[ModelBatch], int]:
    """(what is left of the log, where it is dirty from then on). `end` bounds the section that may be cleaned."""
    offsets, latest = mapped(log, first_dirty, end, room)
    reached = max((base for base in segment_bases if base <= latest), default=-1)
    after = [base for base in segment_bases if base > reached]
    rewritten_to = after[0] if after else end  # the segment that the map ends in is rewritten whole
    left = []
    for batch in log:
        if batch.base >= min(end, rewritten_to):
            left.append(batch)
            continue
        kept = _clean_batch(log, batch, offsets, latest, now, retention)
        if kept is None and _must_stay(batch, last_records, end):
            kept = replace(batch, records=(), codec=0, horizon=None, commits=None, raw=None)
        if kept is not None:
            left.append(kept)
    return left, latest + 1


def _clean_batch(
    log: list[ModelBatch], batch: ModelBatch, offsets: dict[bytes, int], latest: int, now: int, retention: int
) -> ModelBatch | None:
    if not batch.records or is_aborted(log, batch):
        return None
    if batch.control:
        if has_data(log, batch):
            return batch
        if batch.horizon is None:
            return replace(batch, horizon=now + retention, raw=None)
        return batch if batch.horizon > now else None
    kept = tuple(
        record
        for record in batch.records
        if record.offset > latest
        or (
            record.key is not None
            and record.offset >= offsets.get(record.key, -1)
            and (record.value is not None or batch.horizon is None or now < batch.horizon)
        )
    )
    if not kept:
        return None
    horizon = batch.horizon
    if horizon is None and any(record.value is None for record in kept):
        horizon = now + retention
    if kept == batch.records and horizon == batch.horizon:
        return batch
    newest = batch.max_timestamp if batch.append_time else max(record.timestamp for record in kept)
    return replace(batch, records=kept, max_timestamp=newest, horizon=horizon, raw=None)


def _must_stay(batch: ModelBatch, last_records: dict[int, tuple[int, int]], end: int) -> bool:
    if batch.last + 1 == end:
        return True
    if batch.producer_id not in last_records:
        return False
    last_offset, epoch = last_records[batch.producer_id]
    if last_offset >= 0:
        return batch.last == last_offset
    return batch.control and batch.producer[1] == epoch


def differences(expected: list[ModelBatch], found: list[bytes]) -> list[Any]:
    """Where they differ; nothing when they are the same, byte for byte where nothing had to change."""
    wrong: list[Any] = []
    decoded = [decode(raw) for raw in found]
    if decoded != expected:
        wrong += [pair for pair in zip(expected, decoded, strict=False) if pair[0] != pair[1]]
        wrong.append((len(expected), len(decoded)))
    wrong += [one.raw for one, raw in zip(expected, found, strict=False) if one.raw not in (None, raw)]
    return wrong
