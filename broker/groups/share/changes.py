"""The parts of decisions about share groups, each made on a draft: its members, its epoch, its target assignment, a member's step to it,
and the partitions to initialize. Source: GroupMetadataManager of Kafka's group coordinator; texts of errors are Kafka's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from barnabas.broker.groups.modern.changes import ModernGroupChanges
from barnabas.broker.groups.modern.draft import Draft
from barnabas.broker.groups.modern.room import may_assign
from barnabas.broker.groups.modern.topics import metadata_hash
from barnabas.broker.groups.modern.values import GroupEpoch, Partitions, TargetEpoch, is_recent
from barnabas.broker.groups.share import state_topics
from barnabas.broker.groups.share.assignor import Subscriber, assign
from barnabas.broker.groups.share.group import ShareGroup
from barnabas.broker.groups.share.values import STABLE, CurrentAssignment, Key, Member, StateTopic
from barnabas.runtime.slices import Steps, run_through

log = logging.getLogger(__name__)

ASSIGNED_AT_ONCE: Final = 2000  # more than this takes longer than some ms (`_work`)


class GroupChanges(ModernGroupChanges[ShareGroup]):
    """See the module."""

    def update_epoch(self, draft: Draft[ShareGroup], *, is_changed: bool) -> bool:
        """Raise the group's epoch if it `is_changed`, or its topics are. Returns whether it was."""
        group = draft.group
        found = metadata_hash(self.configs.image(), group.subscribed_topics())
        if not is_changed and found == group.group_epoch.metadata_hash:
            return False
        draft.write(Key.GROUP, "", GroupEpoch(group.epoch + 1, found))
        # Each AlterShareGroupOffsets of a group without members raises it.
        level = logging.INFO if group.members else logging.DEBUG
        log.log(level, "Group %s has epoch %d", group.group_id, group.epoch)
        return True

    def begin(self, draft: Draft[ShareGroup]) -> None:
        """Write a record of the group if it has none, so that it is there."""
        group = draft.group
        if not group.values:
            draft.write(Key.GROUP, "", group.group_epoch)

    def has_unassigned(self, group: ShareGroup) -> bool:
        """Whether subscribed partitions that are initialized are not those that are assigned."""
        if group.has_unassigned is None or not group.is_metadata_checked:
            image = self.configs.image()
            assigned = group.assigned_partitions()
            group.has_unassigned = bool(group.members) and any(
                each.name in group.subscribers
                and assigned.get(topic_id) != each.partitions
                and image.topic_by_id(topic_id) is not None
                for topic_id, each in group.state_topics.initialized.items()
            )
        return group.has_unassigned

    def to_initialize(self, group: ShareGroup) -> dict[bytes, StateTopic]:
        """Subscribed partitions without a delivery state. An initialization that has not ended in time counts as lost."""
        since = group.initializing_since_ms
        retry_ms = self.settings.group_share_initialize_retry_interval_ms
        is_late = since is None or not is_recent(since, retry_ms, self._now_ms())
        image, states = self.configs.image(), group.state_topics
        found = state_topics.uninitialized(image, group.subscribers, states, with_initializing=is_late)
        for topic_id in states.initialized:
            topic = image.topic_by_id(topic_id)
            if topic is not None and topic_id not in found and topic_id not in states.initializing:
                group.partition_counts[topic_id] = len(topic.partitions)
        return found

    def update_target(self, draft: Draft[ShareGroup]) -> None:
        """Compute the target assignment if the group has a newer epoch and the last one is old enough (KIP-1263); in slices once
        the draft is committed if it takes long."""
        group, before = draft.group, draft.group.target_epoch
        if before.epoch >= group.epoch or group.is_assigning:
            return
        interval_ms = self.configs.number(group.group_id, "share.assignment.interval.ms")
        if is_recent(before.timestamp_ms, interval_ms, self._now_ms()):
            return
        if not may_assign(group, self._usage):
            return
        if _work(group) > ASSIGNED_AT_ONCE:
            draft.assignment = self._assign
            if not before.epoch:  # the first: until then members need an epoch that is no join
                draft.write(Key.TARGET, "", TargetEpoch(group.epoch - 1, 0))
        else:
            run_through(self._assign(group))(draft)

    def _assign(self, group: ShareGroup) -> Steps[Callable[[Draft[ShareGroup]], None]]:
        epoch, reverts = group.epoch, group.reverts
        members = {
            member_id: Subscriber(self._topic_ids(member), group.target(member_id))
            for member_id, member in group.members.items()
        }
        assignable = {topic_id: each.partitions for topic_id, each in group.state_topics.initialized.items()}
        assignment = yield from assign(members, assignable)

        def write(draft: Draft[ShareGroup]) -> None:
            """The group may have a newer epoch by now, for which another target follows."""
            if group.reverts != reverts:
                return  # of what it was computed from, something could not be written
            for member_id in group.members.keys() & assignment.keys():
                draft.write(Key.TARGET_OF_MEMBER, member_id, assignment[member_id])
            draft.write(Key.TARGET, "", TargetEpoch(epoch, self._now_ms()))
            log.info("Group %s has a target assignment for epoch %d", group.group_id, epoch)

        return write

    def step(self, draft: Draft[ShareGroup], member_id: str, *, has_new_epoch: bool) -> CurrentAssignment:
        """The member takes over its target; returns what it has then. `has_new_epoch`: topics may have been unsubscribed."""
        group = draft.group
        current = group.current(member_id)
        target_epoch = group.target_epoch.epoch
        if not has_new_epoch and current.is_reconciled_to(target_epoch):
            return current
        topics = self._topic_ids(group.members[member_id])
        assigned: Partitions = {
            topic_id: indexes for topic_id, indexes in group.target(member_id).items() if topic_id in topics
        }
        if current.epoch == target_epoch:
            after = msgspec.structs.replace(current, assigned=assigned)
        else:
            after = CurrentAssignment(target_epoch, current.epoch, STABLE, assigned)
        if after != current:
            draft.write(Key.CURRENT, member_id, after)
        return after

    def _topic_ids(self, member: Member) -> frozenset[bytes]:
        """Of those that exist."""
        topics = self.configs.image().topics
        return frozenset(topics[name].topic_id for name in member.topic_names if name in topics)

    def raise_epoch(self, draft: Draft[ShareGroup]) -> None:
        self.update_epoch(draft, is_changed=True)


def _work(group: ShareGroup) -> int:
    """How many steps an assignment takes, about."""
    topics = sum(len(member.topic_names) for member in group.members.values())
    return topics + sum(len(each.partitions) for each in group.state_topics.initialized.values())
