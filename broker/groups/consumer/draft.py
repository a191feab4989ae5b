"""A decision in the making: the records that it will append."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from barnabas.broker.groups.consumer.records import ConsumerGroupRecord

if TYPE_CHECKING:
    from barnabas.broker.groups.consumer.group import ConsumerGroup
    from barnabas.broker.groups.consumer.values import Key, Value
    from barnabas.broker.groups.group import ClassicGroup
    from barnabas.broker.groups.records import GroupRecord


class Draft:
    """Each record is applied to the group at once, so that what comes next is decided about the group as it will be. `take_back` leaves
    the group as before: the replay of the log applies the records again. `replaced`: the classic group in whose place it comes."""

    def __init__(
        self, group: ConsumerGroup, begin: Iterable[GroupRecord] = (), replaced: ClassicGroup | None = None
    ) -> None:
        """`begin`: records that come first."""
        self.group = group
        self.replaced = replaced
        self.records: list[GroupRecord] = list(begin)
        self._before: list[tuple[Key, str, Value | None]] = []

    def write(self, key: Key, name: str, value: Value | None) -> None:
        """Set a value, or (None) remove it; no record if that changes nothing."""
        before = self.group.values.get((key, name))
        if before == value:
            return
        self._before.append((key, name, before))
        self.group.apply(key, name, value)
        self.records.append(ConsumerGroupRecord(self.group.group_id, key, name, value))

    def take_back(self) -> None:
        while self._before:
            self.group.apply(*self._before.pop())
