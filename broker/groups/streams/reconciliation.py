"""A member's way from what it has to its target, one step with each heartbeat.

    STABLE: the target is newer --> next step
    UNREVOKED_TASKS: the member says that it has given up all that it was to --> next step
    UNRELEASED_TASKS: next step, as tasks of other members may be free by now
    UNKNOWN (of a later release): the member owns nothing --> next step, else it is fenced

The next step keeps what is in the target. If the member has to give up others, it does that first. Otherwise it enters the target's
epoch and gets the tasks that it may have: an active task once no process has it and its own process has no copy of it, a copy once its
process has the task in no role. So a task is never active twice. Source: CurrentAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from barnabas.broker.groups.streams.values import (
    NO_TASKS,
    CurrentAssignment,
    HeldTasks,
    MemberState,
    TargetTasks,
    TaskSets,
)
from barnabas.controller.metadata.decision import ApiError
from barnabas.wire.errors import ErrorCode

Owned: TypeAlias = "TargetTasks | None"  # what a heartbeat says that the member owns; None: as before


class Goal(msgspec.Struct, frozen=True):
    """The target of a member. `may_run(subtopology id, partition)`: whether the member may get the task as active one; `may_copy`: as
    another."""

    epoch: int
    target: TargetTasks
    may_run: Callable[[str, int], bool]
    may_copy: Callable[[str, int], bool]


def reconcile(current: CurrentAssignment, goal: Goal, owned: Owned) -> CurrentAssignment:
    """The assignment after this heartbeat. ApiError FENCED_MEMBER_EPOCH."""
    match current.state:
        case MemberState.STABLE:
            return current if current.epoch == goal.epoch else _next(current, current.epoch, goal, owned)
        case MemberState.UNREVOKED_TASKS:
            if _owns_any(owned, current.revoking):
                return current
            return _next(current, current.epoch + 1, goal, owned)
        case MemberState.UNRELEASED_TASKS:
            return _next(current, current.epoch, goal, owned)
        case MemberState.UNKNOWN:
            if owned is None or owned != TargetTasks():
                raise ApiError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The streams group member is in a unknown state. The member must abandon all its tasks and rejoin.",
                )
            return _next(current, goal.epoch, goal, owned)


def _next(current: CurrentAssignment, epoch: int, goal: Goal, owned: Owned) -> CurrentAssignment:
    """`epoch`: of the member while it gives up tasks."""
    assigned, target = current.assigned, goal.target
    active, revoked = _split(assigned.active, target.active)
    standby, revoked_standby = _split(_marked(assigned.standby), target.standby)
    warmup, revoked_warmup = _split(_marked(assigned.warmup), target.warmup)
    revoking = HeldTasks(revoked, _sets(revoked_standby), _sets(revoked_warmup))
    if _owns_any(owned, revoking):
        kept = HeldTasks(active, _sets(standby), _sets(warmup))
        return CurrentAssignment(epoch, current.epoch, MemberState.UNREVOKED_TASKS, kept, revoking)
    lacks_some = [
        _add(active, target.active, goal.epoch, goal.may_run),
        _add(standby, target.standby, goal.epoch, goal.may_copy),
        _add(warmup, target.warmup, goal.epoch, goal.may_copy),
    ]
    state = MemberState.UNRELEASED_TASKS if any(lacks_some) else MemberState.STABLE
    held = HeldTasks(active, _sets(standby), _sets(warmup))
    return CurrentAssignment(goal.epoch, current.epoch, state, held, NO_TASKS)


_Epochs: TypeAlias = dict[str, dict[int, int]]


def _marked(tasks: TaskSets) -> _Epochs:
    return {subtopology_id: dict.fromkeys(indexes, 0) for subtopology_id, indexes in tasks.items()}


def _sets(tasks: _Epochs) -> TaskSets:
    return {subtopology_id: frozenset(indexes) for subtopology_id, indexes in tasks.items()}


def _split(tasks: Mapping[str, Mapping[int, int]], target: TaskSets) -> tuple[_Epochs, _Epochs]:
    """(those in the target, the others)."""
    kept: _Epochs = {}
    revoked: _Epochs = {}
    for subtopology_id, epochs in tasks.items():
        wanted = target.get(subtopology_id, frozenset())
        for index, epoch in epochs.items():
            part = kept if index in wanted else revoked
            part.setdefault(subtopology_id, {})[index] = epoch
    return kept, revoked


def _add(tasks: _Epochs, target: TaskSets, epoch: int, may_have: Callable[[str, int], bool]) -> bool:
    """Add the tasks of the target that the member may have. Whether some are missing."""
    lacks_some = False
    for subtopology_id, wanted in target.items():
        for index in sorted(wanted - tasks.get(subtopology_id, {}).keys()):
            if may_have(subtopology_id, index):
                tasks.setdefault(subtopology_id, {})[index] = epoch
            else:
                lacks_some = True
    return lacks_some


def _owns_any(owned: Owned, tasks: HeldTasks) -> bool:
    """Whether the member may still run one of them."""
    if not tasks:
        return False
    if owned is None:
        return True
    return any(
        not owning.get(subtopology_id, frozenset()).isdisjoint(indexes)
        for owning, held in zip((owned.active, owned.standby, owned.warmup), tasks.by_role(), strict=True)
        for subtopology_id, indexes in held.items()
    )
