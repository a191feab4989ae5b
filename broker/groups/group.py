"""A classic group: members, votes, the leader and the state. It keeps these consistent, and has no I/O.

classic.py (requests) and rebalance.py (rebalances and timeouts) decide what happens. Membership is soft state as in Kafka: it
changes at once, and the log gets the outcome of each generation.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from barnabas.broker.groups.member import SUBSCRIPTION_BYTES_MAX, Member, Protocols
from barnabas.broker.groups.state import CAN_REBALANCE, GroupEvent, GroupState, next_state
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.consumer_offsets import GroupMetadataValue
from barnabas.wire.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from barnabas.wire.messages.sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from barnabas.broker.coordinator.timers import DeadlineTimer
    from barnabas.broker.groups.member import GroupUsage, JoinReply, SyncReply


CONSUMER_PROTOCOL_TYPE: Final = "consumer"


class MalformedSubscription(ValueError):
    """The bytes are no consumer subscription; the topics of the group are then unknown."""


def subscribed_topics(subscription: bytes) -> set[str]:
    """Topic names in a serialized consumer subscription of any version: the one part of the opaque protocol a broker needs.

    The embedded consumer protocol: version int16, then version 0's fields, which prefix every later version: topics as int32
    count of (int16 length, UTF-8) strings, user data (ConsumerProtocolSubscription.json).
    """
    try:
        version, count = struct.unpack_from(">hi", subscription, 0)
        if version < 0 or not 0 <= count <= (len(subscription) - 6) // 2:
            raise MalformedSubscription(f"version {version}, {count} topics in {len(subscription)} bytes")
        topics = set()
        pos = 6
        for _ in range(count):
            (length,) = struct.unpack_from(">h", subscription, pos)
            pos += 2
            if length < 0 or pos + length > len(subscription):
                raise MalformedSubscription(f"a topic name of {length} bytes")
            topics.add(subscription[pos : pos + length].decode())
            pos += length
        return topics
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedSubscription(str(error)) from None


class ClassicGroup:
    """One classic group. `protocol_type` None: a simple group, which stores offsets and has no members."""

    group_type: Final = "classic"

    def __init__(self, group_id: str, clock: Callable[[], int], usage: GroupUsage) -> None:
        self.group_id = group_id
        self._usage = usage
        self.member_bytes = 0  # of all members
        self._clock = clock  # wall clock, ms
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.EMPTY
        self.state_timestamp: int | None = clock()  # of entering the state; None: an old record has none
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}  # instance id -> member id
        self.pending_joins: dict[str, DeadlineTimer] = {}  # ids given out with MEMBER_ID_REQUIRED
        self.pending_syncs: set[str] = set()  # members that have to send SyncGroup in this generation
        self.awaiting_join_count = 0
        self.subscribed_topics: frozenset[str] | None = None  # None: not known
        self.new_member_added = False  # during the initial delay, so that it is prolonged
        self.join_timer: DeadlineTimer | None = None
        self.sync_timer: DeadlineTimer | None = None
        self.persisted = False  # a record of the group has been appended
        self.empty_error = ErrorCode.NONE  # of the append of the last record that says that it is empty
        self._protocol_counts: dict[str, int] = {}

    # -- state

    def advance(self, event: GroupEvent) -> None:
        """Enter the state that the event leads to. UnexpectedGroupEvent."""
        self.previous_state, self.state = self.state, next_state(self.state, event)
        self.state_timestamp = self._clock()

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    def can_rebalance(self) -> bool:
        return self.state in CAN_REBALANCE

    def has_all_members_joined(self) -> bool:
        return len(self.members) == self.awaiting_join_count and not self.pending_joins

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether the group uses the topic. When its subscriptions can't be read, a consumer group counts as
        subscribed to everything."""
        if self.subscribed_topics is None:
            return self.uses_consumer_protocol()
        return topic in self.subscribed_topics

    def restore(self, value: GroupMetadataValue) -> None:
        """Become the group that a record describes: Stable with members, else Empty."""
        self.persisted = True
        self.generation_id = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol_name = value.protocol
        self.state = GroupState.STABLE if value.members else GroupState.EMPTY
        self.state_timestamp = None if value.current_state_timestamp == -1 else value.current_state_timestamp
        for stored in value.members:
            timeout = stored.session_timeout if stored.rebalance_timeout == -1 else stored.rebalance_timeout
            member = Member(
                stored.member_id,
                stored.group_instance_id,
                stored.client_id,
                stored.client_host,
                timeout,
                stored.session_timeout,
                value.protocol_type,
                [(value.protocol or "", stored.subscription)],
                stored.assignment,
            )
            self.add(member, None)
        self.leader_id = value.leader
        self.subscribed_topics = self.compute_subscribed_topics()

    # -- members

    def is_leader(self, member_id: str) -> bool:
        return self.leader_id == member_id

    def check_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """NONE, UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID when another process took over the instance id."""
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def add(self, member: Member, reply: JoinReply | None) -> None:
        assert member.member_id not in self.members
        if not self.members:
            self.protocol_type = member.protocol_type
        assert self.protocol_type == member.protocol_type
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self.static_members
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._count_protocols(member, 1)
        self._await_join(member, reply)
        self.discard_pending_join(member.member_id)

    def remove(self, member_id: str) -> None:
        """Remove a member, or a pending one. Its waiting requests are answered UNKNOWN_MEMBER_ID, so that a client that is
        still there joins again."""
        member = self.members.get(member_id)
        if member is not None:
            self.complete_join(member, JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
            self.complete_sync(member, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
            del self.members[member_id]
            self._count_protocols(member, -1)
            if member.session is not None:
                member.session.cancel()
            if member.group_instance_id is not None:
                self.static_members.pop(member.group_instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.discard_pending_join(member_id)
        self.pending_syncs.discard(member_id)

    def discard_pending_join(self, member_id: str) -> None:
        timer = self.pending_joins.pop(member_id, None)
        if timer is not None:
            timer.cancel()
            self._usage.remove_pending_join(member_id)

    def update_member(
        self,
        member: Member,
        protocols: Protocols,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        reply: JoinReply | None,
    ) -> None:
        self._count_protocols(member, -1)
        member.protocols = protocols
        self._count_protocols(member, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        self._await_join(member, reply)

    def replace_static_member(self, group_instance_id: str, old_member_id: str, new_member_id: str) -> Member:
        """A restarted process takes over an instance id: same place in the group, new member id. Waiting requests of the old
        one are answered FENCED_INSTANCE_ID."""
        member = self.members.pop(old_member_id)
        fenced = ErrorCode.FENCED_INSTANCE_ID
        self.complete_join(
            member, JoinGroupResponse(error_code=fenced, member_id=old_member_id, protocol_name=None)
        )
        self.complete_sync(
            member, SyncGroupResponse(error_code=fenced, protocol_type=None, protocol_name=None)
        )
        if member.session is not None:
            member.session.cancel()
            member.session = None
        member.member_id = new_member_id
        member.is_new = False
        self.members[new_member_id] = member
        if old_member_id in self.pending_syncs:
            self.pending_syncs.discard(old_member_id)
            self.pending_syncs.add(new_member_id)
        if self.leader_id == old_member_id:
            self.leader_id = new_member_id
        self.static_members[group_instance_id] = new_member_id
        return member

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is among those that rejoined. False when no member rejoined."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].is_awaiting_join:
            return True
        joined = next((member for member in self.members.values() if member.is_awaiting_join), None)
        if joined is None:
            return False
        self.leader_id = joined.member_id
        return True

    # -- protocols

    def supports_protocols(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member with these protocols can join: same type, and one that all members know."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        if self.protocol_type != protocol_type:
            return False
        size = len(self.members)
        return any(self._protocol_counts.get(name, 0) == size for name in names)

    def select_protocol(self) -> str:
        """The protocol all members know that has most votes; on a tie the one voted for first."""
        assert self.members
        size = len(self.members)
        candidates = {name for name, count in self._protocol_counts.items() if count == size}
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def _count_protocols(self, member: Member, by: int) -> None:
        if self.state is not GroupState.DEAD:
            change = by * member.size()
            self.member_bytes += change
            self._usage.member_bytes += change
        counts = self._protocol_counts
        for name in member.protocol_names():
            count = counts.get(name, 0) + by
            if count:
                counts[name] = count
            else:
                del counts[name]

    # -- generations

    def init_next_generation(self) -> None:
        self.generation_id += 1
        if self.members:
            self.protocol_name = self.select_protocol()
            self.advance(GroupEvent.JOINED)
        else:
            self.protocol_name = None
            self.advance(GroupEvent.EMPTIED)
        self.subscribed_topics = self.compute_subscribed_topics()
        self.pending_syncs.clear()

    def compute_subscribed_topics(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        subscriptions = [member.subscription(self.protocol_name) for member in self.members.values()]
        if sum(map(len, subscriptions)) > SUBSCRIPTION_BYTES_MAX:
            return None
        topics: set[str] = set()
        try:
            for each in subscriptions:
                topics |= subscribed_topics(each)
        except MalformedSubscription:
            return None
        return frozenset(topics)

    def current_members(self) -> list[JoinGroupResponseMember]:
        """The members with their subscriptions, as the leader needs them to assign partitions."""
        assert self.protocol_name is not None
        return [
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.subscription(self.protocol_name),
            )
            for member in self.members.values()
        ]

    # -- requests that wait

    def _await_join(self, member: Member, reply: JoinReply | None) -> None:
        superseded = member.join_reply
        self.awaiting_join_count += (reply is not None) - (superseded is not None)
        member.join_reply = reply
        if superseded is not None:
            superseded(
                JoinGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id)
            )

    def await_sync(self, member: Member, reply: SyncReply) -> None:
        superseded = member.sync_reply
        member.sync_reply = reply
        if superseded is not None:
            superseded(SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))

    def complete_join(self, member: Member, response: JoinGroupResponse) -> bool:
        """Answer the member's JoinGroup, if one waits."""
        reply = member.join_reply
        if reply is None:
            return False
        member.join_reply = None
        self.awaiting_join_count -= 1
        reply(response)
        return True

    def complete_sync(self, member: Member, response: SyncGroupResponse) -> bool:
        """Answer the member's SyncGroup, if one waits."""
        reply = member.sync_reply
        if reply is None:
            return False
        member.sync_reply = None
        reply(response)
        return True

    def kill(self, error: ErrorCode) -> None:
        """End the group: state Dead, timers cancelled, waiting requests answered with `error`."""
        self.advance(GroupEvent.END)
        for timer in (self.join_timer, self.sync_timer):
            if timer is not None:
                timer.cancel()
        for member_id in tuple(self.pending_joins):
            self.discard_pending_join(member_id)
        self._usage.member_bytes -= self.member_bytes
        self.member_bytes = 0
        for member in tuple(self.members.values()):
            if member.session is not None:
                member.session.cancel()
            self.complete_join(member, JoinGroupResponse(error_code=error, member_id=member.member_id))
            self.complete_sync(member, SyncGroupResponse(error_code=error))
