"""A group as the last value of each of its records. Without I/O, and without decisions.

`apply` sets one value, whatever came before: so a log is replayed from its last records alone, an append is taken back by setting
the value before, and a decision can be made on the group itself (draft.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

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


class ModernGroup(ABC):
    """See the module."""

    group_type: ClassVar[str]
    protocol_type: ClassVar[str]
    record_class: ClassVar[type[ModernGroupRecord]]
    member_key: ClassVar[int]  # the type of record with a member's description
    current_key: ClassVar[int]  # that of what it has
    commits_offsets: ClassVar[bool] = True  # to __consumer_offsets

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.values: dict[tuple[int, str], Any] = {}
        self.members: dict[str, Any] = {}  # by member id, what each says of itself
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
    @abstractmethod
    def is_empty(self) -> bool:
        """Whether it has no members."""

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

    @property
    @abstractmethod
    def epoch(self) -> int:
        """It rises with each change that may call for another assignment."""

    @abstractmethod
    def member_epoch(self, member_id: str) -> int: ...

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

    @abstractmethod
    def tombstones(self) -> list[ModernGroupRecord]:
        """The records that remove it: the members first, the group last."""

    def kill(self, _error: ErrorCode) -> None:
        """The group ends here. None of its requests waits for anything but its append."""
        self.stop_timers()

    def stop_timers(self, member_id: str | None = None) -> None:
        """Those of a member, or all."""
        for each in tuple(self.timers):
            if member_id is None or each[0] == member_id:
                self.timers.pop(each).cancel()
