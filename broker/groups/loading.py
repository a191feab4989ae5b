"""Decodes the records of a shard while it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from barnabas.broker.coordinator.compacted_records import CompactedRecords
from barnabas.broker.coordinator.pending_writes import PendingWrite
from barnabas.broker.coordinator.record_encoding import UnknownRecord, UnknownValue
from barnabas.broker.coordinator.unknown_records import UnknownRecords
from barnabas.broker.groups.records import (
    GroupRecord,
    OffsetWritten,
    PendingOffsetWritten,
    decode_record,
)


class EveryRecordCounts(Exception):
    """The partition has a value of a later version: what was written to the same key before it counts, so every record has
    to be replayed."""


class GroupReplay(CompactedRecords):
    """Passes the compacted records of the partition to `apply`, then goes through the steps of `begin`.

    Records of kinds that this version does not know are passed over: those of later releases, and type 4, the topics of consumer
    groups before 4.1. So are values of later versions; for those it raises EveryRecordCounts, unless it replays `every` record
    already."""

    def __init__(
        self,
        name: str,
        apply: Callable[[GroupRecord], object],
        begin: Callable[[], Iterator[None]],
        *,
        every: bool,
    ) -> None:
        super().__init__(name, self._decode, every=every, replay_pending=self._decode_pending)
        self._apply = apply
        self._begin = begin
        self._unknown = UnknownRecords()
        self._has_unknown_value = False

    def _decode(self, key: bytes | None, value: bytes | None) -> None:
        try:
            self._apply(decode_record(key, value))
        except UnknownRecord as error:
            self._unknown.count(error)
            self._has_unknown_value |= isinstance(error, UnknownValue)

    def _decode_pending(
        self, key: bytes | None, value: bytes | None, producer_id: int, is_superseded: bool
    ) -> None:
        try:
            record = decode_record(key, value)
        except UnknownRecord as error:
            self._unknown.count(error)
            return
        if isinstance(record, OffsetWritten) and record.value is not None:
            write = PendingWrite(producer_id, record.value, is_superseded)
            self._apply(PendingOffsetWritten(record.key, write))

    def finish(self) -> Iterator[None]:
        """Replay, and begin."""
        yield from super().finish()
        if self._has_unknown_value and not self.every:
            raise EveryRecordCounts
        self._unknown.warn(self.name)
        yield from self._begin()
