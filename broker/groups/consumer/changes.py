"""The parts of decisions about consumer groups, each made on a draft: its members, its epoch, its target assignment, and a member's step
towards it. Source: GroupMetadataManager of Kafka's group coordinator; texts of errors are Kafka's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.broker.groups.consumer.assignors import ASSIGNORS, Assignment, Subscriber, Subscribers
from barnabas.broker.groups.consumer.group import ConsumerGroup
from barnabas.broker.groups.consumer.reconciliation import Goal, Owned, reconcile
from barnabas.broker.groups.consumer.values import CurrentAssignment, Key, Member
from barnabas.broker.groups.modern.changes import ModernGroupChanges, remove_member
from barnabas.broker.groups.modern.draft import Draft
from barnabas.broker.groups.modern.room import may_assign
from barnabas.broker.groups.modern.topics import metadata_hash
from barnabas.broker.groups.modern.values import JOINING, GroupEpoch, TargetEpoch, is_recent
from barnabas.controller.metadata.decision import ApiError
from barnabas.runtime.slices import Steps, run_through
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.controller.metadata.image import MetadataImage

log = logging.getLogger(__name__)

NEW_MEMBER: Final = Member()
ASSIGNED_AT_ONCE: Final = 2000  # more than this takes longer than some ms (`_work`)


class GroupChanges(ModernGroupChanges[ConsumerGroup]):
    """See the module."""

    def update_expression(
        self, draft: Draft[ConsumerGroup], before: Member, member: Member
    ) -> tuple[bool, bool]:
        """(whether the member's regular expression has changed, whether the topics that it reads are known and others)."""
        group = draft.group
        old, new = before.regular_expression, member.regular_expression
        if old == new:
            return False, False
        if old and not group.expressions[old]:
            draft.write(Key.REGULAR_EXPRESSION, old, None)
        return True, new in group.resolved if new else bool(old)

    def update_epoch(self, draft: Draft[ConsumerGroup], *, is_changed: bool) -> None:
        """Raise the group's epoch if it `is_changed`, or its topics are."""
        group = draft.group
        found = metadata_hash(self.configs.image(), group.subscribed_topics())
        if is_changed or found != group.group_epoch.metadata_hash:
            draft.write(Key.GROUP, "", GroupEpoch(group.epoch + 1, found))
            log.info("Group %s has epoch %d", group.group_id, group.epoch)

    def update_target(self, draft: Draft[ConsumerGroup]) -> None:
        """Compute the target assignment if the group has a newer epoch and the last one is old enough (KIP-1263); in slices once
        the draft is committed if it takes long."""
        group, before = draft.group, draft.group.target_epoch
        if before.epoch >= group.epoch or group.is_assigning:
            return
        interval_ms = self.configs.number(group.group_id, "consumer.assignment.interval.ms")
        if is_recent(before.timestamp_ms, interval_ms, self._now_ms()):
            return
        if not may_assign(group, self._usage):
            return
        if _work(group, self.configs.image()) > ASSIGNED_AT_ONCE:
            draft.assignment = self._assign
            if not before.epoch:  # the first: until then members need an epoch that is no join
                draft.write(Key.TARGET, "", TargetEpoch(group.epoch - 1, 0))
        else:
            run_through(self._assign(group))(draft)

    def _assign(self, group: ConsumerGroup) -> Steps[Callable[[Draft[ConsumerGroup]], None]]:
        epoch, reverts, name, image = (
            group.epoch,
            group.reverts,
            self.assignor_of(group),
            self.configs.image(),
        )
        members = subscribers(image, group)
        counts = partition_counts(image, group.subscribed_topics())
        assignment = yield from ASSIGNORS[name](members, counts)

        def write(draft: Draft[ConsumerGroup]) -> None:
            """The group may have a newer epoch by now, for which another target follows."""
            if group.reverts != reverts:
                return  # of what it was computed from, something could not be written
            _write_targets(draft, members, assignment)
            draft.write(Key.TARGET, "", TargetEpoch(epoch, self._now_ms()))
            log.info("Group %s has a target assignment for epoch %d (%s)", group.group_id, epoch, name)

        return write

    def assignor_of(self, group: ConsumerGroup) -> str:
        """The one that most members ask for, or the broker's first. Members that Kafka has admitted may ask for one of its own."""
        for name, _ in group.assignors.most_common(1):
            if name in ASSIGNORS:
                return name
        return self.settings.group_consumer_assignors[0]

    def step(
        self, draft: Draft[ConsumerGroup], member_id: str, owned: Owned, *, has_new_subscription: bool
    ) -> CurrentAssignment:
        """The member's step towards its target; returns what it has then."""
        group = draft.group
        current = group.current(member_id)
        target_epoch = group.target_epoch.epoch
        if not has_new_subscription and current.is_reconciled_to(target_epoch):
            return current
        topics = topic_ids(self.configs.image(), group.topics_of(group.members[member_id]))
        goal = Goal(target_epoch, group.target(member_id), topics, partial(_is_free, group))
        after = reconcile(current, goal, owned, has_new_subscription=has_new_subscription)
        if after != current:
            draft.write(Key.CURRENT, member_id, after)
        return after

    def _remove(self, draft: Draft[ConsumerGroup], member_id: str) -> None:
        member = draft.group.members[member_id]
        super()._remove(draft, member_id)
        self.update_expression(draft, member, NEW_MEMBER)

    def raise_epoch(self, draft: Draft[ConsumerGroup]) -> None:
        self.update_epoch(draft, is_changed=True)


def _work(group: ConsumerGroup, image: MetadataImage) -> int:
    """How much an assignment of the group is: the topics that each member reads, and all their partitions."""
    topics = sum(len(names) * count for names, count in group.subscriptions.values())
    for expression, count in group.expressions.items():
        if (resolved := group.resolved.get(expression)) is not None:
            topics += len(resolved.topics) * count
    return topics + sum(partition_counts(image, group.subscribed_topics()).values())


def _write_targets(draft: Draft[ConsumerGroup], computed: Subscribers, assignment: Assignment) -> None:
    """The targets of the members that there are now. One that has joined since it was computed has none, and one that has taken
    the place of a static member gets the target of that."""
    by_instance = {
        member.instance_id: member_id
        for member_id, member in computed.items()
        if member.instance_id is not None
    }
    for member_id, member in draft.group.members.items():
        computed_for = member_id if member_id in assignment else by_instance.get(member.instance_id or "")
        draft.write(Key.TARGET_OF_MEMBER, member_id, assignment.get(computed_for or "", {}))


def _is_free(group: ConsumerGroup, topic_id: bytes, index: int) -> bool:
    return (topic_id, index) not in group.owners


def static_member(group: ConsumerGroup, member_id: str, instance_id: str) -> str:
    """The member of this instance id, which has to be the one that asks."""
    existing = group.static_members.get(instance_id)
    if existing is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if existing != member_id:
        raise ApiError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {existing}.",
        )
    return existing


