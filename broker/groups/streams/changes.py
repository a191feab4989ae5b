"""The parts of decisions about streams groups, each made on a draft: the topology, the group's epoch, its target assignment, and a
member's step towards it. Source: GroupMetadataManager of Kafka's group coordinator; texts of errors are Kafka's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from barnabas.broker.groups.modern.changes import ModernGroupChanges
from barnabas.broker.groups.modern.draft import Draft
from barnabas.broker.groups.modern.room import check_room, may_assign
from barnabas.broker.groups.modern.topics import metadata_hash
from barnabas.broker.groups.modern.values import TargetEpoch, is_recent
from barnabas.broker.groups.streams.assignor import Worker, assign
from barnabas.broker.groups.streams.group import StreamsGroup
from barnabas.broker.groups.streams.reconciliation import Goal, Owned, reconcile
from barnabas.broker.groups.streams.topology import (
    ConfiguredTopology,
    check_topology,
    configure,
    required_topics,
)
from barnabas.broker.groups.streams.values import (
    CurrentAssignment,
    GroupEpoch,
    Key,
    Pairs,
    TargetTasks,
)
from barnabas.controller.metadata.decision import ApiError
from barnabas.runtime.slices import Steps, run_through
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.consumer_offsets import StreamsGroupTopologyValue

log = logging.getLogger(__name__)

STANDBY_REPLICAS: Final = "num.standby.replicas"
NOT_VALIDATED: Final = -1
ASSIGNED_AT_ONCE: Final = 1000  # members and tasks; more take longer than some ms
INITIAL_DELAY: Final = "Assignment delayed due to the configured initial rebalance delay."
INTERVAL: Final = "Assignment delayed due to the configured assignment interval."


class GroupChanges(ModernGroupChanges[StreamsGroup]):
    """See the module."""

    def update_topology(
        self, draft: Draft[StreamsGroup], given: StreamsGroupTopologyValue | None
    ) -> StreamsGroupTopologyValue:
        """The group's topology, which is that of its first member. ApiError where another one is given."""
        group, existing = draft.group, draft.group.topology
        if given is not None:
            check_topology(given)
        if existing is None:
            if given is None:
                raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, None)
            before = group.described_bytes
            draft.write(Key.TOPOLOGY, "", given)
            check_room(group, self._usage, before)
            log.info("Group %s has the topology of epoch %d", group.group_id, given.epoch)
            return given
        if given is not None and given.epoch >= existing.epoch and not _are_equal(given, existing):
            raise ApiError(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.")
        return existing

    def configure(
        self, group: StreamsGroup, topology: StreamsGroupTopologyValue
    ) -> tuple[ConfiguredTopology, int]:
        """(the topics and tasks of the topology, the hash of its topics). ApiError."""
        found = group.group_epoch.metadata_hash
        configured = group.configured
        if configured is None or not group.is_metadata_checked:
            image = self.configs.image()
            now = metadata_hash(image, required_topics(topology))
            if configured is None or now != found:
                configured = configure(topology, image)
            found = now
        return configured, found

    def update_epoch(
        self, draft: Draft[StreamsGroup], configured: ConfiguredTopology, found_hash: int, *, is_changed: bool
    ) -> None:
        """Raise the group's epoch if it `is_changed`, or its topics or settings are."""
        group, before = draft.group, draft.group.group_epoch
        validated = configured.epoch if configured.is_ready else NOT_VALIDATED
        after = GroupEpoch(before.epoch, found_hash, validated, self._assignment_configs(group.group_id))
        if is_changed or after != before:
            draft.write(Key.GROUP, "", msgspec.structs.replace(after, epoch=before.epoch + 1))
            log.info("Group %s has epoch %d", group.group_id, group.epoch)

    def _assignment_configs(self, group_id: str) -> Pairs:
        return ((STANDBY_REPLICAS, str(self.configs.number(group_id, f"streams.{STANDBY_REPLICAS}"))),)

    def update_target(self, draft: Draft[StreamsGroup], configured: ConfiguredTopology) -> str | None:
        """Compute the target assignment if the group has a newer epoch; in slices once the draft is committed if it takes long.
        Returns why it has to wait, if Kafka has a name for that."""
        group, before = draft.group, draft.group.target_epoch
        if before.epoch >= group.epoch or group.is_assigning:
            return None
        interval_ms = self.configs.number(group.group_id, "streams.assignment.interval.ms")
        if is_recent(before.timestamp_ms, interval_ms, self._now_ms()):
            return INTERVAL
        if not may_assign(group, self._usage):
            return None
        if len(group.members) + configured.task_count > ASSIGNED_AT_ONCE:
            draft.assignment = self._assign_later
        else:
            run_through(self._assign(group, configured))(draft)
        return None

    def _assign_later(self, group: StreamsGroup) -> Steps[Callable[[Draft[StreamsGroup]], None]]:
        configured, reverts = group.configured, group.reverts
        if configured is None:
            return _write_nothing
        write = yield from self._assign(group, configured)
        is_current = group.configured is configured and group.reverts == reverts
        return write if is_current else _write_nothing  # the next heartbeat has it computed again

    def _assign(
        self, group: StreamsGroup, configured: ConfiguredTopology
    ) -> Steps[Callable[[Draft[StreamsGroup]], None]]:
        epoch = group.epoch
        targets: dict[str, TargetTasks] = {}
        if configured.is_ready:
            workers = {
                member_id: Worker(member.process_id, group.target(member_id))
                for member_id, member in group.members.items()
            }
            standby_count = int(dict(group.group_epoch.configs).get(STANDBY_REPLICAS, 0))
            targets = yield from assign(workers, configured.subtopologies, standby_count)

        def write(draft: Draft[StreamsGroup]) -> None:
            """The group may have a newer epoch by now, for which another target follows."""
            for member_id in draft.group.members:
                draft.write(Key.TARGET_OF_MEMBER, member_id, targets.get(member_id, TargetTasks()))
            draft.write(Key.TARGET, "", TargetEpoch(epoch, self._now_ms()))
            log.info("Group %s has a target assignment for epoch %d", group.group_id, epoch)

        return write

    def step(
        self, draft: Draft[StreamsGroup], member_id: str, owned: Owned, target: TargetTasks
    ) -> CurrentAssignment:
        """The member's step towards its target; returns what it has then."""
        group = draft.group
        current = group.current(member_id)
        process_id = group.members[member_id].process_id

        def may_run(subtopology_id: str, index: int) -> bool:
            task = subtopology_id, index
            return task not in group.active and not group.has_copy(task, process_id)

        def may_copy(subtopology_id: str, index: int) -> bool:
            task = subtopology_id, index
            return group.process_of(task) != process_id and not group.has_copy(task, process_id)

        goal = Goal(group.target_epoch.epoch, target, may_run, may_copy)
        after = reconcile(current, goal, owned)
        if after != current:
            draft.write(Key.CURRENT, member_id, after)
        return after

    def raise_epoch(self, draft: Draft[StreamsGroup]) -> None:
        before = draft.group.group_epoch
        draft.write(Key.GROUP, "", msgspec.structs.replace(before, epoch=before.epoch + 1))


def _write_nothing(_draft: Draft[StreamsGroup]) -> None:
    """What a target was computed from is no longer so."""


def _are_equal(one: StreamsGroupTopologyValue, other: StreamsGroupTopologyValue) -> bool:
    """In whatever order the subtopologies are."""
    return one.epoch == other.epoch and (
        {each.subtopology_id: each for each in one.subtopologies}
        == {each.subtopology_id: each for each in other.subtopologies}
    )
