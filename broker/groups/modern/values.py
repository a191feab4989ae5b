"""Values that groups of every modern kind have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

import msgspec

Partitions: TypeAlias = "Mapping[bytes, frozenset[int]]"  # by topic id

JOINING: Final = 0  # in place of a member epoch
LEAVING: Final = -1
UNKNOWN_EPOCH: Final = -1


class Keys(NamedTuple):
    """The types of record that each kind of group has."""

    group: int
    member: int  # a member's description of itself
    target: int
    target_of_member: int
    current: int  # what a member has


class GroupEpoch(msgspec.Struct, frozen=True):
    """It rises with each change that may call for another assignment. `metadata_hash`: of the subscribed topics (topics.py)."""

    epoch: int
    metadata_hash: int


class TargetEpoch(msgspec.Struct, frozen=True):
    """The group epoch that the target assignment was computed for, and when (ms, 0: not known)."""

    epoch: int
    timestamp_ms: int


def is_recent(then_ms: int, interval_ms: int, now_ms: int) -> bool:
    """Whether less than the interval has passed. A time that is still to come is from the clock of an earlier coordinator, and says
    nothing."""
    return then_ms <= now_ms < then_ms + interval_ms
