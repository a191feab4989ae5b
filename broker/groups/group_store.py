"""The state of a shard: its groups and their offsets, as replayed from the records of its partition.

Offsets and tombstones change it by replay only. Membership is soft state: it changes at once, and the outcome of each
generation is appended; so a group metadata record is not replayed where the group lives, but rebuilds it when the shard is
loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from barnabas.broker.groups.group import ClassicGroup
from barnabas.broker.groups.offsets import OffsetStore
from barnabas.broker.groups.records import (
    GroupRecord,
    GroupTombstone,
    GroupWritten,
    OffsetWritten,
    PendingOffsetWritten,
    TransactionEnded,
)
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.coordinator.shard_log import End
    from barnabas.broker.groups.member import GroupUsage
    from barnabas.broker.groups.offsets import Key


class GroupStore:
    """Groups by id, and offsets."""

    def __init__(self, clock: Callable[[], int], usage: GroupUsage) -> None:
        """`clock()`: wall clock, ms. `usage` is that of all groups of the broker."""
        self.groups: dict[str, ClassicGroup] = {}
        self.offsets = OffsetStore()
        self._clock = clock
        self._usage = usage

    def create(self, group_id: str) -> ClassicGroup:
        group = self.groups[group_id] = ClassicGroup(group_id, self._clock, self._usage)
        return group

    def drop(self, group: ClassicGroup, error: ErrorCode) -> None:
        """Remove a group; requests that wait for it are answered with `error`."""
        if self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]
            group.kill(error)

    def clear(self) -> None:
        for group in tuple(self.groups.values()):  # the broker counts what they hold
            self.drop(group, ErrorCode.NOT_COORDINATOR)
        self.offsets.clear()

    def replay(self, record: GroupRecord, append: int | None) -> End | None:
        """Apply a record of a live shard (see ShardLog)."""
        if isinstance(record, OffsetWritten | PendingOffsetWritten):
            created = None
            if isinstance(record, PendingOffsetWritten):
                self.offsets.apply_pending(record.key, record.write, append)
                is_removal = False
            else:
                self.offsets.apply(record.key, record.value, append)
                is_removal = record.value is None
            if not is_removal and record.key[0] not in self.groups:
                created = self.create(record.key[0])  # a simple group: offsets without membership
            return None if append is None else partial(self._end_offset, record.key, append, created)
        if isinstance(record, TransactionEnded):
            keys = self.offsets.end_transaction(record.producer_id, commit=record.commit, append=append)
            return None if append is None else partial(self._end_marker, keys, append)
        if isinstance(record, GroupTombstone):
            removed = self.groups.pop(record.group_id, None)
            if removed is not None and append is not None:
                return partial(self._end_tombstone, removed)
        return None

    def _end_offset(self, key: Key, append: int, created: ClassicGroup | None, is_committed: bool) -> None:
        if is_committed:
            self.offsets.commit(key, append)
            return
        self.offsets.revert(key, append)
        if created is not None and not created.persisted and not self.offsets.is_used_by(created.group_id):
            self.drop(created, ErrorCode.NOT_COORDINATOR)

    def _end_marker(self, keys: tuple[Key, ...], append: int, is_committed: bool) -> None:
        for key in keys:
            if is_committed:
                self.offsets.commit(key, append)
            else:
                self.offsets.revert(key, append)

    def _end_tombstone(self, removed: ClassicGroup, is_committed: bool) -> None:
        if not is_committed:
            self.groups.setdefault(removed.group_id, removed)

    def restore(self, record: GroupRecord) -> None:
        """Apply a record while the shard is loaded."""
        if not isinstance(record, GroupWritten):
            self.replay(record, None)
            return
        group = self.create(record.group_id)
        group.restore(record.value)
