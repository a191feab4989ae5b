"""The format of Kafka's metadata log: checkpoint files, control records, names of files.

A checkpoint is a sequence of record batches: the control record SnapshotHeader (and, where the log names the quorum's voters,
KRaftVersion and KRaftVoters), then metadata records (records.py) as values without keys, then the control record SnapshotFooter.
Offsets count from 0 inside the file; its name has the end offset and epoch of the log that it replaces. The log itself consists of
the same batches in segment files.
Source: KIP-630 "Snapshot Format", KIP-853 "Snapshots", org.apache.kafka.snapshot.RecordsSnapshotWriter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

import msgspec

from barnabas.controller.metadata.errors import MetadataError
from barnabas.wire.message_type import MessageType
from barnabas.wire.messages import control_records as control
from barnabas.wire.primitives import DecodeError
from barnabas.wire.record_batch import RecordBatchError, read_header, verify_crc
from barnabas.wire.records import Record, build_batch, iterate_records

BATCH_BYTES_MAX: Final = 1 << 20

# ControlRecordType -> type of the value
CONTROL_TYPES: Final[dict[int, MessageType[Any]]] = {
    2: control.LEADER_CHANGE_MESSAGE,
    3: control.SNAPSHOT_HEADER_RECORD,
    4: control.SNAPSHOT_FOOTER_RECORD,
    5: control.K_RAFT_VERSION_RECORD,
    6: control.VOTERS_RECORD,
}
_TYPE_OF: Final = {kind.message_class: number for number, kind in CONTROL_TYPES.items()}
_VOTER_VERSIONS: Final = control.KRaftVersionFeature(min_supported_version=0, max_supported_version=1)

_CHECKPOINT_NAME: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_SEGMENT_NAME: Final = re.compile(r"(\d{20})\.log")


class Voter(msgspec.Struct, frozen=True):
    """The controller of a quorum of one: id of its directory (16 bytes) and address of its listener."""

    node_id: int
    directory_id: bytes
    listener: str
    host: str
    port: int


class MetadataBatch(msgspec.Struct):
    """One batch: either control records or metadata records, as `records.py` encodes them."""

    base_offset: int
    next_offset: int
    epoch: int
    controls: list[msgspec.Struct] = []
    records: list[bytes] = []


def parse_checkpoint_name(name: str) -> tuple[int, int] | None:
    """(end offset, epoch); None for another kind of file."""
    match = _CHECKPOINT_NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


def parse_segment_name(name: str) -> int | None:
    """The base offset; None for another kind of file."""
    match = _SEGMENT_NAME.fullmatch(name)
    return None if match is None else int(match[1])


def encode_checkpoint(records: Iterable[bytes], *, epoch: int, now_ms: int, voter: Voter | None) -> bytes:
    """A checkpoint of these encoded metadata records. With a `voter` the file names the quorum (kraft.version 1); without one
    Kafka's `controller.quorum.voters` does."""
    opening: list[msgspec.Struct] = [control.SnapshotHeaderRecord(last_contained_log_timestamp=now_ms)]
    if voter is not None:
        opening.append(control.KRaftVersionRecord(k_raft_version=1))
        opening.append(_voters_record(voter))
    parts = [_control_batch(opening, 0, epoch, now_ms)]
    offset = len(opening)
    for group in _groups(records):
        listed = [Record(offset + index, now_ms, None, value) for index, value in enumerate(group)]
        parts.append(build_batch(listed, base_offset=offset, leader_epoch=epoch))
        offset += len(listed)
    parts.append(_control_batch([control.SnapshotFooterRecord()], offset, epoch, now_ms))
    return b"".join(parts)


def _groups(records: Iterable[bytes]) -> Iterator[list[bytes]]:
    group: list[bytes] = []
    size = 0
    for record in records:
        if size + len(record) > BATCH_BYTES_MAX and group:
            yield group
            group, size = [], 0
        group.append(record)
        size += len(record)
    if group:
        yield group


def _voters_record(voter: Voter) -> control.VotersRecord:
    endpoint = control.Endpoint(name=voter.listener, host=voter.host, port=voter.port)
    return control.VotersRecord(
        voters=[
            control.VotersVoter(
                voter_id=voter.node_id,
                voter_directory_id=voter.directory_id,
                endpoints=[endpoint],
                k_raft_version_feature=_VOTER_VERSIONS,
            )
        ]
    )


def _control_batch(messages: list[msgspec.Struct], base_offset: int, epoch: int, now_ms: int) -> bytes:
    records = []
    for index, message in enumerate(messages):
        number = _TYPE_OF[type(message)]
        kind = CONTROL_TYPES[number]
        value = b"".join(cast("list[bytes]", kind.encode(0, message)))
        key = b"\0\0" + number.to_bytes(2, "big")
        records.append(Record(base_offset + index, now_ms, key, value))
    return build_batch(records, base_offset=base_offset, leader_epoch=epoch, control=True)


def read_batch(content: memoryview, position: int, path: str) -> tuple[MetadataBatch, int]:
    """The batch at `position`, and its end. RecordBatchError when it is not whole; MetadataError when a whole one can't be read
    by this version."""
    header = read_header(content, position)
    verify_crc(content, position, header)
    end = position + header.size
    batch = MetadataBatch(header.base_offset, header.next_offset, header.partition_leader_epoch)
    try:
        for record in iterate_records(content[position:end]):
            if header.is_control:
                message = _decode_control(record)
                if message is not None:
                    batch.controls.append(message)
            elif record.value is not None:
                batch.records.append(record.value)
    except (RecordBatchError, DecodeError, ValueError) as error:
        # the checksum holds: it was written so
        raise MetadataError(f"{path}: the batch at byte {position} can't be read: {error}") from error
    return batch, end


def _decode_control(record: Record) -> msgspec.Struct | None:
    """None for types without meaning for the metadata."""
    if record.key is None or len(record.key) < 4 or record.value is None:
        raise ValueError(f"the control record at offset {record.offset} has no type")
    kind = CONTROL_TYPES.get(int.from_bytes(record.key[2:4], "big"))
    if kind is None:
        return None
    version = int.from_bytes(record.value[:2], "big")
    return cast("msgspec.Struct", kind.decode(min(version, kind.max_version), record.value)[0])