def replace_member(draft: Draft[ConsumerGroup], old_id: str, new_id: str) -> None:
    """Another process of a static member takes its place: its description, its target and its partitions."""
    group = draft.group
    member, target, current = group.members[old_id], group.target(old_id), group.current(old_id)
    log.info("Group %s: static member %s replaces %s", group.group_id, new_id, old_id)
    remove_member(draft, old_id)
    draft.write(Key.MEMBER, new_id, member)
    draft.write(Key.TARGET_OF_MEMBER, new_id, target)
    draft.write(Key.CURRENT, new_id, msgspec.structs.replace(current, epoch=JOINING, previous_epoch=JOINING))


def topic_ids(image: MetadataImage, names: Iterable[str]) -> frozenset[bytes]:
    """Of those that exist."""
    topics = image.topics
    return frozenset(topics[name].topic_id for name in names if name in topics)


def subscribers(image: MetadataImage, group: ConsumerGroup) -> dict[str, Subscriber]:
    """The members, as an assignor needs them."""
    ids_of: dict[
        tuple[frozenset[str], str | None], frozenset[bytes]
    ] = {}  # members mostly read the same topics

    def ids(member: Member) -> frozenset[bytes]:
        key = member.topic_names, member.regular_expression
        found = ids_of.get(key)
        if found is None:
            found = ids_of[key] = topic_ids(image, group.topics_of(member))
        return found

    return {
        member_id: Subscriber(ids(member), member.instance_id, group.target(member_id))
        for member_id, member in group.members.items()
    }


def partition_counts(image: MetadataImage, names: Iterable[str]) -> dict[bytes, int]:
    """By topic id, of those that exist."""
    topics = image.topics
    return {topics[name].topic_id: len(topics[name].partitions) for name in names if name in topics}
