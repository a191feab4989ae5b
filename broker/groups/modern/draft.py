"""A decision in the making: the records that it will append."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from barnabas.broker.groups.modern.group import ModernGroup

if TYPE_CHECKING:
    from barnabas.broker.groups.group import ClassicGroup
    from barnabas.broker.groups.records import GroupRecord

G = TypeVar("G", bound=ModernGroup)


class Draft(Generic[G]):
    """Each record is applied to the group at once, so that what comes next is decided about the group as it will be. `take_back` leaves
    the group as before: the replay of the log applies the records again. `replaced`: the classic group in whose place it comes."""

    def __init__(
        self, group: G, begin: Iterable[GroupRecord] = (), replaced: ClassicGroup | None = None
    ) -> None:
        """`begin`: records that come first."""
        self.group = group
        self.replaced = replaced
        self.records: list[GroupRecord] = list(begin)
        self._before: list[tuple[int, str, Any]] = []

    def write(self, key: int, name: str, value: Any) -> None:
        """Set a value, or (None) remove it; no record if that changes nothing."""
        group = self.group
        before = group.values.get((key, name))
        if before == value:
            return
        self._before.append((key, name, before))
        group.apply(key, name, value)
        self.records.append(group.record_class(group.group_id, key, name, value))

    def take_back(self) -> None:
        while self._before:
            self.group.apply(*self._before.pop())
