"""The states of a classic group and the transitions between them, as a table; an unlisted pair is an error.

Empty -> PreparingRebalance      the first member joins
PreparingRebalance -> CompletingRebalance   every member rejoined, or the rebalance timeout passed
PreparingRebalance -> Empty      no member is left
CompletingRebalance -> Stable    the leader's assignment is in the log
CompletingRebalance, Stable -> PreparingRebalance   a member comes, goes or changes
any -> Dead                      the group was deleted, or its partition moved away
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


VALID_PREVIOUS_STATES: Final[dict[GroupState, frozenset[GroupState]]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE}
    ),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState),
}
