"""The parts of decisions that are the same for every modern kind of group, each made on a draft. Source: GroupMetadataManager of Kafka's
group coordinator; texts of errors are Kafka's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from barnabas.broker.groups.modern.draft import Draft
from barnabas.broker.groups.modern.group import AnyGroup
from barnabas.broker.groups.modern.room import check_room
from barnabas.broker.groups.modern.values import JOINING
from barnabas.controller.metadata.decision import ApiError
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.groups.member import GroupUsage
    from barnabas.broker.groups.settings import GroupConfigs, GroupSettings

G = TypeVar("G", bound=AnyGroup)


class ModernGroupChanges(ABC, Generic[G]):
    """See the module. Each kind of group has a subclass."""

    def __init__(
        self,
        settings: GroupSettings,
        configs: GroupConfigs,
        now_ms: Callable[[], int],
        usage: GroupUsage,
        size_max: int,
    ) -> None:
        """`now_ms()`: the wall clock. `usage`: of all groups of the broker. `size_max`: members of a group."""
        self._usage = usage
        self.settings = settings
        self.configs = configs
        self._now_ms = now_ms
        self._size_max = size_max

    def check_size(self, group: G) -> None:
        """For a member that joins."""
        if len(group.members) >= self._size_max:
            raise ApiError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The {group.group_type} group has reached its maximum capacity of {self._size_max} members.",
            )

    def describe(self, draft: Draft[G], member_id: str, member: Any) -> None:
        """Write the member's description, if there is room for it."""
        group = draft.group
        before = group.described_bytes
        draft.write(group.keys.member, member_id, member)
        check_room(group, self._usage, before)

    def remove(self, group: G, member_ids: Iterable[str]) -> Draft[G]:
        """Remove members: the group's epoch rises."""
        draft = Draft(group)
        for member_id in member_ids:
            self._remove(draft, member_id)
        self.raise_epoch(draft)
        return draft

    def _remove(self, draft: Draft[G], member_id: str) -> None:
        remove_member(draft, member_id)

    @abstractmethod
    def raise_epoch(self, draft: Draft[G]) -> None:
        """Have the group assigned anew."""


def remove_member(draft: Draft[G], member_id: str) -> None:
    keys = draft.group.keys
    for key in (keys.current, keys.target_of_member, keys.member):
        draft.write(key, member_id, None)


def check_epoch(group: AnyGroup, member_id: str, received: int, owns_no_more: Callable[[], bool]) -> None:
    """FENCED_MEMBER_EPOCH unless it is the member's epoch, or the one before, because the answer with the next one was lost.
    `owns_no_more()`: whether what it says that it has is part of what it has."""
    current = group.current(member_id)
    if received in (JOINING, current.epoch):
        return
    if received < current.epoch and received == current.previous_epoch and owns_no_more():
        return
    how = "greater" if received > current.epoch else "smaller"
    raise ApiError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The {group.group_type} group member has a {how} member epoch ({received}) than the one known by the group coordinator "
        f"({current.epoch}). The member must abandon all its partitions and rejoin.",
    )


def unknown_member(group: AnyGroup, member_id: str) -> ApiError:
    return ApiError(
        ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.group_id}."
    )
