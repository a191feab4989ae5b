"""A streams group, and what follows from its records: members, owners of tasks, its topology."""

from __future__ import annotations

import enum
from typing import Any, Final

from barnabas.broker.groups.member import MEMBER_OVERHEAD_BYTES
from barnabas.broker.groups.modern.group import ModernGroup
from barnabas.broker.groups.modern.values import Keys, TargetEpoch
from barnabas.broker.groups.streams.records import StreamsGroupRecord
from barnabas.broker.groups.streams.topology import ConfiguredTopology, required_topics, source_topics
from barnabas.broker.groups.streams.values import (
    CurrentAssignment,
    GroupEpoch,
    HeldTasks,
    Key,
    Member,
    TargetTasks,
    Task,
    Value,
    each_task,
)
from barnabas.wire.messages.consumer_offsets import StreamsGroupTopologyValue

STREAMS_TYPE: Final = "streams"  # of group, and of protocol
NAME_OVERHEAD_BYTES: Final = 300  # of a topic of the topology
PART_OVERHEAD_BYTES: Final = 500  # of a subtopology, and of topics that it joins
PAIR_OVERHEAD_BYTES: Final = 200
SUBTOPOLOGY_BYTES: Final = 400  # of one of which a member has tasks, in its target and in what it has
TASK_BYTES: Final = 200  # of a task in them, and in the owners


class StreamsGroupState(enum.Enum):
    """The value is what clients see."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"  # topics of its topology are missing, or have wrong numbers of partitions
    ASSIGNING = "Assigning"  # the target assignment is older than the group
    RECONCILING = "Reconciling"  # not every member has its target
    STABLE = "Stable"


class StreamsGroup(ModernGroup[Member, TargetTasks, CurrentAssignment]):
    """See the module."""

    group_type = STREAMS_TYPE
    protocol_type = STREAMS_TYPE
    record_class = StreamsGroupRecord
    keys = Keys(Key.GROUP, Key.MEMBER, Key.TARGET, Key.TARGET_OF_MEMBER, Key.CURRENT)
    removal_order = (
        Key.CURRENT, Key.TARGET_OF_MEMBER, Key.TARGET, Key.MEMBER, Key.GROUP, Key.TOPOLOGY,
    )  # fmt: skip
    no_epoch = GroupEpoch(1, 0, 0)  # as in Kafka
    no_target_epoch = TargetEpoch(1, 0)
    no_target = TargetTasks()
    no_assignment = CurrentAssignment()

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.active: dict[Task, str] = {}  # the member that has it, also while it gives it up
        self.standby: dict[Task, set[str]] = {}  # and those with a copy of its state
        self.warmup: dict[Task, set[str]] = {}
        self.sources: dict[str, str] = {}  # topic -> id of the subtopology that reads it
        self.required: frozenset[str] = frozenset()  # all topics of the topology but repartition sinks
        self.configured: ConfiguredTopology | None = None  # None: not known since it was loaded, or changed
        self.endpoint_epoch = 0  # rises when tasks move between members with endpoints
        self.shutdown_by: str | None = None  # the member that asked all to end
        self._held_bytes: dict[str, int] = {}  # of tasks, by member id

    # -- what the records say

    @property
    def group_epoch(self) -> GroupEpoch:
        value = super().group_epoch
        assert isinstance(value, GroupEpoch)
        return value

    @property
    def topology(self) -> StreamsGroupTopologyValue | None:
        value: Any = self.values.get((Key.TOPOLOGY, ""))
        return value  # type: ignore[no-any-return]  # records of this key have it

    def assignment_epoch(self, member_id: str, partition: tuple[str, bytes, int]) -> int | None:
        topic, _, index = partition
        subtopology_id = self.sources.get(topic)
        return (
            None
            if subtopology_id is None
            else self.current(member_id).assignment_epoch(subtopology_id, index)
        )

    @property
    def state(self) -> StreamsGroupState:
        if not self.members:
            return StreamsGroupState.EMPTY
        if self.topology is None or self.topology.epoch != self.group_epoch.validated_topology_epoch:
            return StreamsGroupState.NOT_READY
        if self.epoch > self.target_epoch.epoch:
            return StreamsGroupState.ASSIGNING
        return StreamsGroupState.STABLE if self.is_reconciled() else StreamsGroupState.RECONCILING

    @property
    def state_name(self) -> str:
        return self.state.value

    def subscribed_topics(self) -> set[str]:
        return set(self.required)

    def is_subscribed_to(self, topic: str) -> bool:
        return bool(self.members) and topic in self.sources

    def process_of(self, task: Task) -> str | None:
        """The process at which a task is active; None if it is not."""
        return self._process(self.active.get(task))

    def has_copy(self, task: Task, process_id: str) -> bool:
        """Whether a member of the process has the task as standby or warm-up."""
        return any(
            self._process(member_id) == process_id
            for copies in (self.standby, self.warmup)
            for member_id in copies.get(task, ())
        )

    def _process(self, member_id: str | None) -> str | None:
        member = None if member_id is None else self.members.get(member_id)
        return None if member is None else member.process_id

    # -- changes

    def _changing(self, key: int, name: str, value: Value | None) -> None:
        if key == Key.MEMBER:
            self._apply_member(name, value)
        elif key == Key.TARGET_OF_MEMBER:
            assert value is None or isinstance(value, TargetTasks)
            self._count_held(name, value or self.no_target, self.current(name))
        elif key == Key.CURRENT:
            self._apply_current(name, value)
        elif key == Key.TOPOLOGY:
            assert value is None or isinstance(value, StreamsGroupTopologyValue)
            self._describe(-_topology_size(self.topology))
            self._describe(_topology_size(value))
            self.sources = {} if value is None else source_topics(value)
            self.required = frozenset() if value is None else required_topics(value)
            self.configured = None

    def _apply_member(self, member_id: str, value: Value | None) -> None:
        before = self.members.pop(member_id, None)
        if before is not None:
            self._describe(-_member_size(before))
        if value is not None:
            assert isinstance(value, Member)
            self.members[member_id] = value
            self._describe(_member_size(value))
        elif not self.members:
            self.shutdown_by = None

    def _describe(self, size: int) -> None:
        self.described_bytes += size
        self.member_bytes += size

    def _count_held(self, member_id: str, target: TargetTasks, current: CurrentAssignment) -> None:
        """A member's tasks: those that it has, or is to have, whichever take more."""
        size = max(_tasks_size(target), _tasks_size(current.assigned) + _tasks_size(current.revoking))
        self.member_bytes += size - self._held_bytes.pop(member_id, 0)
        if size:
            self._held_bytes[member_id] = size

    def _apply_current(self, member_id: str, value: Value | None) -> None:
        before = self.current(member_id)
        for held in (before.assigned, before.revoking):
            for task in each_task(held.active):
                if self.active.get(task) == member_id:
                    del self.active[task]
            for copies, tasks in ((self.standby, held.standby), (self.warmup, held.warmup)):
                for task in each_task(tasks):
                    members = copies.get(task, set())
                    members.discard(member_id)
                    if not members:
                        copies.pop(task, None)
        assert value is None or isinstance(value, CurrentAssignment)
        self._count_held(member_id, self.target(member_id), value or self.no_assignment)
        for held in () if value is None else (value.assigned, value.revoking):
            for task in each_task(held.active):
                self.active[task] = member_id
            for copies, tasks in ((self.standby, held.standby), (self.warmup, held.warmup)):
                for task in each_task(tasks):
                    copies.setdefault(task, set()).add(member_id)


