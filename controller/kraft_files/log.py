"""Reads a metadata log that Apache Kafka wrote: the newest checkpoint and the segments after it.

In a quorum of one voter the whole log is committed. Damage is an error, except for a torn batch at the end of the last segment,
which Kafka cuts off as well. Records between BeginTransaction and EndTransaction count once the transaction has ended (KIP-868).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from barnabas.controller.kraft_files.format import (
    MetadataBatch,
    parse_checkpoint_name,
    parse_segment_name,
    read_batch,
)
from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.metadata.records import decode_record
from barnabas.storage.disk.disk import Disk
from barnabas.wire.messages import metadata_records as wire
from barnabas.wire.messages.control_records import LeaderChangeMessage, SnapshotFooterRecord, VotersRecord
from barnabas.wire.record_batch import (
    HEADER_SIZE,
    MAGIC_OFFSET,
    RecordBatchError,
    read_header,
    verify_crc,
)

QUORUM_STATE: Final = "quorum-state"
BOOTSTRAP: Final = "bootstrap.checkpoint"

log = logging.getLogger("barnabas.metadata")


@dataclass(slots=True)
class KraftLog:
    """A metadata log. `voters`: ids of the quorum's voters, as it last named them. `dynamic_quorum`: the log, not the properties,
    names them (kraft.version 1). `records`: in order, without those about the log itself."""

    end_offset: int = 0
    epoch: int = 0
    voters: set[int] = field(default_factory=set)
    dynamic_quorum: bool = False
    records: list[msgspec.Struct] = field(default_factory=list)


def read_kraft_log(disk: Disk, directory: str, bootstrap_path: str) -> KraftLog:
    """The log in `directory` (`.../__cluster_metadata-0`). When it is empty, the first records of a new cluster, which formatting
    writes to `bootstrap_path`. MetadataError when the log can't be read completely."""
    names = disk.list(directory) if disk.exists(directory) else []
    found = KraftLog(epoch=_epoch_of_quorum(disk, directory, names))
    checkpoints = sorted(filter(None, map(parse_checkpoint_name, names)), reverse=True)
    batches: list[MetadataBatch] = []
    if checkpoints:
        found.end_offset, epoch = checkpoints[0]
        found.epoch = max(found.epoch, epoch)
        path = f"{directory}/{found.end_offset:020d}-{epoch:010d}.checkpoint"
        batches += _read_checkpoint(disk, path)
    segments = sorted(base for name in names if (base := parse_segment_name(name)) is not None)
    for batch in _read_segments(disk, directory, segments, found.end_offset):
        found.end_offset = batch.next_offset
        found.epoch = max(found.epoch, batch.epoch)
        batches.append(batch)
    if not found.end_offset and disk.exists(bootstrap_path):
        batches += _read_checkpoint(disk, bootstrap_path)
    for batch in batches:
        for control in batch.controls:
            if isinstance(control, (LeaderChangeMessage, VotersRecord)):
                found.voters = {voter.voter_id for voter in control.voters}
                found.dynamic_quorum |= isinstance(control, VotersRecord)
    found.records = list(_committed(content for batch in batches for content in batch.records))
    return found


def _epoch_of_quorum(disk: Disk, directory: str, names: list[str]) -> int:
    if QUORUM_STATE not in names:
        return 0
    path = f"{directory}/{QUORUM_STATE}"
    try:
        return max(0, int(json.loads(disk.read_file(path))["leaderEpoch"]))
    except (ValueError, KeyError, TypeError) as error:
        raise MetadataError(f"{path} can't be read: {error!r}. Restore it from a backup.") from error


def _read_checkpoint(disk: Disk, path: str) -> list[MetadataBatch]:
    content = memoryview(disk.read_file(path))
    batches: list[MetadataBatch] = []
    position = 0
    try:
        while position < len(content):
            batch, position = read_batch(content, position, path)
            batches.append(batch)
    except RecordBatchError as error:
        raise MetadataError(
            f"{path} is damaged at byte {position}: {error}. Restore it from a backup."
        ) from error
    if not batches or not any(isinstance(each, SnapshotFooterRecord) for each in batches[-1].controls):
        raise MetadataError(f"{path} is not whole: its footer is missing. Restore it from a backup.")
    return batches


def _read_segments(disk: Disk, directory: str, bases: list[int], start: int) -> Iterator[MetadataBatch]:
    """The batches from offset `start` on."""
    end: int | None = None  # of the batches read, also of those before `start`
    for index, base in enumerate(bases):
        last = index == len(bases) - 1
        if not last and bases[index + 1] <= start:
            continue
        path = f"{directory}/{base:020d}.log"
        content = memoryview(disk.read_file(path))
        position = 0
        while position < len(content):
            try:
                batch, following = read_batch(content, position, path)
            except RecordBatchError as error:
                if last and _is_torn_tail(content, position, start if end is None else end):
                    log.warning("%s: the last batch, at byte %d, was not completely written", path, position)
                    break
                raise MetadataError(
                    f"{path} is damaged at byte {position}: {error}. Changes that Kafka had acknowledged can't be "
                    f"read, so nothing is imported. Restore the file from a backup."
                ) from error
            if batch.base_offset > start if end is None else batch.base_offset != end:
                raise MetadataError(
                    f"{path}: offset {batch.base_offset} stands where {start if end is None else end} should: a "
                    f"part of the metadata is missing. Restore the directory from a backup."
                )
            end = batch.next_offset
            position = following
            if batch.next_offset > start:
                yield batch


def _is_torn_tail(content: memoryview, position: int, offset: int) -> bool:
    """Whether no whole batch follows `position`, where the batch with `offset` should be. Zeros count as the end of the file."""
    end = len(bytes(content[position:]).rstrip(b"\0")) + position
    for start in range(position + 1, end - HEADER_SIZE + 1):
        base_offset = int.from_bytes(content[start : start + 8], "big")
        if offset < base_offset <= offset + end and content[start + MAGIC_OFFSET] == 2:
            try:
                verify_crc(content, start, read_header(content, start))
            except RecordBatchError:
                continue
            return False
    return True


def _committed(contents: Iterator[bytes]) -> Iterator[msgspec.Struct]:
    group: list[msgspec.Struct] | None = None
    for content in contents:
        record = decode_record(content)
        if isinstance(record, wire.BeginTransactionRecord):
            group = []
        elif isinstance(record, wire.AbortTransactionRecord):
            group = None
        elif isinstance(record, wire.EndTransactionRecord):
            yield from group or ()
            group = None
        elif not isinstance(record, wire.NoOpRecord):
            if group is None:
                yield record
            else:
                group.append(record)
