"""The values of a consumer group's records."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

import msgspec

from barnabas.broker.groups.modern.values import (
    JOINING,
    UNKNOWN_EPOCH,
    GroupEpoch,
    Partitions,
    TargetEpoch,
)

AssignedPartitions: TypeAlias = (
    "Mapping[bytes, Mapping[int, int]]"  # by topic id, index -> epoch at which it was assigned
)

LEFT_FOR_NOW: Final = -2  # the member epoch of a static member that is to return


class Key(enum.IntEnum):
    """The types of record."""

    GROUP = 3
    MEMBER = 5
    TARGET = 6
    TARGET_OF_MEMBER = 7
    CURRENT = 8
    REGULAR_EXPRESSION = 16


class MemberState(enum.IntEnum):
    """How far a member is on its way to its target."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1  # it has to give up some, and has not said that it has
    UNRELEASED_PARTITIONS = 2  # some of its target are still with other members
    UNKNOWN = 127  # of a later release


class ClassicMember(msgspec.Struct, frozen=True):
    """What a member of the classic protocol says of itself. `protocols`: name and subscription, in its order of preference."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class Member(msgspec.Struct, frozen=True):
    """A member's description of itself."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    regular_expression: str | None = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicMember | None = None


class CurrentAssignment(msgspec.Struct, frozen=True):
    """What a member has. `revoking`: partitions that it has to give up, and may still read."""

    epoch: int = JOINING
    previous_epoch: int = UNKNOWN_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: AssignedPartitions = {}
    revoking: AssignedPartitions = {}

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state == MemberState.STABLE and self.epoch == target_epoch

    def held(self) -> Iterator[tuple[bytes, int]]:
        for partitions in (self.assigned, self.revoking):
            for topic_id, indexes in partitions.items():
                for index in indexes:
                    yield topic_id, index

    def assignment_epoch(self, topic_id: bytes, index: int) -> int | None:
        """The epoch at which the member got the partition; None if it does not have it."""
        for partitions in (self.assigned, self.revoking):
            epoch = partitions.get(topic_id, {}).get(index)
            if epoch is not None:
                return epoch
        return None


def share_sets(
    partitions: dict[bytes, frozenset[int]], known: dict[frozenset[int], frozenset[int]]
) -> Partitions:
    """With one object for all sets that are equal: most topics have the same indexes. `known`: those of others."""
    for topic_id, indexes in partitions.items():
        partitions[topic_id] = known.setdefault(indexes, indexes)
    return partitions


def share_epochs(assigned: dict[bytes, dict[int, int]]) -> AssignedPartitions:
    """With one object for all mappings that are equal. They must not be changed after that."""
    known: dict[tuple[tuple[int, int], ...], dict[int, int]] = {}
    for topic_id, epochs in assigned.items():
        assigned[topic_id] = known.setdefault(tuple(epochs.items()), epochs)
    return assigned


class ResolvedExpression(msgspec.Struct, frozen=True):
    """The topics that a regular expression matched. `version`: the offset of the metadata that was searched, at this time (ms)."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


Value: TypeAlias = "GroupEpoch | Member | TargetEpoch | Mapping[bytes, frozenset[int]] | CurrentAssignment | ResolvedExpression"
