"""The requests of the classic group protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup (KIP-62, 134, 345, 394, 559, 814).
It has no I/O and no clock of its own; rebalance.py owns the timers.

JoinGroup and SyncGroup answer through a reply callback, at once or when the generation completes, exactly
once per request. Heartbeat and LeaveGroup answer at once, LeaveGroup after its records are in the log.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Final

from barnabas.broker.coordinator.shard_log import coordinator_error
from barnabas.broker.groups.consumer.group import ConsumerGroup
from barnabas.broker.groups.member import (
    MEMBER_BYTES_MAX,
    MEMBER_BYTES_OF_GROUP_MAX,
    PROTOCOL_OVERHEAD_BYTES,
    Client,
    Member,
    Protocols,
)
from barnabas.broker.groups.rebalance import Rebalancer, generation_response
from barnabas.broker.groups.records import GroupRecord, group_metadata_record
from barnabas.broker.groups.settings import NEW_MEMBER_JOIN_TIMEOUT_MS
from barnabas.broker.groups.share.group import ShareGroup
from barnabas.broker.groups.state import GroupEvent, GroupState
from barnabas.broker.groups.streams.group import StreamsGroup
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.heartbeat import HeartbeatRequest
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from barnabas.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from barnabas.broker.groups.consumer.classic_members import ClassicMembers
    from barnabas.broker.groups.group import ClassicGroup
    from barnabas.broker.groups.group_store import GroupStore
    from barnabas.broker.groups.member import JoinReply, SyncReply

log = logging.getLogger(__name__)

MEMBER_ID_PREFIX_MAX: Final = (
    1000  # characters of a client or instance id: a member id must fit into a string
)


class ClassicProtocol:
    """The requests of classic group members, for the groups of one shard."""

    def __init__(self, store: GroupStore, rebalancer: Rebalancer, in_consumer_groups: ClassicMembers) -> None:
        self._store = store
        self._rebalancer = rebalancer
        self._in_consumer_groups = in_consumer_groups
        self._settings = rebalancer.settings

    # -- JoinGroup

    def join(self, request: JoinGroupRequest, client: Client, reply: JoinReply) -> None:
        settings = self._settings
        member_id = request.member_id
        if (
            not settings.group_min_session_timeout_ms
            <= request.session_timeout_ms
            <= settings.group_max_session_timeout_ms
        ):
            reply(join_error(ErrorCode.INVALID_SESSION_TIMEOUT, member_id))
            return
        found = self._store.groups.get(request.group_id)
        if isinstance(found, ConsumerGroup) and not found.is_empty:
            self._in_consumer_groups.join(found, request, client, reply)
            return
        if isinstance(found, StreamsGroup) and not found.is_empty:
            reply(join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id))
            return
        if isinstance(found, ShareGroup):
            reply(join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ""))
            return
        if isinstance(found, ConsumerGroup | StreamsGroup) and member_id:
            reply(join_error(ErrorCode.UNKNOWN_MEMBER_ID, member_id))
            return
        if isinstance(found, ConsumerGroup | StreamsGroup):
            self._rebalancer.append([*found.tombstones()], _log_failure)
        group = self._store.classic(request.group_id)
        if group is None and self._store.groups.get(request.group_id) is not None:
            reply(join_error(ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id))
        elif group is None:
            if member_id:
                reply(join_error(ErrorCode.UNKNOWN_MEMBER_ID, member_id))
                return
            group = self._store.create(request.group_id)
            empty = group_metadata_record(group, {})
            self._join(group, request, client, reply)
            if not group.persisted:
                self._persist_new_group(group, empty)
        else:
            self._join(group, request, client, reply)

    def _persist_new_group(self, group: ClassicGroup, empty: GroupRecord) -> None:
        """Append that the group exists, empty and in generation 0, for a broker that loads it before its first generation."""

        def appended(error: ErrorCode) -> None:
            if error:
                log.warning("Group %s could not be written: %s", group.group_id, error.name)
                self._store.drop(group, coordinator_error(error))

        group.persisted = True
        self._rebalancer.append([empty], appended)

    def _join(self, group: ClassicGroup, request: JoinGroupRequest, client: Client, reply: JoinReply) -> None:
        member_id = request.member_id
        if not self._accepts(group, member_id):
            group.remove(member_id)
            reply(join_error(ErrorCode.GROUP_MAX_SIZE_REACHED, ""))
            return
        if not self._has_room(group, request, client, reply):
            return
        names = [protocol.name for protocol in request.protocols]
        if not group.supports_protocols(request.protocol_type, names):
            reply(join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id))
        elif not member_id:
            self._join_new(group, request, client, reply)
        elif member_id in group.pending_joins:
            if request.group_instance_id is not None:
                # A pending id was given to a dynamic member; Kafka fails on it without an answer of its own.
                reply(join_error(ErrorCode.UNKNOWN_SERVER_ERROR, ""))
            else:
                self._add_member(group, request, client, member_id, reply)
        else:
            self._rejoin(group, request, reply)

    def _accepts(self, group: ClassicGroup, member_id: str) -> bool:
        """Whether group.max.size leaves room. In PreparingRebalance the members that have rejoined count, so the last ones to
        rejoin are removed when the limit was lowered."""
        if group.state is GroupState.EMPTY:
            return True
        member = group.members.get(member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            awaiting = member is not None and member.is_awaiting_join
            return awaiting or group.awaiting_join_count < self._settings.group_max_size
        return member is not None or len(group.members) < self._settings.group_max_size

    def _has_room(
        self, group: ClassicGroup, request: JoinGroupRequest, client: Client, reply: JoinReply
    ) -> bool:
        """Whether the member's protocols and names may be kept; if not, it has been answered."""
        usage = self._rebalancer.usage
        instance_id = request.group_instance_id
        known = group.members.get(
            request.member_id if instance_id is None else group.static_members.get(instance_id, "")
        )
        more = len(request.protocols) * PROTOCOL_OVERHEAD_BYTES
        if more <= MEMBER_BYTES_OF_GROUP_MAX:  # else there are too many to copy
            more = new_member(request, client, request.member_id).size() - (known.size() if known else 0)
        if more > 0 and group.member_bytes + more > MEMBER_BYTES_OF_GROUP_MAX:
            log.warning("Group %s is full: the metadata of its members is too large", group.group_id)
            group.remove(request.member_id)
            reply(join_error(ErrorCode.GROUP_MAX_SIZE_REACHED, ""))
            return False
        if more > 0 and usage.member_bytes + more > MEMBER_BYTES_MAX:
            log.warning("Group %s: the groups of this broker hold too much in memory", group.group_id)
            reply(join_error(ErrorCode.COORDINATOR_NOT_AVAILABLE, request.member_id))
            return False
        return True

    def _join_new(
        self, group: ClassicGroup, request: JoinGroupRequest, client: Client, reply: JoinReply
    ) -> None:
        instance_id = request.group_instance_id
        prefix = client.client_id if instance_id is None else instance_id
        new_member_id = f"{prefix[:MEMBER_ID_PREFIX_MAX]}-{self._new_uuid()}"
        if instance_id is None:
            if client.api_version >= 4:  # KIP-394
                self._rebalancer.add_pending_join(group, new_member_id, request.session_timeout_ms)
                reply(join_error(ErrorCode.MEMBER_ID_REQUIRED, new_member_id))
            else:
                self._add_member(group, request, client, new_member_id, reply)
            return
        existing = group.static_members.get(instance_id)
        if existing is None:
            self._add_member(group, request, client, new_member_id, reply)
        else:
            log.info("Group %s: instance %s replaces member %s", group.group_id, instance_id, existing)
            self._replace_static_member(group, request, client, instance_id, existing, new_member_id, reply)

    def _new_uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._rebalancer.runtime.random_bytes(16), version=4)

    def _add_member(
        self,
        group: ClassicGroup,
        request: JoinGroupRequest,
        client: Client,
        member_id: str,
        reply: JoinReply,
    ) -> None:
        member = new_member(request, client, member_id)
        member.is_new = True
        if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
            group.new_member_added = True
        group.add(member, reply)
        # It can't heartbeat while its JoinGroup waits; this removes a member whose client has gone away.
        self._rebalancer.start_session(group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalancer.prepare_or_complete(group, f"new member {member_id}, {reason_of(request)}")

    def _rejoin(self, group: ClassicGroup, request: JoinGroupRequest, reply: JoinReply) -> None:
        member_id = request.member_id
        error = group.check_member(member_id, request.group_instance_id)
        if error:
            reply(join_error(error, member_id))
            return
        member = group.members[member_id]
        unchanged = member.matches(protocols_of(request))
        state = group.state
        if state is GroupState.COMPLETING_REBALANCE and unchanged:
            # It may not have received the answer to its first JoinGroup.
            reply(generation_response(group, member_id, with_members=group.is_leader(member_id)))
        elif state is GroupState.STABLE and unchanged and not group.is_leader(member_id):
            reply(generation_response(group, member_id, with_members=False))
        elif state is GroupState.EMPTY:
            reply(join_error(ErrorCode.UNKNOWN_MEMBER_ID, member_id))
        else:
            # A leader that joins a stable group asks for a rebalance, as when a topic's partitions have changed.
            self._update_member(group, member, request, reply)
            self._rebalancer.prepare_or_complete(group, f"{member_id} rejoins, {reason_of(request)}")

    def _update_member(
        self, group: ClassicGroup, member: Member, request: JoinGroupRequest, reply: JoinReply | None
    ) -> None:
        group.update_member(
            member, protocols_of(request), request.rebalance_timeout_ms, request.session_timeout_ms, reply
        )

    # -- static members

    def _replace_static_member(
        self,
        group: ClassicGroup,
        request: JoinGroupRequest,
        client: Client,
        instance_id: str,
        old_member_id: str,
        new_member_id: str,
        reply: JoinReply,
    ) -> None:
        leader_before = group.leader_id
        member = group.replace_static_member(instance_id, old_member_id, new_member_id)
        self._rebalancer.heartbeat(group, member)
        before = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        self._update_member(group, member, request, reply)
        state = group.state
        if state is GroupState.STABLE:
            if group.select_protocol() != group.protocol_name:
                self._rebalancer.prepare_or_complete(group, f"{new_member_id} changes the protocol")
                return
            assignments = {each.member_id: each.assignment for each in group.members.values()}

            def appended(error: ErrorCode) -> None:
                if error:
                    failed = self._replace_failed(group, coordinator_error(error), leader_before)
                    group.complete_join(member, failed)
                    if group.members.get(new_member_id) is member:
                        group.update_member(member, *before, None)
                        group.replace_static_member(instance_id, new_member_id, old_member_id)
                        self._rebalancer.heartbeat(group, member)
                else:
                    self._answer_replaced(group, member, client, leader_before)

            self._rebalancer.persist(group, assignments, appended)
        elif state is GroupState.COMPLETING_REBALANCE:
            # The leader may have received the old id; its assignment would miss the new one.
            self._rebalancer.prepare(group, f"static member {new_member_id} replaced {old_member_id}")
        else:
            self._rebalancer.maybe_complete_join(group)

    def _answer_replaced(
        self, group: ClassicGroup, member: Member, client: Client, leader_before: str | None
    ) -> None:
        """No rebalance: the new process takes the old one's place and its assignment. From v9 a leader gets the members and
        does not assign (KIP-814); before, it receives the old leader's id, so that it does not assign."""
        if client.api_version >= 9:
            is_leader = group.is_leader(member.member_id)
            response = generation_response(group, member.member_id, with_members=is_leader)
            response.skip_assignment = is_leader
        else:
            response = generation_response(group, member.member_id, with_members=False)
            response.leader = leader_before or ""
        group.complete_join(member, response)

    def _replace_failed(
        self, group: ClassicGroup, error: ErrorCode, leader_before: str | None
    ) -> JoinGroupResponse:
        return JoinGroupResponse(
            error_code=error,
            generation_id=group.generation_id,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            leader=leader_before or "",
        )

    # -- SyncGroup

    def sync(self, request: SyncGroupRequest, reply: SyncReply) -> None:
        found = self._store.consumer(request.group_id)
        if found is not None:
            self._in_consumer_groups.sync(found, request, reply)
            return
        group = self._store.classic(request.group_id)
        if group is None or group.state is GroupState.EMPTY:
            reply(SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
            return
        error = self._check_sync(group, request)
        if error:
            reply(SyncGroupResponse(error_code=error))
            return
        member = group.members[request.member_id]
        if group.state is GroupState.STABLE:
            self._rebalancer.synced(group, member.member_id)
            reply(
                SyncGroupResponse(
                    protocol_type=group.protocol_type,
                    protocol_name=group.protocol_name,
                    assignment=member.assignment,
                )
            )
            return
        group.await_sync(member, reply)
        self._rebalancer.synced(group, member.member_id)
        if group.is_leader(member.member_id):
            self._store_assignments(group, request)

    def _check_sync(self, group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
        error = group.check_member(request.member_id, request.group_instance_id)
        if error:
            return error
        if request.generation_id != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        if differs(request.protocol_type, group.protocol_type) or differs(
            request.protocol_name, group.protocol_name
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _store_assignments(self, group: ClassicGroup, request: SyncGroupRequest) -> None:
        given = {each.member_id: each.assignment for each in request.assignments}
        assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
        generation_id = group.generation_id

        def appended(error: ErrorCode) -> None:
            # While the append was in progress a member may have joined: then a later generation assigns.
            if group.state is not GroupState.COMPLETING_REBALANCE or group.generation_id != generation_id:
                return
            if error:
                self._rebalancer.reset_assignments(group, coordinator_error(error))
                self._rebalancer.prepare_or_complete(group, f"the assignment was not stored: {error.name}")
            else:
                # First the state: an answered member may come back before this function returns.
                group.advance(GroupEvent.ASSIGNED)
                self._rebalancer.set_assignments(group, assignments)

        self._rebalancer.persist(group, assignments, appended)

    # -- Heartbeat

    def heartbeat(self, request: HeartbeatRequest) -> ErrorCode:
        found = self._store.consumer(request.group_id)
        if found is not None:
            return self._in_consumer_groups.heartbeat(found, request)
        group = self._store.classic(request.group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = request.member_id
        error = group.check_member(member_id, request.group_instance_id)
        if error:
            return error
        if request.generation_id != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        self._rebalancer.heartbeat(group, group.members[member_id])
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    # -- LeaveGroup

    def leave(self, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """Remove members, by id or by instance id; each gets its own error."""
        found = self._store.consumer(request.group_id)
        if found is not None:
            return self._in_consumer_groups.leave(found, request)
        group = self._store.classic(request.group_id)
        if group is None:
            unknown = ErrorCode.UNKNOWN_MEMBER_ID
            return LeaveGroupResponse(members=[leave_result(member, unknown) for member in request.members])
        was_empty = group.is_empty
        results = [leave_result(member, self._leave(group, member)) for member in request.members]
        if any(result.error_code == ErrorCode.NONE for result in results):
            if group.can_rebalance() and group.state is not GroupState.EMPTY:
                self._rebalancer.prepare(group, "members left")
            else:
                self._rebalancer.maybe_complete_join(group)
        response = LeaveGroupResponse(members=results)
        if group.is_empty and not was_empty:  # what fails later is what the handler waits for
            response.error_code = coordinator_error(group.empty_error)
        return response

    def _leave(self, group: ClassicGroup, identity: MemberIdentity) -> ErrorCode:
        member_id = identity.member_id
        if not member_id:  # an administrator removes a static member
            current = group.static_members.get(identity.group_instance_id or "")
            if identity.group_instance_id is None or current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = current
        elif member_id not in group.pending_joins:
            error = group.check_member(member_id, identity.group_instance_id)
            if error:
                return error
        log.info("Group %s: member %s leaves (%s)", group.group_id, member_id, identity.reason or "no reason")
        group.remove(member_id)
        return ErrorCode.NONE


def _log_failure(error: ErrorCode) -> None:
    if error:
        log.warning("an empty consumer group could not be removed: %s", error.name)


def new_member(request: JoinGroupRequest, client: Client, member_id: str) -> Member:
    return Member(
        member_id,
        request.group_instance_id,
        client.client_id,
        client.client_host,
        request.rebalance_timeout_ms,
        request.session_timeout_ms,
        request.protocol_type,
        protocols_of(request),
    )


def join_error(error: ErrorCode, member_id: str) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=error, member_id=member_id, protocol_type=None, protocol_name=None)


def leave_result(member: MemberIdentity, error: ErrorCode) -> MemberResponse:
    return MemberResponse(
        member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=error
    )


def protocols_of(request: JoinGroupRequest) -> Protocols:
    return [(protocol.name, bytes(protocol.metadata)) for protocol in request.protocols]


def reason_of(request: JoinGroupRequest) -> str:
    return f"client reason: {request.reason or 'not provided'}"


def differs(given: str | None, actual: str | None) -> bool:
    """Whether a request names a protocol (v5+), and not the group's."""
    return given is not None and actual is not None and given != actual
