"""A decision in the making: the records that it will append."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from barnabas.broker.groups.modern.group import AnyGroup
from barnabas.runtime.slices import Steps

if TYPE_CHECKING:
    from barnabas.broker.groups.group import ClassicGroup
    from barnabas.broker.groups.records import GroupRecord

G = TypeVar("G", bound=AnyGroup)
# Computes a target assignment of the group; its result writes that into a draft.
AssignmentSteps: TypeAlias = "Callable[[G], Steps[Callable[[Draft[G]], None]]]"


class Draft(Generic[G]):
    """Each record is applied to the group at once, so that what comes next is decided about the group as it will be. `take_back` leaves
    the group as before: the replay of the log applies the records again. `replaced`: the classic group in whose place it comes."""

    def __init__(
        self,
        group: G,
        begin: Iterable[GroupRecord] = (),
        replaced: ClassicGroup | None = None,
        *,
        is_decided: bool = False,
    ) -> None:
        """`begin`: records that come first. `is_decided`: nothing is decided from the group as it will be, so that nothing need be
        applied before the log is replayed."""
        self._is_decided = is_decided
        self.group = group
        self.replaced = replaced
        self.records: list[GroupRecord] = list(begin)
        # To be computed in slices once the records are committed: a target assignment that takes long.
        self.assignment: AssignmentSteps[G] | None = None
        self._before: list[tuple[int, str, Any]] = []

    def write(self, key: int, name: str, value: Any) -> None:
        """Set a value, or (None) remove it; no record if that changes nothing."""
        group = self.group
        before = group.values.get((key, name))
        if before == value:
            return
        if not self._is_decided:
            self._before.append((key, name, before))
            group.apply(key, name, value)
        self.records.append(group.record_class(group.group_id, key, name, value))

    def take_back(self) -> None:
        while self._before:
            self.group.apply(*self._before.pop())
