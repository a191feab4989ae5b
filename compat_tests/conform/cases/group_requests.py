"""Requests and set-up that the cases of groups and of their offsets share."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.heartbeat import HeartbeatRequest
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from barnabas.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

from compat_tests.conform.apis import APIS
from compat_tests.conform.session import Session, SetupFailed

NOT_READY = {14, 15, 16}
"""Loading, no coordinator yet, not the coordinator: what a starting broker answers for a while."""
MEMBER_ID_REQUIRED = 79
RANGE = (("range", b"range data"),)


class Member(NamedTuple):
    """One member of a group, and the connection it speaks on."""

    id: str
    generation: int
    on: str


def subscription(*topics: str) -> bytes:
    """A consumer's protocol metadata, version 0: the topics and no user data."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def ready_group(session: Session, suffix: str = "a") -> str:
    """A fresh group id whose coordinator serves."""
    group = session.name(suffix)
    for _ in range(600):
        found = session.quiet(FindCoordinatorRequest(coordinator_keys=[group])).coordinators[0]
        if found.error_code not in NOT_READY:
            beat = session.quiet(HeartbeatRequest(group_id=group, member_id="nobody"))
            if beat.error_code not in NOT_READY:
                return group
        time.sleep(0.05)
    raise SetupFailed(f"no coordinator for {group}")


def join(
    group: str,
    member: str = "",
    *,
    instance: str | None = None,
    protocols: Sequence[tuple[str, bytes]] = RANGE,
    protocol_type: str = "consumer",
    session_ms: int = 60000,
    rebalance_ms: int = 60000,
) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        member_id=member,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols],
    )


def sync(
    group: str,
    member: str,
    generation: int,
    assignments: Sequence[tuple[str, bytes]] = (),
    *,
    instance: str | None = None,
    protocol_type: str | None = "consumer",
    protocol_name: str | None = "range",
) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignments=[
            SyncGroupRequestAssignment(member_id=name, assignment=data) for name, data in assignments
        ],
    )


def beat(group: str, member: str, generation: int, instance: str | None = None) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=group, generation_id=generation, member_id=member, group_instance_id=instance
    )


def leave(session: Session, group: str, *members: tuple[str, str | None]) -> LeaveGroupRequest:
    """Members as (member id, instance id); versions below 3 name the first one only."""
    if session.version < 3:
        return LeaveGroupRequest(group_id=group, member_id=members[0][0])
    identities = [
        MemberIdentity(member_id=member, group_instance_id=instance) for member, instance in members
    ]
    return LeaveGroupRequest(group_id=group, members=identities)


def new_id(session: Session, group: str, on: str, **options: Any) -> str:
    """A member id from the broker, which now awaits the member's real join."""
    answer = session.quiet(join(group, **options), on=on)
    if answer.error_code != MEMBER_ID_REQUIRED:
        raise SetupFailed(f"JoinGroup: {answer.error_code}")
    member = str(answer.member_id)
    session.names.text(member)
    return member


def only_member(
    session: Session, group: str, on: str = "one", *, synced: bool = True, **options: Any
) -> Member:
    """The first member of a group, in generation 1; unsynced it leaves the group completing its rebalance."""
    if options.get("instance") is None:
        member = new_id(session, group, on, **options)
        answer = session.quiet(join(group, member, **options), on=on)
    else:
        answer = session.quiet(join(group, **options), on=on)
        session.names.text(answer.member_id)
    if answer.error_code != 0:
        raise SetupFailed(f"JoinGroup: {answer.error_code}")
    joined = Member(str(answer.member_id), int(answer.generation_id), on)
    if synced:
        request = sync(
            group,
            joined.id,
            joined.generation,
            [(joined.id, b"all")],
            instance=options.get("instance"),
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol_name,
        )
        code = session.quiet(request, on=on).error_code
        if code != 0:
            raise SetupFailed(f"SyncGroup: {code}")
    return joined


def start_rebalance(session: Session, group: str, on: str = "two") -> str:
    """Let a further member join; it waits on `on` for the others to come again. Returns its id."""
    member = new_id(session, group, on)
    session.send(join(group, member), version=APIS["JoinGroup"].last, on=on)
    for _ in range(200):
        if state_of(session, group) == "PreparingRebalance":
            return member
        time.sleep(0.02)
    raise SetupFailed("no rebalance began")


def state_of(session: Session, group: str) -> str:
    return str(session.quiet(DescribeGroupsRequest(groups=[group])).groups[0].group_state)


def show(session: Session, group: str, note: str = "the group now") -> None:
    """Record the group's description."""
    session.ask(DescribeGroupsRequest(groups=[group]), version=APIS["DescribeGroups"].last, note=note)
