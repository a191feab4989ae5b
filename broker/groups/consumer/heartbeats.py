"""ConsumerGroupHeartbeat (KIP-848): decisions about the members of the consumer groups of one shard.

A request is decided on a draft of its group: the member's description, the epoch of the group, the target assignment when it is due, and
the member's step towards it. The records are appended together, and the response leaves when they are committed. Source:
GroupMetadataManager of Kafka's group coordinator; texts of errors are Kafka's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from barnabas.broker.coordinator.shard_log import coordinator_error
from barnabas.broker.groups.consumer.changes import (
    NEW_MEMBER,
    replace_member,
    static_member,
)
from barnabas.broker.groups.consumer.values import LEFT_FOR_NOW, CurrentAssignment, Key, Member
from barnabas.broker.groups.modern.changes import check_epoch, unknown_member
from barnabas.broker.groups.modern.draft import Draft
from barnabas.broker.groups.modern.values import JOINING, LEAVING
from barnabas.controller.metadata.decision import ApiError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ResponseTopicPartitions,
)

if TYPE_CHECKING:
    from barnabas.broker.groups.consumer.group import ConsumerGroup
    from barnabas.broker.groups.consumer.lifecycle import ConsumerGroups
    from barnabas.broker.groups.consumer.reconciliation import Owned
    from barnabas.broker.groups.member import Client

log = logging.getLogger(__name__)

Reply = Callable[[ConsumerGroupHeartbeatResponse], None]


class ConsumerProtocol:
    """The requests of members of consumer groups, for the groups of one shard."""

    def __init__(self, groups: ConsumerGroups) -> None:
        self._groups = groups
        self._changes = groups.changes

    def heartbeat(self, request: ConsumerGroupHeartbeatRequest, client: Client, reply: Reply) -> None:
        """The reply comes once all that the response says is committed."""
        try:
            if request.member_epoch in (LEAVING, LEFT_FOR_NOW):
                self._leave(request, reply)
            else:
                self._update(request, client, reply)
        except ApiError as refusal:
            reply(ConsumerGroupHeartbeatResponse(error_code=refusal.error, error_message=refusal.message))

    def renewed(
        self, request: ConsumerGroupHeartbeatRequest, client: Client
    ) -> ConsumerGroupHeartbeatResponse | None:
        """The answer to a heartbeat that describes nothing, of a member that has its target while nothing has changed: there is
        nothing to decide. The answer says nothing that the member does not know, so it need not wait for appends. None, without
        any effect, in every other case."""
        if not _describes_nothing(request):
            return None
        group = self._groups.store.consumer(request.group_id)
        if group is None or not group.is_metadata_checked:
            return None
        member_id, epoch = request.member_id, request.member_epoch
        member = group.members.get(member_id)
        if (
            member is None
            or member.classic is not None
            or member.client_id != client.client_id
            or member.client_host != client.client_host
            or group.epoch != epoch
            or group.target_epoch.epoch != epoch
            or not group.current(member_id).is_reconciled_to(epoch)
        ):
            return None
        self._groups.begin_session(group.group_id, member_id)
        return self._response(group, member_id, epoch)

    # -- a member that joins, or is there

    def _update(self, request: ConsumerGroupHeartbeatRequest, client: Client, reply: Reply) -> None:
        if request.member_epoch == JOINING:
            draft = self._groups.open(request.group_id)
        else:
            draft = Draft(self._groups.group(request.group_id, "Consumer group"))
        try:
            response = self._decide(draft, request, client)
        except Exception:
            draft.take_back()
            raise
        draft.group.is_metadata_checked = True
        self._groups.commit(draft, partial(_answer, reply, response))
        self._groups.begin_session(request.group_id, response.member_id or "")

    def _decide(
        self, draft: Draft[ConsumerGroup], request: ConsumerGroupHeartbeatRequest, client: Client
    ) -> ConsumerGroupHeartbeatResponse:
        group = draft.group
        member_id = request.member_id
        if member_id not in group.members:
            self._changes.check_size(group)
        member_id = member_id or str(UUID(bytes=self._groups.runtime.random_bytes(16), version=4))
        owned = _owned(request)
        if request.instance_id is None:
            self._admit(group, request, member_id, owned)
        else:
            self._admit_static(draft, request, member_id, owned)
        before = group.members.get(member_id, NEW_MEMBER)
        assigned_before = group.current(member_id).assigned
        member = _described(before, request, client)
        self._changes.describe(draft, member_id, member)
        has_new_topics, is_resolved = self._changes.update_expression(draft, before, member)
        has_new_names = member.topic_names != before.topic_names
        if has_new_names or is_resolved or not group.is_metadata_checked:
            self._changes.update_epoch(draft, is_changed=has_new_names or is_resolved)
        self._changes.update_target(draft)
        current = self._changes.step(
            draft, member_id, owned, has_new_subscription=has_new_names or has_new_topics
        )
        response = self._response(group, member_id, current.epoch)
        if _is_full(request) or current.assigned != assigned_before:
            response.assignment = Assignment(
                [
                    ResponseTopicPartitions(topic_id, list(indexes))
                    for topic_id, indexes in current.assigned.items()
                ]
            )
        return response

    def _response(self, group: ConsumerGroup, member_id: str, epoch: int) -> ConsumerGroupHeartbeatResponse:
        interval_ms = self._groups.configs.number(group.group_id, "consumer.heartbeat.interval.ms")
        return ConsumerGroupHeartbeatResponse(
            member_id=member_id, member_epoch=epoch, heartbeat_interval_ms=interval_ms
        )

    def _admit(
        self,
        group: ConsumerGroup,
        request: ConsumerGroupHeartbeatRequest,
        member_id: str,
        owned: Owned,
    ) -> None:
        if member_id in group.members:
            check_epoch(
                group, member_id, request.member_epoch, lambda: _is_within(owned, group.current(member_id))
            )
        elif request.member_epoch != JOINING:
            raise unknown_member(group, member_id)

    def _admit_static(
        self,
        draft: Draft[ConsumerGroup],
        request: ConsumerGroupHeartbeatRequest,
        member_id: str,
        owned: Owned,
    ) -> None:
        group, instance_id = draft.group, request.instance_id or ""
        existing = group.static_members.get(instance_id)
        if request.member_epoch != JOINING:
            member_id = static_member(group, member_id, instance_id)
            check_epoch(
                group, member_id, request.member_epoch, lambda: _is_within(owned, group.current(member_id))
            )
        elif existing is not None:
            has_left = group.current(existing).epoch == LEFT_FOR_NOW
            if not has_left and group.members[existing].classic is None:
                raise ApiError(
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                    f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance "
                    f"id is owned by {existing} member.",
                )
            replace_member(draft, existing, member_id)

    # -- a member that leaves

    def _leave(self, request: ConsumerGroupHeartbeatRequest, reply: Reply) -> None:
        group = self._groups.group(request.group_id)
        member_id, instance_id = request.member_id, request.instance_id
        if instance_id is None:
            if member_id not in group.members:
                raise unknown_member(group, member_id)
        else:
            static_member(group, member_id, instance_id)
        response = ConsumerGroupHeartbeatResponse(member_id=member_id, member_epoch=request.member_epoch)
        done = partial(_answer, reply, response)
        if request.member_epoch == LEFT_FOR_NOW:
            log.info("Group %s: static member %s (%s) leaves for now", group.group_id, member_id, instance_id)
            self._groups.commit(_leave_for_now(group, member_id), done)
        else:
            log.info("Group %s: member %s leaves", group.group_id, member_id)
            self._groups.remove(group, [member_id], done)


def _answer(reply: Reply, response: ConsumerGroupHeartbeatResponse, error: ErrorCode) -> None:
    failed = coordinator_error(error)
    reply(ConsumerGroupHeartbeatResponse(error_code=failed) if failed else response)


def _owned(request: ConsumerGroupHeartbeatRequest) -> Owned:
    if request.topic_partitions is None:
        return None
    owned: dict[bytes, set[int]] = {}
    for each in request.topic_partitions:
        owned.setdefault(each.topic_id, set()).update(each.partitions)
    return owned


def _is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the request has all that a member can say: it then gets its assignment, as it may have missed an answer."""
    return request.member_epoch == JOINING or (
        request.rebalance_timeout_ms != -1
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )


