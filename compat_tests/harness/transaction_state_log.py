"""The records of __transaction_state, decoded by hand, and what must hold among them, the coordinator's memory and the markers.

1. Each record of a transactional id follows from the one before it: its state, its epoch and its producer id.
2. The last record of each id is what its coordinator has in memory (`check_memory`).
3. Each end has a marker in each of its partitions, and each marker has an end (`check_markers`).

Each is a part of rule 7 of transaction_history.py.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from compat_tests.harness.transaction_history import ABORT, COMMIT, LogBatch, TransactionViolation

MAX_EPOCH: Final = 32_767
STATES: Final = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
REMOVED: Final = "removed"
_IDLE: Final = frozenset({"", REMOVED, "Empty", "CompleteCommit", "CompleteAbort"})
# Which states may precede one. An abort of an idle id is that of transaction.version 2, which only raises the epoch.
_BEFORE: Final = {
    "Empty": _IDLE,
    "Ongoing": (_IDLE | {"Ongoing"}) - {"", REMOVED},
    "PrepareCommit": frozenset({"Ongoing"}),
    "PrepareAbort": (_IDLE | {"Ongoing"}) - {"", REMOVED},
    "CompleteCommit": frozenset({"PrepareCommit"}),
    "CompleteAbort": frozenset({"PrepareAbort"}),
    REMOVED: _IDLE,
}
_MARKERS: Final = {"PrepareCommit": COMMIT, "PrepareAbort": ABORT}
TopicPartition = tuple[str, int]


@dataclasses.dataclass(slots=True, frozen=True)
class StateRecord:
    """A value of __transaction_state. `version`: of its format; 0 has no previous and next producer id and no client version."""

    transactional_id: str
    state: str
    producer_id: int = -1
    epoch: int = -1
    timeout_ms: int = -1
    partitions: frozenset[TopicPartition] = frozenset()
    last_update_ms: int = -1
    start_ms: int = -1
    previous_producer_id: int = -1
    next_producer_id: int = -1
    client_version: int = 0
    version: int = 1

    def __str__(self) -> str:
        return f"{self.transactional_id} {self.state} ({self.producer_id}, {self.epoch})"


def decode(key: bytes, value: bytes | None) -> StateRecord:
    """One record."""
    version, size = struct.unpack_from(">hh", key)
    assert version == 0, version
    transactional_id = key[4 : 4 + size].decode()
    if value is None:
        return StateRecord(transactional_id, REMOVED)
    read = _Bytes(value)
    version, producer_id, epoch, timeout_ms, state = read.fields(">hqhib")
    partitions = [
        (topic, index)
        for topic, indexes in (read.topics() if version else read.old_topics())
        for index in indexes
    ]
    last_update_ms, start_ms = read.fields(">qq")
    tags = read.tags() if version else {}

    def tag(number: int, default: int) -> int:
        return int.from_bytes(tags[number], "big", signed=True) if number in tags else default

    return StateRecord(
        transactional_id,
        STATES[state],
        producer_id,
        epoch,
        timeout_ms,
        frozenset(partitions),
        last_update_ms,
        start_ms,
        tag(0, -1),
        tag(1, -1),
        tag(2, 0),
        version,
    )


class _Bytes:
    """Reads a value from its beginning."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def fields(self, form: str) -> tuple[int, ...]:
        found: tuple[int, ...] = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return found

    def _take(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def _number(self) -> int:
        """An unsigned varint."""
        value = shift = 0
        while True:
            (byte,) = self._take(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def topics(self) -> list[tuple[str, tuple[int, ...]]]:
        """Of version 1."""
        found = []
        for _ in range(self._number() - 1):  # -1: null
            name = self._take(self._number() - 1).decode()
            found.append((name, self.fields(f">{self._number() - 1}i")))
            self.tags()
        return found

    def old_topics(self) -> list[tuple[str, tuple[int, ...]]]:
        """Of version 0."""
        (count,) = self.fields(">i")
        found = []
        for _ in range(count):
            (size,) = self.fields(">h")
            name = self._take(size).decode()
            (indexes,) = self.fields(">i")
            found.append((name, self.fields(f">{indexes}i")))
        return found

    def tags(self) -> dict[int, bytes]:
        found = {}
        for _ in range(self._number()):
            tag = self._number()
            found[tag] = self._take(self._number())
        return found


# -- one record after the other


def check_sequence(records: Iterable[StateRecord], *, max_epoch: int = MAX_EPOCH) -> None:
    """Raise TransactionViolation unless each record of an id follows from the one before it; `records` are those of a partition."""
    last: dict[str, StateRecord] = {}
    for record in records:
        before = last.get(record.transactional_id, StateRecord(record.transactional_id, ""))
        if before.state not in _BEFORE[record.state]:
            raise _violation(record, before, "does not follow from it")
        if record.state != REMOVED:
            _check_identity(record, before, max_epoch)
        last[record.transactional_id] = record


def _check_identity(record: StateRecord, before: StateRecord, max_epoch: int) -> None:
    same_id = record.producer_id == before.producer_id
    step = record.epoch - before.epoch
    state = record.state
    if state == "Empty":
        is_right = record.epoch == 0 if not same_id else 0 <= step <= 1
        is_right = is_right and record.epoch < max_epoch
    elif state == "Ongoing":
        is_right = same_id and step == 0 and record.epoch < max_epoch
    elif state in _MARKERS:
        # A client of version 2 and a fence raise the epoch.
        is_right = same_id and (step == 1 if record.client_version >= 2 else 0 <= step <= 1)
        is_right = is_right and (state == "PrepareAbort" or before.partitions == record.partitions)
    elif before.version and before.client_version >= 2 and before.next_producer_id >= 0:
        is_right = (record.producer_id, record.epoch) == (before.next_producer_id, 0)
    else:
        is_right = same_id and step == 0
    if not is_right:
        raise _violation(record, before, "has another identity than follows from it")
    if (
        record.version
        and before.state not in ("", REMOVED)
        and record.previous_producer_id != before.producer_id
    ):
        raise _violation(record, before, f"names {record.previous_producer_id} as its previous producer id")


def _violation(record: StateRecord, before: StateRecord, what: str) -> TransactionViolation:
    return TransactionViolation(7, f"__transaction_state has {record} after {before}, which {what}")


# -- memory


def check_memory(records: Iterable[StateRecord], memory: Mapping[str, StateRecord]) -> None:
    """Raise TransactionViolation unless the memory of the coordinator at rest is what a replay of its partition gives."""
    replayed: dict[str, StateRecord] = {}
    for record in records:
        if record.state == REMOVED:
            replayed.pop(record.transactional_id, None)
        else:
            replayed[record.transactional_id] = record
    for transactional_id in sorted(replayed.keys() | memory.keys()):
        logged, known = replayed.get(transactional_id), memory.get(transactional_id)
        if logged is not None and known is not None:
            known = dataclasses.replace(known, version=logged.version)
            if not logged.version:
                known = dataclasses.replace(
                    known, previous_producer_id=-1, next_producer_id=-1, client_version=0
                )
        if logged != known:
            raise TransactionViolation(
                7,
                f"{transactional_id}: the coordinator knows {known!r}, a replay of its log gives {logged!r}",
            )


# -- markers


def check_markers(
    records: Sequence[StateRecord],
    logs: Mapping[TopicPartition, Sequence[LogBatch]],
    *,
    max_epoch: int = MAX_EPOCH,
) -> None:
    """Raise TransactionViolation unless the markers of these partitions are those of the ends in `records`, at rest."""
    ends: dict[tuple[TopicPartition, int, int, str], int] = {}
    for record in records:
        for partition in record.partitions if record.state in _MARKERS else ():
            key = partition, record.producer_id, record.epoch, _MARKERS[record.state]
            ends[key] = ends.get(key, 0) + 1
    # Ends that have raised the epoch; a fence does, and then the same epoch may be that of a client that keeps it.
    versions: dict[tuple[int, int], int] = {}
    for record in records:
        if record.state in _MARKERS:
            identity = record.producer_id, record.epoch
            versions[identity] = min(record.client_version, versions.get(identity, 2))
    found: dict[tuple[TopicPartition, int, int, str], int] = {}
    for partition, log in logs.items():
        open_epochs: dict[int, int] = {}
        for batch in log:
            producer_id, epoch = batch.identity
            if not batch.marker:
                open_epochs[producer_id] = epoch
                continue
            key = partition, producer_id, epoch, batch.marker
            found[key] = found.get(key, 0) + 1
            if key not in ends:
                raise TransactionViolation(
                    7,
                    f"{partition} has a marker to {batch.marker} of {batch.identity}, which has no such end",
                )
            is_raising = versions[batch.identity] >= 2 and epoch < max_epoch
            if open_epochs.pop(producer_id, -1) == epoch and is_raising:
                raise TransactionViolation(
                    5, f"{partition}: the marker at {batch.base_offset} has the epoch of its data, {epoch}"
                )
    for key, count in ends.items():
        if key[0] in logs and found.get(key, 0) < count:
            raise TransactionViolation(
                7,
                f"{key[0]} has {found.get(key, 0)} markers to {key[3]} of {key[1:3]}, there are {count} ends",
            )
