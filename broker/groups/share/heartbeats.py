"""ShareGroupHeartbeat (KIP-932): decisions about the members of the share groups of one shard.

A request is decided on a draft of its group: the member's description, the epoch of the group, the partitions to initialize, the target
assignment when it is due, and the member's step to it. The records are appended together, and the response leaves when they are
committed; then the share coordinator initializes the partitions. Source: GroupMetadataManager of Kafka's group coordinator; texts of
errors are Kafka's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.broker.coordinator.shard_log import coordinator_error
from barnabas.broker.groups.modern.changes import unknown_member
from barnabas.broker.groups.modern.draft import Draft
from barnabas.broker.groups.modern.values import JOINING, LEAVING
from barnabas.broker.groups.share import state_topics
from barnabas.broker.groups.share.values import CurrentAssignment, Key, Member, StateTopic
from barnabas.controller.metadata.decision import ApiError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.share_group_heartbeat import (
    Assignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)

if TYPE_CHECKING:
    from barnabas.broker.groups.member import Client
    from barnabas.broker.groups.share.group import ShareGroup
    from barnabas.broker.groups.share.lifecycle import ShareGroups

log = logging.getLogger(__name__)

Reply = Callable[[ShareGroupHeartbeatResponse], None]
NEW_MEMBER: Final = Member()


class ShareProtocol:
    """The requests of members of share groups, for the groups of one shard."""

    def __init__(self, groups: ShareGroups) -> None:
        self._groups = groups
        self._changes = groups.changes

    def heartbeat(self, request: ShareGroupHeartbeatRequest, client: Client, reply: Reply) -> None:
        """The reply comes once all that the response says is committed."""
        try:
            if request.member_epoch == LEAVING:
                self._leave(request, reply)
            else:
                self._update(request, client, reply)
        except ApiError as refusal:
            reply(ShareGroupHeartbeatResponse(error_code=refusal.error, error_message=refusal.message))

    def _update(self, request: ShareGroupHeartbeatRequest, client: Client, reply: Reply) -> None:
        if request.member_epoch == JOINING:
            draft = self._groups.open(request.group_id)
        else:
            draft = Draft(self._groups.group(request.group_id, "Share group"))
        try:
            response, to_initialize = self._decide(draft, request, client)
        except Exception:
            draft.take_back()
            raise
        epoch = draft.group.epoch

        def appended(error: ErrorCode) -> None:
            if to_initialize and not error:
                self._groups.initialize(request.group_id, epoch, to_initialize)
            _answer(reply, response, error)

        draft.group.is_metadata_checked = True  # until the append fails
        self._groups.commit(draft, appended)
        group = self._groups.find(request.group_id)
        if group is not None and to_initialize:
            group.initialization_began(self._groups.runtime.time_ms())
        self._groups.begin_session(request.group_id, request.member_id)

    def _decide(
        self, draft: Draft[ShareGroup], request: ShareGroupHeartbeatRequest, client: Client
    ) -> tuple[ShareGroupHeartbeatResponse, dict[bytes, StateTopic]]:
        """(the response, partitions to initialize)."""
        group, member_id, changes = draft.group, request.member_id, self._changes
        if member_id not in group.members:
            changes.check_size(group)
        _admit(group, request)
        before = group.members.get(member_id, NEW_MEMBER)
        current = group.current(member_id)
        has_unassigned = group.target_epoch.epoch >= group.epoch and changes.has_unassigned(group)
        member = _described(before, request, client)
        changes.describe(draft, member_id, member)
        is_changed = has_unassigned or member.topic_names != before.topic_names
        has_new_epoch = False
        if is_changed or not group.is_metadata_checked:
            has_new_epoch = changes.update_epoch(draft, is_changed=is_changed)
        to_initialize = {}
        if has_new_epoch or not group.is_metadata_checked or group.state_topics.initializing:
            to_initialize = self._groups.to_initialize(group)
        if to_initialize and group.may_be_initializing:
            # When the initialization before takes effect late it must not reset what is read by then: its epoch is fenced.
            has_new_epoch = changes.update_epoch(draft, is_changed=True)
        changes.update_target(draft)
        after = changes.step(draft, member_id, has_new_epoch=has_new_epoch)
        if to_initialize:
            draft.write(Key.STATE_TOPICS, "", state_topics.begin(group.state_topics, to_initialize))
        interval_ms = self._groups.configs.number(group.group_id, "share.heartbeat.interval.ms")
        response = ShareGroupHeartbeatResponse(
            member_id=member_id, member_epoch=after.epoch, heartbeat_interval_ms=interval_ms
        )
        is_full = request.member_epoch == JOINING or request.subscribed_topic_names is not None
        if is_full or after.assigned != current.assigned:
            response.assignment = _assignment(after)
        return response, to_initialize

    def _leave(self, request: ShareGroupHeartbeatRequest, reply: Reply) -> None:
        group, member_id = self._groups.group(request.group_id), request.member_id
        if member_id not in group.members:
            raise unknown_member(group, member_id)
        log.info("Group %s: member %s leaves", group.group_id, member_id)
        response = ShareGroupHeartbeatResponse(member_id=member_id, member_epoch=LEAVING)
        self._groups.remove(group, [member_id], partial(_answer, reply, response))


def _answer(reply: Reply, response: ShareGroupHeartbeatResponse, error: ErrorCode) -> None:
    failed = coordinator_error(error)
    reply(ShareGroupHeartbeatResponse(error_code=failed) if failed else response)


def _admit(group: ShareGroup, request: ShareGroupHeartbeatRequest) -> None:
    """UNKNOWN_MEMBER_ID, or FENCED_MEMBER_EPOCH unless it is the member's epoch, or the one before, because the answer with the next one
    was lost."""
    received, member_id = request.member_epoch, request.member_id
    if received == JOINING:
        return
    if member_id not in group.members:
        raise unknown_member(group, member_id)
    current = group.current(member_id)
    if received in (current.epoch, current.previous_epoch) and received <= current.epoch:
        return
    if received > current.epoch:
        how, why = "greater", ""
    else:
        how, why = "smaller", f", and it does not match the previous member epoch ({current.previous_epoch})"
    raise ApiError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The share group member has a {how} member epoch ({received}) than the one known by the group coordinator "
        f"({current.epoch}){why}. The member must abandon all its partitions and rejoin.",
    )


def _described(before: Member, request: ShareGroupHeartbeatRequest, client: Client) -> Member:
    """The member as the request describes it; what is null has not changed."""
    names = request.subscribed_topic_names
    return msgspec.structs.replace(
        before,
        client_id=client.client_id,
        client_host=client.client_host,
        rack_id=before.rack_id if request.rack_id is None else request.rack_id,
        topic_names=before.topic_names if names is None else frozenset(names),
    )


def _assignment(current: CurrentAssignment) -> Assignment:
    return Assignment(
        [TopicPartitions(topic_id, sorted(indexes)) for topic_id, indexes in current.assigned.items()]
    )
