"""The states of a classic group, and the events that lead from one to the next.

    EMPTY -- REBALANCE --> PREPARING_REBALANCE     the first member joins
    PREPARING_REBALANCE -- JOINED --> COMPLETING_REBALANCE      every member has rejoined, or the rebalance timeout has passed
    PREPARING_REBALANCE -- EMPTIED --> EMPTY       no member is left
    COMPLETING_REBALANCE -- ASSIGNED --> STABLE    the leader's assignment is in the log
    COMPLETING_REBALANCE, STABLE -- REBALANCE --> PREPARING_REBALANCE     a member joins, leaves or changes
    any -- END --> DEAD                            the group is deleted, or its partition is led elsewhere

`next_state` is the table; a pair that it does not list is an error.
"""

from __future__ import annotations

import enum
from typing import Final


class GroupState(enum.Enum):
    """A classic group's state; the value is what DescribeGroups and ListGroups print."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class GroupEvent(enum.Enum):
    """What changes a group's state."""

    REBALANCE = enum.auto()
    JOINED = enum.auto()
    EMPTIED = enum.auto()
    ASSIGNED = enum.auto()
    END = enum.auto()


_NEXT: Final = {
    GroupState.EMPTY: {
        GroupEvent.REBALANCE: GroupState.PREPARING_REBALANCE,
        GroupEvent.END: GroupState.DEAD,
    },
    GroupState.PREPARING_REBALANCE: {
        GroupEvent.JOINED: GroupState.COMPLETING_REBALANCE,
        GroupEvent.EMPTIED: GroupState.EMPTY,
        GroupEvent.END: GroupState.DEAD,
    },
    GroupState.COMPLETING_REBALANCE: {
        GroupEvent.ASSIGNED: GroupState.STABLE,
        GroupEvent.REBALANCE: GroupState.PREPARING_REBALANCE,
        GroupEvent.END: GroupState.DEAD,
    },
    GroupState.STABLE: {
        GroupEvent.REBALANCE: GroupState.PREPARING_REBALANCE,
        GroupEvent.END: GroupState.DEAD,
    },
    GroupState.DEAD: {GroupEvent.END: GroupState.DEAD},
}
CAN_REBALANCE: Final = frozenset(state for state, events in _NEXT.items() if GroupEvent.REBALANCE in events)


class UnexpectedGroupEvent(Exception):
    """The state does not list the event: a defect."""


def next_state(state: GroupState, event: GroupEvent) -> GroupState:
    found = _NEXT[state].get(event)
    if found is None:
        raise UnexpectedGroupEvent(f"{event.name} of a group that is {state.value}")
    return found