# The sizes are about right, and quick to compute.


def _member_size(member: Member) -> int:
    texts = (member.client_id, member.instance_id, member.rack_id, member.process_id)
    endpoint = "" if member.user_endpoint is None else member.user_endpoint[0]
    size = MEMBER_OVERHEAD_BYTES + len(endpoint) + sum(len(each or "") for each in texts)
    return size + sum(len(key) + len(text) + PAIR_OVERHEAD_BYTES for key, text in member.client_tags)


def _topology_size(topology: StreamsGroupTopologyValue | None) -> int:
    """With what follows from it."""
    size = 0
    for each in () if topology is None else topology.subtopologies:
        size += PART_OVERHEAD_BYTES + len(each.subtopology_id)
        for names in (each.source_topics, each.source_topic_regex, each.repartition_sink_topics):
            size += sum(map(len, names)) + len(names) * NAME_OVERHEAD_BYTES
        for topic in (*each.state_changelog_topics, *each.repartition_source_topics):
            size += len(topic.name) + 2 * NAME_OVERHEAD_BYTES
            for config in topic.topic_configs:
                size += len(config.key) + len(config.value) + 2 * PAIR_OVERHEAD_BYTES
        size += len(each.copartition_groups) * PART_OVERHEAD_BYTES
    return size


def _tasks_size(tasks: TargetTasks | HeldTasks) -> int:
    return sum(
        len(by_subtopology) * SUBTOPOLOGY_BYTES + sum(map(len, by_subtopology.values())) * TASK_BYTES
        for by_subtopology in (tasks.active, tasks.standby, tasks.warmup)
    )