def _describes_nothing(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether all fields by which a member describes itself are null, as in most heartbeats."""
    return (
        request.subscribed_topic_names is None
        and request.subscribed_topic_regex is None
        and request.rebalance_timeout_ms == -1
        and request.server_assignor is None
        and request.rack_id is None
        and request.instance_id is None
    )


def _described(before: Member, request: ConsumerGroupHeartbeatRequest, client: Client) -> Member:
    """The member as the request describes it; what is null has not changed."""
    names = request.subscribed_topic_names
    expression = request.subscribed_topic_regex
    timeout_ms = request.rebalance_timeout_ms
    member = msgspec.structs.replace(
        before,
        client_id=client.client_id,
        client_host=client.client_host,
        classic=None,
    )
    changes: dict[str, object] = {
        "instance_id": request.instance_id,
        "rack_id": request.rack_id,
        "server_assignor": request.server_assignor,
        "regular_expression": expression,
        "topic_names": None if names is None else frozenset(names),
        "rebalance_timeout_ms": None if timeout_ms == -1 else timeout_ms,
    }
    given = {name: value for name, value in changes.items() if value is not None}
    return msgspec.structs.replace(member, **given) if given else member


def _is_within(owned: Owned, current: CurrentAssignment) -> bool:
    if owned is None:
        return False
    assigned = current.assigned
    return all(
        topic_id in assigned and indexes <= assigned[topic_id].keys() for topic_id, indexes in owned.items()
    )


def _leave_for_now(group: ConsumerGroup, member_id: str) -> Draft[ConsumerGroup]:
    """A static member that is to return keeps its partitions until its session ends."""
    current = group.current(member_id)
    assigned = {topic_id: dict.fromkeys(indexes, 0) for topic_id, indexes in current.assigned.items()}
    draft = Draft(group)
    left = msgspec.structs.replace(current, epoch=LEFT_FOR_NOW, assigned=assigned, revoking={})
    draft.write(Key.CURRENT, member_id, left)
    return draft
