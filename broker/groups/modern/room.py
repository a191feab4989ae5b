"""Bounds on the memory of groups whose coordinator assigns, of which Kafka has the number of members alone.

A group counts what its members say of themselves and the partitions or tasks that they have, or are to have (`member_bytes`, about),
and the broker what all its groups count. A member that joins, or describes itself at more length, is refused where there is no room
for that: GROUP_MAX_SIZE_REACHED in its group, COORDINATOR_NOT_AVAILABLE in the broker, as in classic groups. Assignments of groups
that are there go on until twice as much is taken; then they wait, and the members keep what they have.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from barnabas.broker.groups.member import MEMBER_BYTES_MAX, MEMBER_BYTES_OF_GROUP_MAX
from barnabas.controller.metadata.decision import ApiError
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.groups.member import GroupUsage
    from barnabas.broker.groups.modern.group import AnyGroup

log = logging.getLogger(__name__)

ASSIGNED_BYTES_MAX: Final = 2 * MEMBER_BYTES_MAX


def check_room(group: AnyGroup, usage: GroupUsage, before: int) -> None:
    """ApiError where a draft has made the group's `described_bytes` too many; `before`: how many they were."""
    more = group.described_bytes - before
    if more <= 0:
        return
    if group.described_bytes > MEMBER_BYTES_OF_GROUP_MAX:
        raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, "The descriptions of its members are too large.")
    if usage.member_bytes + more > MEMBER_BYTES_MAX:
        log.warning("Group %s: the groups of this broker hold too much in memory", group.group_id)
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, None)


def may_assign(group: AnyGroup, usage: GroupUsage) -> bool:
    """Whether there is room for another assignment."""
    waits = usage.member_bytes > ASSIGNED_BYTES_MAX
    if waits and not group.waits_for_room:
        log.warning("Group %s: its assignment waits, as groups hold too much in memory", group.group_id)
    group.waits_for_room = waits
    return not waits
