"""A member's way from what it has to its target, one step with each heartbeat.

    STABLE: the target is newer --> next step; topics that it no longer reads are given up at once
    UNREVOKED_PARTITIONS: the member says that it has given up all that it was to --> next step
    UNRELEASED_PARTITIONS: next step, as partitions of other members may be free by now
    UNKNOWN (of a later release): the member owns nothing --> next step, else it is fenced

The next step keeps what is in the target. If the member has to give up others, it stays in its epoch until it has (unless it says that
it does not own them). Otherwise it enters the target's epoch and gets the partitions that no other member has; while some are missing it is
UNRELEASED_PARTITIONS. So a partition never has two owners. Source: CurrentAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from barnabas.broker.groups.consumer.values import (
    AssignedPartitions,
    CurrentAssignment,
    MemberState,
    share_epochs,
)
from barnabas.broker.groups.modern.values import Partitions
from barnabas.controller.metadata.decision import ApiError
from barnabas.wire.errors import ErrorCode

Owned: TypeAlias = (
    "dict[bytes, set[int]] | None"  # what a heartbeat says that the member owns; None: as before
)


class Goal(msgspec.Struct, frozen=True):
    """The target of a member. `topics`: ids of those that it reads; `is_free(topic id, index)`: no member has the partition."""

    epoch: int
    target: Partitions
    topics: frozenset[bytes]
    is_free: Callable[[bytes, int], bool]


def reconcile(
    current: CurrentAssignment, goal: Goal, owned: Owned, *, has_new_subscription: bool
) -> CurrentAssignment:
    """The assignment after this heartbeat. ApiError FENCED_MEMBER_EPOCH."""
    match current.state:
        case MemberState.STABLE:
            if current.epoch != goal.epoch:
                return _next(current, goal, owned)
            return _without_unsubscribed(current, goal, owned) if has_new_subscription else current
        case MemberState.UNREVOKED_PARTITIONS:
            if not _owns_any(owned, current.revoking):
                return _next(current, goal, owned)
            return _without_unsubscribed(current, goal, owned) if has_new_subscription else current
        case MemberState.UNRELEASED_PARTITIONS:
            return _next(current, goal, owned)
        case MemberState.UNKNOWN:
            if owned is None or owned:
                raise ApiError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The consumer group member is in a unknown state. The member must abandon all its partitions and rejoin.",
                )
            return _next(msgspec.structs.replace(current, epoch=goal.epoch), goal, owned)


def _next(current: CurrentAssignment, goal: Goal, owned: Owned) -> CurrentAssignment:
    kept: dict[bytes, dict[int, int]] = {}
    revoked: dict[bytes, dict[int, int]] = {}
    for topic_id, epochs in current.assigned.items():
        target = goal.target.get(topic_id, frozenset()) if topic_id in goal.topics else frozenset()
        for index, epoch in epochs.items():
            part = kept if index in target else revoked
            part.setdefault(topic_id, {})[index] = epoch
    if revoked and _owns_any(owned, revoked):
        return CurrentAssignment(
            current.epoch,
            current.epoch,
            MemberState.UNREVOKED_PARTITIONS,
            share_epochs(kept),
            share_epochs(revoked),
        )
    lacks_some = _add_free(kept, current, goal)
    state = MemberState.UNRELEASED_PARTITIONS if lacks_some else MemberState.STABLE
    return CurrentAssignment(goal.epoch, current.epoch, state, share_epochs(kept), {})


def _add_free(kept: dict[bytes, dict[int, int]], current: CurrentAssignment, goal: Goal) -> bool:
    """Add the partitions of the target that the member may have. Whether some are missing."""
    lacks_some = False
    for topic_id, target in goal.target.items():
        if topic_id not in goal.topics:
            continue
        given_up = current.revoking.get(topic_id, {})
        for index in sorted(target - kept.get(topic_id, {}).keys()):
            if index in given_up or goal.is_free(topic_id, index):
                kept.setdefault(topic_id, {})[index] = goal.epoch
            else:
                lacks_some = True
    return lacks_some


def _without_unsubscribed(current: CurrentAssignment, goal: Goal, owned: Owned) -> CurrentAssignment:
    """The member no longer reads some topics."""
    kept = {topic_id: epochs for topic_id, epochs in current.assigned.items() if topic_id in goal.topics}
    if len(kept) == len(current.assigned):
        return current
    revoking = {topic_id: dict(epochs) for topic_id, epochs in current.revoking.items()}
    for topic_id, epochs in current.assigned.items():
        if topic_id not in goal.topics:
            revoking.setdefault(topic_id, {}).update(epochs)
    if _owns_any(owned, revoking):
        return CurrentAssignment(
            current.epoch, current.epoch, MemberState.UNREVOKED_PARTITIONS, kept, share_epochs(revoking)
        )
    return msgspec.structs.replace(current, previous_epoch=current.epoch, assigned=kept)


def _owns_any(owned: Owned, partitions: AssignedPartitions) -> bool:
    """Whether the member may still read one of them."""
    if not partitions:
        return False
    if owned is None:
        return True
    return any(
        not epochs.keys().isdisjoint(owned.get(topic_id, ())) for topic_id, epochs in partitions.items()
    )
