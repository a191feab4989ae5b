"""The state of a shard: its groups and their offsets, as replayed from the records of its partition.

Offsets, tombstones and the records of modern groups (consumer, share, streams) change it by replay only. Membership of a classic
group is soft state: it changes at once, and the outcome of each generation is appended; so a group metadata record is not replayed
where the group lives, but rebuilds it when the shard is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from barnabas.broker.groups.consumer.group import ConsumerGroup
from barnabas.broker.groups.group import ClassicGroup
from barnabas.broker.groups.modern.group import AnyGroup, ModernGroup, ModernGroupRecord
from barnabas.broker.groups.offsets import OffsetStore
from barnabas.broker.groups.records import (
    GroupRecord,
    GroupTombstone,
    GroupWritten,
    OffsetWritten,
    PendingOffsetWritten,
    TransactionEnded,
)
from barnabas.broker.groups.share.group import ShareGroup
from barnabas.broker.groups.streams.group import StreamsGroup
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.coordinator.shard_log import End
    from barnabas.broker.groups.member import GroupUsage
    from barnabas.broker.groups.offsets import Key


# The groups whose records set values, by the class of their records.
MODERN_GROUPS: Final[dict[type[ModernGroupRecord], type[AnyGroup]]] = {
    kind.record_class: kind for kind in (ConsumerGroup, ShareGroup, StreamsGroup)
}
Group: TypeAlias = ClassicGroup | AnyGroup
_ModernKey: TypeAlias = tuple[str, type[AnyGroup], int, str]  # group id, kind, and what a record is about


K = TypeVar("K")
V = TypeVar("V")
_COMMITTED: Final = 0  # in place of an append's number, which begin at 1


class PendingValues(Generic[K, V]):
    """Values whose appends are pending, by key; V: a value, None where there is none.

    Appends may fail in any order, so each value is kept until its append has ended; a failed one is dropped, and the last one that is
    left counts.
    """

    def __init__(self) -> None:
        self._values: dict[K, list[tuple[int, V]]] = {}  # the committed one first

    def add(self, key: K, before: V, value: V, append: int) -> None:
        """The append of this number sets the key's value, perhaps once more; `before` is the one until now."""
        values = self._values.setdefault(key, [(_COMMITTED, before)])
        if values[-1][0] == append:
            values.pop()
        values.append((append, value))

    def commit(self, key: K, append: int) -> None:
        """The append is committed, and so are all before it."""
        values = self._values.get(key)
        if values is None:
            return
        while len(values) > 1 and values[1][0] <= append:
            values.pop(0)
        values[0] = _COMMITTED, values[0][1]
        self._drop_settled(key)

    def revert(self, key: K, append: int) -> tuple[V, ...]:
        """The append has failed. Returns the value that counts now; nothing if the append has been taken back already."""
        values = self._values.get(key, [])
        left = [each for each in values if each[0] != append]
        if len(left) == len(values):
            return ()
        self._values[key] = left
        self._drop_settled(key)
        return (left[-1][1],)

    def clear(self) -> None:
        self._values.clear()

    def _drop_settled(self, key: K) -> None:
        if len(self._values[key]) == 1:
            del self._values[key]


class GroupStore:
    """Groups by id, and offsets."""

    def __init__(self, clock: Callable[[], int], usage: GroupUsage) -> None:
        """`clock()`: wall clock, ms. `usage` is that of all groups of the broker."""
        self.groups: dict[str, Group] = {}
        self.offsets = OffsetStore()
        self._pending: PendingValues[_ModernKey, Any] = PendingValues()
        self._clock = clock
        self.usage = usage

    def classic(self, group_id: str) -> ClassicGroup | None:
        group = self.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def consumer(self, group_id: str) -> ConsumerGroup | None:
        group = self.groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    def modern(self, group_id: str) -> AnyGroup | None:
        group = self.groups.get(group_id)
        return group if isinstance(group, ModernGroup) else None

    def create(self, group_id: str) -> ClassicGroup:
        group = self.groups[group_id] = self.unlisted(group_id)
        return group

    def unlisted(self, group_id: str) -> ClassicGroup:
        """A group that is not in `groups` yet."""
        return ClassicGroup(group_id, self._clock, self.usage)

    def drop(self, group: Group, error: ErrorCode) -> None:
        """Remove a group; requests that wait for it are answered with `error`."""
        if self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]
            if isinstance(group, ModernGroup):
                self.usage.member_bytes -= group.member_bytes
            group.kill(error)

    def clear(self) -> None:
        for group in tuple(self.groups.values()):  # the broker counts what they hold
            self.drop(group, ErrorCode.NOT_COORDINATOR)
        self.offsets.clear()
        self._pending.clear()

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
        if isinstance(record, ModernGroupRecord):
            return self._replay_modern(record, append)
        if isinstance(record, GroupTombstone):
            removed = self.classic(record.group_id)
            if removed is not None:
                del self.groups[record.group_id]
                if append is not None:
                    return partial(self._end_tombstone, removed)
        return None

    def _replay_modern(self, record: ModernGroupRecord, append: int | None) -> End | None:
        kind = MODERN_GROUPS[type(record)]
        group = self.groups.get(record.group_id)
        if not isinstance(group, kind) and record.value is None:
            return None
        key = record.group_id, kind, record.key, record.name
        if append is not None:
            before = group.values.get((record.key, record.name)) if isinstance(group, kind) else None
            self._pending.add(key, before, record.value, append)
        self._set(*key, record.value)
        return None if append is None else partial(self._end_modern, key, append)

    def _set(self, group_id: str, kind: type[AnyGroup], key: int, name: str, value: Any) -> None:
        """Set a value of a group of that kind. The first one makes the group, and the last one's removal ends it."""
        group = self.groups.get(group_id)
        if not isinstance(group, kind):
            if value is None:
                return
            # A classic group may be there that its offsets have made while the records are loaded, or that a downgrade has put in
            # its place whose append has failed.
            if isinstance(group, ClassicGroup):
                self.drop(group, ErrorCode.NOT_COORDINATOR)
            group = self.groups[group_id] = kind(group_id)
        before = group.member_bytes
        group.apply(key, name, value)
        self.usage.member_bytes += group.member_bytes - before
        if group.is_blank:
            self.drop(group, ErrorCode.GROUP_ID_NOT_FOUND)

    def _end_modern(self, key: _ModernKey, append: int, is_committed: bool) -> None:
        if is_committed:
            self._pending.commit(key, append)
        else:
            group = self.modern(key[0])
            if group is not None:
                group.reverts += 1
            for value in self._pending.revert(key, append):
                self._set(*key, value)

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
        if isinstance(record, GroupWritten | GroupTombstone):
            before = self.classic(record.group_id)
            if before is not None:  # the broker counts what its members hold
                self.drop(before, ErrorCode.NOT_COORDINATOR)
        if isinstance(record, GroupWritten):
            self.create(record.group_id).restore(record.value)
        else:
            self.replay(record, None)
