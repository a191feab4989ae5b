"""The values of a streams group's records.

A task is a partition of a subtopology: (its id, the partition). A member's tasks are of three roles: active ones process records,
standby ones keep a copy of the state, warm-up ones build such a copy for a move. The coordinator assigns no warm-up tasks yet, as Kafka's.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

import msgspec

from barnabas.broker.groups.modern import values as modern
from barnabas.broker.groups.modern.values import JOINING, TargetEpoch
from barnabas.wire.messages.consumer_offsets import StreamsGroupTopologyValue

Task: TypeAlias = tuple[str, int]  # subtopology id, partition
TaskSets: TypeAlias = "Mapping[str, frozenset[int]]"  # partitions by subtopology id
ActiveTasks: TypeAlias = (
    "Mapping[str, Mapping[int, int]]"  # by subtopology id, partition -> epoch at which it was assigned
)
Pairs: TypeAlias = tuple[tuple[str, str], ...]


class Key(enum.IntEnum):
    """The types of record."""

    GROUP = 17
    MEMBER = 19
    TARGET = 20
    TARGET_OF_MEMBER = 21
    CURRENT = 22
    TOPOLOGY = 23


class MemberState(enum.IntEnum):
    """How far a member is on its way to its target."""

    STABLE = 1
    UNREVOKED_TASKS = 2  # it has to give up some, and has not said that it has
    UNRELEASED_TASKS = 3  # some of its target are still with other members
    UNKNOWN = 127  # of a later release


class GroupEpoch(modern.GroupEpoch, frozen=True):
    """`metadata_hash`: of the topics of the topology; `validated_topology_epoch`: of the topology whose topics all exist, -1 where some
    do not; `configs`: the settings that the tasks were assigned by."""

    validated_topology_epoch: int = -1
    configs: Pairs = ()


class Member(msgspec.Struct, frozen=True):
    """A member's description of itself. `process_id`: of the application's instance, whose threads are members each; `user_endpoint`:
    where it answers queries, (host, port)."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    process_id: str = ""
    user_endpoint: tuple[str, int] | None = None
    client_tags: Pairs = ()


class TargetTasks(msgspec.Struct, frozen=True):
    """The tasks that a member shall have."""

    active: TaskSets = {}
    standby: TaskSets = {}
    warmup: TaskSets = {}


class HeldTasks(msgspec.Struct, frozen=True):
    """Tasks that a member has."""

    active: ActiveTasks = {}
    standby: TaskSets = {}
    warmup: TaskSets = {}

    def __bool__(self) -> bool:
        return bool(self.active or self.standby or self.warmup)

    def by_role(self) -> tuple[Mapping[str, Mapping[int, int] | frozenset[int]], ...]:
        return self.active, self.standby, self.warmup


NO_TASKS: Final = HeldTasks()


class CurrentAssignment(msgspec.Struct, frozen=True):
    """What a member has. `revoking`: tasks that it has to give up, and may still run."""

    epoch: int = JOINING
    previous_epoch: int = JOINING
    state: MemberState = MemberState.STABLE
    assigned: HeldTasks = NO_TASKS
    revoking: HeldTasks = NO_TASKS

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state == MemberState.STABLE and self.epoch == target_epoch

    def assignment_epoch(self, subtopology_id: str, index: int) -> int | None:
        """The epoch at which the member got the active task; None if it does not have it."""
        for tasks in (self.assigned, self.revoking):
            epoch = tasks.active.get(subtopology_id, {}).get(index)
            if epoch is not None:
                return epoch
        return None


def each_task(tasks: Mapping[str, Mapping[int, int] | frozenset[int]]) -> Iterator[Task]:
    for subtopology_id, indexes in tasks.items():
        for index in indexes:
            yield subtopology_id, index


Value: TypeAlias = (
    GroupEpoch | Member | TargetEpoch | TargetTasks | CurrentAssignment | StreamsGroupTopologyValue
)
