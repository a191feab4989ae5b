"""Members of the classic protocol in consumer groups: JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

The coordinator assigns, so nothing waits for other members: a JoinGroup is answered with the member's epoch as generation, and without
members to assign to; SyncGroup has what the member got; Heartbeat says when there is more, and the member joins again. What it owns, it
says in its subscription. Source: KIP-848, GroupMetadataManager of Kafka's group coordinator.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from barnabas.broker.coordinator.shard_log import coordinator_error
from barnabas.broker.groups.consumer import conversion, embedded_protocol
from barnabas.broker.groups.consumer.changes import (
    NEW_MEMBER,
    replace_member,
    static_member,
)
from barnabas.broker.groups.consumer.embedded_protocol import MalformedProtocol
from barnabas.broker.groups.consumer.group import CONSUMER_TYPE
from barnabas.broker.groups.consumer.values import ClassicMember, Member, MemberState
from barnabas.broker.groups.member import (
    MEMBER_BYTES_OF_GROUP_MAX,
    PROTOCOL_OVERHEAD_BYTES,
    SUBSCRIPTION_BYTES_MAX,
)
from barnabas.broker.groups.modern.changes import unknown_member
from barnabas.broker.groups.modern.draft import Draft
from barnabas.broker.groups.modern.timeouts import JOIN, SYNC
from barnabas.controller.metadata.decision import ApiError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.join_group import JoinGroupResponse
from barnabas.wire.messages.leave_group import LeaveGroupResponse, MemberResponse
from barnabas.wire.messages.sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from barnabas.broker.groups.consumer.group import ConsumerGroup
    from barnabas.broker.groups.consumer.lifecycle import ConsumerGroups
    from barnabas.broker.groups.consumer.reconciliation import Owned
    from barnabas.broker.groups.member import Client, JoinReply, SyncReply
    from barnabas.wire.messages.consumer_protocol import ConsumerProtocolSubscription, TopicPartition
    from barnabas.wire.messages.heartbeat import HeartbeatRequest
    from barnabas.wire.messages.join_group import JoinGroupRequest
    from barnabas.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
    from barnabas.wire.messages.sync_group import SyncGroupRequest

log = logging.getLogger(__name__)

ID_REQUIRED_SINCE: Final = (
    4  # the version of JoinGroup from which a dynamic member first gets its id (KIP-394)
)


class ClassicMembers:
    """See the module."""

    def __init__(self, groups: ConsumerGroups) -> None:
        self._groups = groups
        self._changes = groups.changes

    # -- JoinGroup

    def join(self, group: ConsumerGroup, request: JoinGroupRequest, client: Client, reply: JoinReply) -> None:
        try:
            self._join(group, request, client, reply)
        except ApiError as refusal:
            reply(_refused_join("", refusal.error))

    def _join(
        self, group: ConsumerGroup, request: JoinGroupRequest, client: Client, reply: JoinReply
    ) -> None:
        if self._groups.settings.group_consumer_migration_policy == conversion.DISABLED:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the migration of groups is disabled")
        member_id = request.member_id or str(UUID(bytes=self._groups.runtime.random_bytes(16), version=4))
        if member_id not in group.members:
            self._changes.check_size(group)
        if len(request.protocols) * PROTOCOL_OVERHEAD_BYTES > MEMBER_BYTES_OF_GROUP_MAX:
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, "The member has too many protocols.")
        _check_protocols(group, request)
        if (
            not request.member_id
            and request.group_instance_id is None
            and client.api_version >= ID_REQUIRED_SINCE
        ):
            reply(_refused_join(member_id, ErrorCode.MEMBER_ID_REQUIRED))
            return
        subscription = _subscription(request)
        draft = Draft(group)
        try:
            replaced = self._admit(draft, request, member_id)
            before = group.members.get(member_id, NEW_MEMBER)
            member = _described(before, request, subscription.topics, subscription.rack_id, client)
            self._changes.describe(draft, member_id, member)
            has_new_expression, _ = self._changes.update_expression(draft, before, member)
            is_changed = member.topic_names != before.topic_names or has_new_expression
            if is_changed or not group.is_metadata_checked:
                self._changes.update_epoch(draft, is_changed=is_changed)
            is_last = replaced is not None and conversion.may_downgrade(group, (), self._groups.settings)
            if not is_last:
                self._changes.update_target(draft)
            is_stale = is_last and group.target_epoch.epoch < group.epoch
            if not is_stale:
                owned = self._owned(subscription.owned_partitions)
                self._changes.step(draft, member_id, owned, has_new_subscription=is_changed)
            generation = group.current(member_id).epoch
        except Exception:
            draft.take_back()
            raise
        group.is_metadata_checked = True
        response = JoinGroupResponse(
            member_id=member_id,
            generation_id=generation,
            protocol_type=CONSUMER_TYPE,
            protocol_name=request.protocols[0].name,
        )
        self._groups.commit(draft, partial(self._joined, request, response, is_last, is_stale, reply))
        self._groups.begin_session(group.group_id, member_id)

    def _joined(
        self,
        request: JoinGroupRequest,
        response: JoinGroupResponse,
        is_last: bool,
        is_stale: bool,
        reply: JoinReply,
        error: ErrorCode,
    ) -> None:
        """The member's records are committed. `is_last`: only members of the classic protocol are left with it."""
        group = self._groups.store.consumer(request.group_id)
        if error or group is None:
            reply(_refused_join(response.member_id, coordinator_error(error) or ErrorCode.NOT_COORDINATOR))
            return
        if is_last and conversion.may_downgrade(group, (), self._groups.settings):
            reason = f"Downgrade group {group.group_id} from consumer to classic with stale assignment."
            done = partial(_answer_join, reply, response)
            try:
                self._groups.downgrade(group, (), reason if is_stale else None, done)
            except ApiError as refusal:
                reply(_refused_join(response.member_id, refusal.error))
            return
        timeouts = self._groups.timeouts
        if response.member_id in group.members:
            timeouts.end(group, response.member_id, JOIN)
            timeouts.begin(group, response.member_id, SYNC, request.rebalance_timeout_ms)
        reply(response)

    def _admit(self, draft: Draft[ConsumerGroup], request: JoinGroupRequest, member_id: str) -> str | None:
        """Returns the static member whose place it takes, if that is of the consumer protocol."""
        group, instance_id = draft.group, request.group_instance_id
        if instance_id is None:
            return None
        existing = group.static_members.get(instance_id)
        if request.member_id:
            static_member(group, member_id, instance_id)
        if existing is None:
            return None
        was_classic = group.members[existing].classic is not None
        if not request.member_id:
            replace_member(draft, existing, member_id)
        return None if was_classic else existing

    def _owned(self, topics: list[TopicPartition]) -> Owned:
        found = embedded_protocol.partitions_by_id(self._groups.configs.image(), topics)
        return {topic_id: set(indexes) for topic_id, indexes in found.items()}

    # -- SyncGroup

    def sync(self, group: ConsumerGroup, request: SyncGroupRequest, reply: SyncReply) -> None:
        try:
            member_id = _classic_member(group, request.member_id, request.group_instance_id)
            self._check_sync(group, member_id, request)
        except ApiError as refusal:
            reply(SyncGroupResponse(error_code=refusal.error))
            return
        assigned = group.current(member_id).assigned
        try:
            version = embedded_protocol.version_of(_protocols(group, member_id)[0][1])
        except (
            MalformedProtocol
        ):  # the group has come from a classic one that had chosen another of its protocols
            reply(SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
            return
        response = SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=embedded_protocol.encoded_assignment(self._groups.configs.image(), assigned, version),
        )

        def committed(error: ErrorCode) -> None:
            reply(SyncGroupResponse(error_code=coordinator_error(error)) if error else response)

        self._groups.timeouts.end(group, member_id, SYNC)
        self._groups.begin_session(group.group_id, member_id)
        self._groups.commit(Draft(group), committed)

    def _check_sync(self, group: ConsumerGroup, member_id: str, request: SyncGroupRequest) -> None:
        current = group.current(member_id)
        name = _protocols(group, member_id)[0][0]
        if request.generation_id != current.epoch:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION, "another generation")
        if request.protocol_type not in (None, CONSUMER_TYPE) or request.protocol_name not in (None, name):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "another protocol")
        if group.target_epoch.epoch > current.epoch and current.state != MemberState.UNREVOKED_PARTITIONS:
            self._await_join(group, member_id)
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS, "the member has to join again")

    def _await_join(self, group: ConsumerGroup, member_id: str) -> None:
        """The member has to join again in time, from when it hears of it first."""
        if (member_id, JOIN) not in group.timers:
            timeout_ms = group.members[member_id].rebalance_timeout_ms
            self._groups.timeouts.begin(group, member_id, JOIN, timeout_ms)

    # -- Heartbeat

    def heartbeat(self, group: ConsumerGroup, request: HeartbeatRequest) -> ErrorCode:
        try:
            member_id = _classic_member(group, request.member_id, request.group_instance_id)
        except ApiError as refusal:
            return refusal.error
        if request.generation_id != group.current(member_id).epoch:
            return ErrorCode.ILLEGAL_GENERATION
        self._refresh(group)
        current = group.current(member_id)
        self._groups.begin_session(group.group_id, member_id)
        if (
            current.epoch < group.target_epoch.epoch
            or current.state == MemberState.UNREVOKED_PARTITIONS
            or (current.state == MemberState.UNRELEASED_PARTITIONS and not _waits(group, member_id))
        ):
            self._await_join(group, member_id)
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _refresh(self, group: ConsumerGroup) -> None:
        """Where all members are of the classic protocol (a policy may keep them in a consumer group) only their heartbeats show that
        topics have changed, or members have left. Kafka does not look."""
        if group.is_metadata_checked and group.target_epoch.epoch == group.epoch:
            return
        draft = Draft(group)
        self._changes.update_epoch(draft, is_changed=False)
        self._changes.update_target(draft)
        group.is_metadata_checked = True
        self._groups.commit(draft, partial(_log_failure, group.group_id))

    # -- LeaveGroup

    def leave(self, group: ConsumerGroup, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """Remove members, of either protocol; each gets its own error."""
        leaving: dict[str, None] = {}
        results = []
        for identity in request.members:
            result = MemberResponse(identity.member_id, identity.group_instance_id)
            try:
                leaving[_leaving(group, identity)] = None
            except ApiError as refusal:
                result.error_code = refusal.error
            results.append(result)
        response = LeaveGroupResponse(members=results)
        if leaving:
            log.info("Group %s: members %s leave", group.group_id, ", ".join(leaving))
            self._groups.remove(group, leaving.keys(), partial(_mark_failed, response))
        return response


def _log_failure(group_id: str, error: ErrorCode) -> None:
    if error:
        log.warning("Group %s: its target could not be written: %s", group_id, error.name)


def _mark_failed(response: LeaveGroupResponse, error: ErrorCode) -> None:
    """The append has failed at once; one that fails later is what the handler waits for."""
    if error:
        response.error_code = coordinator_error(error)


def _answer_join(reply: JoinReply, response: JoinGroupResponse, error: ErrorCode) -> None:
    reply(_refused_join(response.member_id, coordinator_error(error)) if error else response)


def _refused_join(member_id: str, error: ErrorCode) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=error, member_id=member_id, protocol_type=None, protocol_name=None)


