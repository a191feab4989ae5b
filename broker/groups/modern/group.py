"""A group as the last value of each of its records. Without I/O, and without decisions.

`apply` sets one value, whatever came before: so a log is replayed from its last records alone, an append is taken back by setting
the value before, and a decision can be made on the group itself (draft.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from barnabas.broker.groups.modern.values import GroupEpoch, Keys, TargetEpoch

if TYPE_CHECKING:
    from barnabas.broker.coordinator.timers import DeadlineTimer
    from barnabas.wire.errors import ErrorCode


class ModernGroupRecord(msgspec.Struct, frozen=True):
    """A value of a group was set, or (None) removed. `key`: the type of record; `name`: of what it is about, such as a member, empty for
    the group itself. Each type of group has a subclass."""

    group_id: str
    key: int
    name: str
    value: Any


class CurrentAssignment(Protocol):
    """What a member has."""

    @property
    def epoch(self) -> int: ...
    @property
    def previous_epoch(self) -> int: ...
    def is_reconciled_to(self, target_epoch: int) -> bool: ...


MemberT = TypeVar("MemberT")  # a member's description of itself
TargetT = TypeVar("TargetT")  # what a member shall have
CurrentT = TypeVar("CurrentT", bound=CurrentAssignment)


class ModernGroup(ABC, Generic[MemberT, TargetT, CurrentT]):
    """See the module. `members` has every member with a description; what a log has of others is kept, and has no effect."""

    group_type: ClassVar[str]
    protocol_type: ClassVar[str]
    record_class: ClassVar[type[ModernGroupRecord]]
    keys: ClassVar[Keys]
    removal_order: ClassVar[tuple[int, ...]]  # the types of record: of members first, of the group last
    no_epoch: ClassVar[GroupEpoch]  # without a record, as the next three
    no_target_epoch: ClassVar[TargetEpoch]
    no_target: TargetT
    no_assignment: CurrentT
    commits_offsets: ClassVar[bool] = True  # to __consumer_offsets

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.values: dict[tuple[int, str], Any] = {}
        self.members: dict[str, MemberT] = {}
        self.member_bytes = 0  # of all members and their partitions, about (room.py)
        self.described_bytes = 0  # the part of them that the members say of themselves
        self.waits_for_room = False  # its assignment does
        self.is_assigning = False  # its target assignment is computed, in slices
        self.reverts = 0  # changes that were taken back, as they could not be written
        self.timers: dict[tuple[str, str], DeadlineTimer] = {}  # by member id and kind (timeouts.py)
        self.is_metadata_checked = False  # since its topics may have changed

    @property
    def is_blank(self) -> bool:
        """Whether no record of it is left: then there is no such group."""
        return not self.values

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return not self.members

    # -- what the records say

    @property
    def group_epoch(self) -> GroupEpoch:
        value = self.values.get((self.keys.group, ""), self.no_epoch)
        assert isinstance(value, GroupEpoch)
        return value

    @property
    def epoch(self) -> int:
        """It rises with each change that may call for another assignment."""
        return self.group_epoch.epoch

    @property
    def target_epoch(self) -> TargetEpoch:
        value = self.values.get((self.keys.target, ""), self.no_target_epoch)
        assert isinstance(value, TargetEpoch)
        return value

    def target(self, member_id: str) -> TargetT:
        value: TargetT = self.values.get((self.keys.target_of_member, member_id), self.no_target)
        return value

    def current(self, member_id: str) -> CurrentT:
        value: CurrentT = self.values.get((self.keys.current, member_id), self.no_assignment)
        return value

    def member_epoch(self, member_id: str) -> int:
        return self.current(member_id).epoch

    def is_reconciled(self) -> bool:
        """Whether every member has its target."""
        target_epoch = self.target_epoch.epoch
        return all(self.current(member_id).is_reconciled_to(target_epoch) for member_id in self.members)

    def tombstones(self) -> list[ModernGroupRecord]:
        """The records that remove it: the members first, the group last."""
        order = self.removal_order.index
        keys = sorted(self.values, key=lambda each: order(each[0]))
        return [self.record_class(self.group_id, key, name, None) for key, name in keys]

    @property
    @abstractmethod
    def state_name(self) -> str:
        """As clients see it."""

    @abstractmethod
    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member reads the topic."""

    @abstractmethod
    def subscribed_topics(self) -> set[str]:
        """Names of all topics whose changes may call for another assignment, existing or not."""

    def assignment_epoch(self, _member_id: str, _partition: tuple[str, bytes, int]) -> int | None:
        """The member epoch at which the member got the partition (topic, its id, index); None if it does not have it."""
        return None

    def is_classic_member(self, _member_id: str) -> bool:
        """Whether a member speaks the classic protocol."""
        return False

    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == "consumer"

    def apply(self, key: int, name: str, value: Any) -> None:
        """Set a value, or (None) remove it."""
        self._changing(key, name, value)
        if value is None:
            self.values.pop((key, name), None)
        else:
            self.values[key, name] = value

    @abstractmethod
    def _changing(self, key: int, name: str, value: Any) -> None:
        """Before a value is set: keep what follows from it."""

    def kill(self, _error: ErrorCode) -> None:
        """The group ends here. None of its requests waits for anything but its append."""
        self.stop_timers()

    def stop_timers(self, member_id: str | None = None) -> None:
        """Those of a member, or all."""
        for each in tuple(self.timers):
            if member_id is None or each[0] == member_id:
                self.timers.pop(each).cancel()


AnyGroup: TypeAlias = ModernGroup[Any, Any, Any]
