"""Rebalances of classic groups, from one generation to the next, and the timeouts of members.

A rebalance waits until every member has rejoined, at most the longest rebalance timeout among them; late members are removed
(static ones stay). The first rebalance of an empty group waits `group.initial.rebalance.delay.ms` instead, longer while
members keep joining. Then every member has to sync, again within the rebalance timeout.

All timers are here: session (per member), join and sync (per group).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from barnabas.broker.coordinator.timers import DeadlineTimer
from barnabas.broker.groups.records import GroupRecord, group_metadata_record
from barnabas.broker.groups.state import GroupEvent, GroupState
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.join_group import JoinGroupResponse
from barnabas.wire.messages.sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from barnabas.broker.groups.group import ClassicGroup
    from barnabas.broker.groups.member import GroupUsage, Member
    from barnabas.broker.groups.settings import GroupSettings
    from barnabas.runtime.interface import Runtime

log = logging.getLogger(__name__)

AWAIT_AGAIN_MIN_MS: Final = 1000  # rather than at once, over and over, if all members gave a timeout of 0

Append = Callable[[list[GroupRecord], Callable[[ErrorCode], None]], None]


class Rebalancer:
    """Moves the groups of one shard through their states."""

    def __init__(self, runtime: Runtime, settings: GroupSettings, append: Append, usage: GroupUsage) -> None:
        self.runtime = runtime
        self.settings = settings
        self.append = append
        self.usage = usage

    def persist(
        self, group: ClassicGroup, assignments: dict[str, bytes], done: Callable[[ErrorCode], None]
    ) -> None:
        """Append the group in its present state, with these assignments by member id."""
        group.persisted = True
        self.append([group_metadata_record(group, assignments)], done)

    # -- sessions

    def heartbeat(self, group: ClassicGroup, member: Member) -> None:
        """The member is alive: restart its session."""
        self.start_session(group, member, member.session_timeout_ms)

    def start_session(self, group: ClassicGroup, member: Member, timeout_ms: int) -> None:
        if member.session is None:
            member.session = DeadlineTimer(self.runtime, lambda: self._session_expired(group, member))
        member.session.set(timeout_ms)

    def add_pending_join(self, group: ClassicGroup, member_id: str, session_timeout_ms: int) -> None:
        """Expect a JoinGroup with this id within the session timeout; a rebalance waits for it."""
        timer = DeadlineTimer(self.runtime, lambda: self._pending_join_expired(group, member_id))
        group.pending_joins[member_id] = timer
        timer.set(session_timeout_ms)
        self.usage.add_pending_join(member_id, lambda: self._forget_pending_join(group, member_id))

    def _pending_join_expired(self, group: ClassicGroup, member_id: str) -> None:
        log.debug("Group %s: pending member %s did not join in time", group.group_id, member_id)
        self._forget_pending_join(group, member_id)

    def _forget_pending_join(self, group: ClassicGroup, member_id: str) -> None:
        group.discard_pending_join(member_id)
        self.complete_join_if_all_joined(group)

    def _session_expired(self, group: ClassicGroup, member: Member) -> None:
        if group.members.get(member.member_id) is not member or member.has_satisfied_heartbeat():
            return
        log.info("Group %s: member %s has failed (session timeout)", group.group_id, member.member_id)
        group.remove(member.member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            self.complete_join_if_all_joined(group)
        else:
            self.prepare_or_complete(group, f"member {member.member_id} failed")

    # -- joining

    def prepare_or_complete(self, group: ClassicGroup, reason: str) -> None:
        """Start a rebalance, or, when one runs, see whether that was the last member it waited for."""
        if group.can_rebalance():
            self.prepare(group, reason)
        else:
            self.maybe_complete_join(group)

    def prepare(self, group: ClassicGroup, reason: str) -> None:
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.reset_assignments(group, ErrorCode.REBALANCE_IN_PROGRESS)
        self._stop_sync_timer(group)
        initial = group.state is GroupState.EMPTY
        group.advance(GroupEvent.REBALANCE)
        log.info("Group %s rebalances, generation %d (%s)", group.group_id, group.generation_id, reason)
        if initial:
            delay_ms = self.settings.group_initial_rebalance_delay_ms
            remaining_ms = max(group.rebalance_timeout_ms() - delay_ms, 0)
            self._set_join_timer(
                group, delay_ms, lambda: self._initial_delay_over(group, delay_ms, remaining_ms)
            )
        elif group.has_all_members_joined():
            self.complete_join(group)
        else:
            self._await_members(group, group.rebalance_timeout_ms())

    def maybe_complete_join(self, group: ClassicGroup) -> None:
        """Complete the join phase once every member has joined; the first one of a group ends by its delay only."""
        if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is not GroupState.EMPTY:
            self.complete_join_if_all_joined(group)

    def complete_join_if_all_joined(self, group: ClassicGroup) -> None:
        if group.state is GroupState.PREPARING_REBALANCE and group.has_all_members_joined():
            self.complete_join(group)

    def complete_join(self, group: ClassicGroup) -> None:
        """End the join phase: late members leave, a new generation begins, and every member is answered."""
        if group.join_timer is not None:
            group.join_timer.cancel()
        for member in tuple(group.members.values()):
            if not member.is_awaiting_join and not member.is_static:
                log.info("Group %s: %s has not rejoined in time", group.group_id, member.member_id)
                group.remove(member.member_id)
        if not group.elect_joined_leader() and group.members:
            # No member rejoined and only static members are left: wait on, until sessions expire.
            self._await_members(group, max(group.rebalance_timeout_ms(), AWAIT_AGAIN_MIN_MS))
            return
        group.init_next_generation()
        if group.state is GroupState.EMPTY:
            log.info("Group %s, generation %d, is now empty", group.group_id, group.generation_id)
            group.empty_error = ErrorCode.NONE
            self.persist(group, {}, lambda error: self._empty_group_appended(group, error))
        else:
            self._announce_generation(group)

    def _announce_generation(self, group: ClassicGroup) -> None:
        log.info(
            "Group %s, generation %d, has %d members", group.group_id, group.generation_id, len(group.members)
        )
        for member in tuple(group.members.values()):
            is_leader = group.is_leader(member.member_id)
            response = generation_response(group, member.member_id, with_members=is_leader)
            group.complete_join(member, response)
            member.is_new = False
            self.heartbeat(group, member)
            group.pending_syncs.add(member.member_id)
        if group.sync_timer is not None:
            group.sync_timer.cancel()
        generation_id = group.generation_id
        group.sync_timer = DeadlineTimer(self.runtime, lambda: self._sync_phase_expired(group, generation_id))
        group.sync_timer.set(group.rebalance_timeout_ms())

    def _empty_group_appended(self, group: ClassicGroup, error: ErrorCode) -> None:
        group.empty_error = error
        if error:
            # The generation before stays in the log; after a restart its members would time out. Harmless.
            log.warning("Group %s: could not write that it is empty: %s", group.group_id, error.name)

    def _await_members(self, group: ClassicGroup, delay_ms: int) -> None:
        self._set_join_timer(group, delay_ms, lambda: self._join_phase_expired(group))

    def _join_phase_expired(self, group: ClassicGroup) -> None:
        if group.state is GroupState.PREPARING_REBALANCE:
            self.complete_join(group)

    def _set_join_timer(self, group: ClassicGroup, delay_ms: int, expired: Callable[[], None]) -> None:
        if group.join_timer is not None:
            group.join_timer.cancel()
        group.join_timer = DeadlineTimer(self.runtime, expired)
        group.join_timer.set(delay_ms)

    def _initial_delay_over(self, group: ClassicGroup, delay_ms: int, remaining_ms: int) -> None:
        if group.state is not GroupState.PREPARING_REBALANCE:
            return
        if not group.new_member_added or remaining_ms == 0:
            self.complete_join(group)
            return
        group.new_member_added = False
        next_delay_ms = min(self.settings.group_initial_rebalance_delay_ms, remaining_ms)
        next_remaining_ms = max(remaining_ms - delay_ms, 0)
        self._set_join_timer(
            group, next_delay_ms, lambda: self._initial_delay_over(group, next_delay_ms, next_remaining_ms)
        )

    # -- syncing

    def synced(self, group: ClassicGroup, member_id: str) -> None:
        """This member has sent its SyncGroup."""
        group.pending_syncs.discard(member_id)
        if not group.pending_syncs and group.sync_timer is not None:
            group.sync_timer.cancel()

    def _sync_phase_expired(self, group: ClassicGroup, generation_id: int) -> None:
        if group.generation_id != generation_id or not group.pending_syncs or not group.can_rebalance():
            return
        late = tuple(group.pending_syncs)
        for member_id in late:
            group.remove(member_id)
        self.prepare(group, f"members {', '.join(late)} did not sync")

    def _stop_sync_timer(self, group: ClassicGroup) -> None:
        group.pending_syncs.clear()
        if group.sync_timer is not None:
            group.sync_timer.cancel()

    def set_assignments(self, group: ClassicGroup, assignments: dict[str, bytes]) -> None:
        """Give every member its part and answer those that wait for it."""
        for member in tuple(group.members.values()):
            member.assignment = assignments.get(member.member_id, b"")
            response = SyncGroupResponse(
                protocol_type=group.protocol_type,
                protocol_name=group.protocol_name,
                assignment=member.assignment,
            )
            if group.complete_sync(member, response):
                self.heartbeat(group, member)  # its session may have run out, excused, while it waited

    def reset_assignments(self, group: ClassicGroup, error: ErrorCode) -> None:
        for member in tuple(group.members.values()):
            member.assignment = b""
            response = SyncGroupResponse(error_code=error, protocol_type=None, protocol_name=None)
            if group.complete_sync(member, response):
                self.heartbeat(group, member)


def generation_response(group: ClassicGroup, member_id: str, *, with_members: bool) -> JoinGroupResponse:
    """A successful JoinGroup answer about the group's current generation."""
    return JoinGroupResponse(
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader_id or "",
        member_id=member_id,
        members=group.current_members() if with_members else [],
    )