def _check_protocols(group: ConsumerGroup, request: JoinGroupRequest) -> None:
    """All members of the classic protocol have to know one assignor, as after a downgrade they choose one."""
    names = {each.name for each in request.protocols}
    if request.protocol_type != CONSUMER_TYPE or not any(
        group.classic_protocols[name] == group.classic_count for name in names
    ):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the member's protocols are not supported")


def _subscription(request: JoinGroupRequest) -> ConsumerProtocolSubscription:
    if len(request.protocols[0].metadata) > SUBSCRIPTION_BYTES_MAX:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "the subscription is too long for a record")
    try:
        return embedded_protocol.subscription(bytes(request.protocols[0].metadata))
    except MalformedProtocol:
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "a malformed subscription") from None


def _described(
    before: Member, request: JoinGroupRequest, topics: list[str], rack_id: str | None, client: Client
) -> Member:
    protocols = tuple((each.name, bytes(each.metadata)) for each in request.protocols)
    return msgspec.structs.replace(
        before,
        instance_id=request.group_instance_id or before.instance_id,
        rack_id=rack_id or before.rack_id,
        client_id=client.client_id,
        client_host=client.client_host,
        topic_names=frozenset(topics),
        regular_expression="",
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        classic=ClassicMember(request.session_timeout_ms, protocols),
    )


def _classic_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> str:
    if instance_id is not None:
        static_member(group, member_id, instance_id)
    elif member_id not in group.members:
        raise unknown_member(group, member_id)
    if group.members[member_id].classic is None:
        raise unknown_member(group, member_id)
    return member_id


def _protocols(group: ConsumerGroup, member_id: str) -> tuple[tuple[str, bytes], ...]:
    classic = group.members[member_id].classic
    assert classic is not None
    return classic.protocols


def _waits(group: ConsumerGroup, member_id: str) -> bool:
    """Whether another member still has a partition of the member's target."""
    assigned = group.current(member_id).assigned
    return any(
        (topic_id, index) in group.owners
        for topic_id, indexes in group.target(member_id).items()
        for index in indexes - assigned.get(topic_id, {}).keys()
    )


def _leaving(group: ConsumerGroup, identity: MemberIdentity) -> str:
    instance_id = identity.group_instance_id
    if instance_id is None:
        if identity.member_id not in group.members:
            raise unknown_member(group, identity.member_id)
        return identity.member_id
    if not identity.member_id and (existing := group.static_members.get(instance_id)) is not None:
        return existing  # an administrator removes a static member
    return static_member(group, identity.member_id, instance_id)
