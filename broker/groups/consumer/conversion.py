"""One kind of group made from the other, while its members stay: group.consumer.migration.policy.

A classic group becomes a consumer group when the first member of the new protocol joins, and a consumer group a classic one when the last
of them has left. Texts of errors are Kafka's.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from barnabas.broker.groups.consumer import embedded_protocol
from barnabas.broker.groups.consumer.embedded_protocol import MalformedProtocol
from barnabas.broker.groups.consumer.group import ConsumerGroup
from barnabas.broker.groups.consumer.values import (
    ClassicMember,
    CurrentAssignment,
    Key,
    Member,
    MemberState,
    share_epochs,
)
from barnabas.broker.groups.member import SUBSCRIPTION_BYTES_MAX
from barnabas.broker.groups.member import Member as MemberOfClassicGroup
from barnabas.broker.groups.modern.draft import Draft
from barnabas.broker.groups.modern.topics import metadata_hash
from barnabas.broker.groups.modern.values import GroupEpoch, Partitions, TargetEpoch
from barnabas.broker.groups.records import GroupTombstone
from barnabas.broker.groups.state import GroupState
from barnabas.controller.metadata.decision import ApiError
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.groups.group import ClassicGroup
    from barnabas.broker.groups.settings import GroupSettings
    from barnabas.controller.metadata.image import MetadataImage

log = logging.getLogger(__name__)

DISABLED: Final = "disabled"
_UPGRADES: Final = ("upgrade", "bidirectional")
_DOWNGRADES: Final = ("downgrade", "bidirectional")


def upgrade(classic: ClassicGroup, settings: GroupSettings, image: MetadataImage) -> Draft[ConsumerGroup]:
    """A consumer group in place of the classic one, with its members. ApiError GROUP_ID_NOT_FOUND if it can't become one."""
    draft = Draft(ConsumerGroup(classic.group_id), [GroupTombstone(classic.group_id)], classic)
    if classic.is_empty:
        return draft
    if settings.group_consumer_migration_policy not in _UPGRADES:
        raise _no_upgrade(classic, " because online upgrade is disabled.")
    if not classic.uses_consumer_protocol():
        raise _no_upgrade(classic, " because the group does not use the consumer embedded protocol.")
    if len(classic.members) > settings.group_consumer_max_size:
        raise _no_upgrade(classic, " because the group size exceeds the consumer group maximum size.")
    if _protocol_bytes(classic) > SUBSCRIPTION_BYTES_MAX:
        raise _no_upgrade(classic, " because the subscriptions of its members are too long for a record.")
    try:
        _write_members(draft, classic, image)
    except (MalformedProtocol, KeyError):
        draft.take_back()
        raise _no_upgrade(classic, " because the embedded consumer protocol is malformed.") from None
    except ApiError:
        draft.take_back()
        raise
    log.info("Group %s is a consumer group now", classic.group_id)
    return draft


def _no_upgrade(classic: ClassicGroup, why: str) -> ApiError:
    message = f"Cannot upgrade classic group {classic.group_id} to consumer group{why}"
    return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, message)


def _protocol_bytes(classic: ClassicGroup) -> int:
    return sum(
        len(name) + len(metadata)
        for member in classic.members.values()
        for name, metadata in member.protocols
    )


def _write_members(draft: Draft[ConsumerGroup], classic: ClassicGroup, image: MetadataImage) -> None:
    generation = classic.generation_id
    for member_id, member in classic.members.items():
        subscription = embedded_protocol.subscription(member.subscription(classic.protocol_name or ""))
        assigned: Partitions = {}
        if member.assignment:
            assignment = embedded_protocol.assignment(member.assignment)
            if assignment.user_data:
                raise _no_upgrade(
                    classic,
                    " because an unsupported custom assignor is in use. Please refer to the documentation or switch to a "
                    "default assignor before re-attempting the upgrade.",
                )
            assigned = embedded_protocol.partitions_by_id(image, assignment.assigned_partitions)
            owners = draft.group.owners
            if any((topic_id, index) in owners for topic_id, each in assigned.items() for index in each):
                raise _no_upgrade(classic, " because its members share partitions.")
        described = Member(
            instance_id=member.group_instance_id,
            rack_id=subscription.rack_id or None,
            client_id=member.client_id,
            client_host=member.client_host,
            topic_names=frozenset(subscription.topics),
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            classic=ClassicMember(member.session_timeout_ms, tuple(member.protocols)),
        )
        with_epochs = share_epochs(
            {topic_id: dict.fromkeys(sorted(indexes), generation) for topic_id, indexes in assigned.items()}
        )
        draft.write(Key.MEMBER, member_id, described)
        draft.write(Key.TARGET_OF_MEMBER, member_id, assigned)
        current = CurrentAssignment(generation, generation, MemberState.STABLE, with_epochs, {})
        draft.write(Key.CURRENT, member_id, current)
    topics = metadata_hash(image, draft.group.subscribed_topics())
    draft.write(Key.GROUP, "", GroupEpoch(generation, topics))
    draft.write(Key.TARGET, "", TargetEpoch(generation, 0))


def may_downgrade(group: ConsumerGroup, leaving: Collection[str], settings: GroupSettings) -> bool:
    """Whether the group becomes a classic one when these members leave."""
    remaining = [member for member_id, member in group.members.items() if member_id not in leaving]
    return (
        bool(remaining)
        and settings.group_consumer_migration_policy in _DOWNGRADES
        and len(remaining) <= settings.group_max_size
        and all(member.classic is not None for member in remaining)
    )


def fill_classic(
    classic: ClassicGroup, group: ConsumerGroup, leaving: Collection[str], image: MetadataImage
) -> dict[str, bytes]:
    """Make a new classic group of the members that stay, all of the classic protocol: Stable, with the target assignment. Returns the
    assignments by member id. ApiError when a subscription can't be read."""
    for member_id, member in group.members.items():
        if member_id in leaving:
            continue
        assert member.classic is not None
        new = MemberOfClassicGroup(
            member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            member.classic.session_timeout_ms,
            "consumer",
            list(member.classic.protocols),
        )
        classic.add(new, None)
    classic.state = GroupState.STABLE
    classic.generation_id = group.epoch
    classic.protocol_name = protocol = classic.select_protocol()
    classic.subscribed_topics = classic.compute_subscribed_topics()
    for member_id, each in classic.members.items():
        try:
            version = embedded_protocol.version_of(each.subscription(protocol))
        except MalformedProtocol as error:
            classic.kill(ErrorCode.NOT_COORDINATOR)
            message = f"Cannot downgrade the classic group {group.group_id}: {error}."
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, message) from None
        each.assignment = embedded_protocol.encoded_assignment(image, group.target(member_id), version)
    return {member_id: each.assignment for member_id, each in classic.members.items()}
