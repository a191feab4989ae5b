"""Classic groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, DescribeGroups, ListGroups, DeleteGroups."""

from __future__ import annotations

from typing import Any, NamedTuple

from barnabas.wire.messages.delete_groups import DeleteGroupsRequest
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.heartbeat import HeartbeatRequest
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from barnabas.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from barnabas.wire.messages.list_groups import ListGroupsRequest
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from compat_tests.conform.case import case
from compat_tests.conform.session import Session, SetupFailed
from compat_tests.harness.eventually import eventually


class Member(NamedTuple):
    """A member that has joined and synced."""

    group: str
    member_id: str
    generation: int
    instance: str | None = None


def join_request(
    group: str,
    member_id: str = "",
    *,
    instance: str | None = None,
    protocols: tuple[str, ...] = ("range",),
    protocol_type: str = "consumer",
    session_timeout_ms: int = 30000,
    rebalance_timeout_ms: int = 5000,
) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocols=[JoinGroupRequestProtocol(name=name, metadata=b"meta") for name in protocols],
        reason="because",
    )


def sync_request(member: Member, *, leader: bool = True, protocol: str | None = "range") -> SyncGroupRequest:
    assignments = (
        [SyncGroupRequestAssignment(member_id=member.member_id, assignment=b"mine")] if leader else []
    )
    return SyncGroupRequest(
        group_id=member.group,
        generation_id=member.generation,
        member_id=member.member_id,
        group_instance_id=member.instance,
        protocol_type="consumer",
        protocol_name=protocol,
        assignments=assignments,
    )


def coordinated(session: Session, group: str) -> None:
    """Wait until the group's coordinator serves."""

    def serves() -> bool:
        found = session.quiet(FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), version=4)
        if found.coordinators[0].error_code != 0:
            return False
        answer = session.quiet(DescribeGroupsRequest(groups=[group]), version=5).groups[0]
        return answer.error_code not in (14, 15, 16)

    eventually(serves)


def rebalancing(session: Session, group: str) -> None:
    """Wait until the group waits for its members to join."""
    described = DescribeGroupsRequest(groups=[group])
    eventually(lambda: session.quiet(described, version=5).groups[0].group_state == "PreparingRebalance")


def joined(session: Session, group: str, instance: str | None = None, sync: bool = True) -> Member:
    """A group with one member, stable unless `sync` is off."""
    coordinated(session, group)
    answer = session.quiet(
        join_request(group, instance=instance), version=3 if instance is None else 5, on="member"
    )
    if answer.error_code != 0:
        raise SetupFailed(f"JoinGroup: {answer.error_code}")
    member = Member(group, answer.member_id, answer.generation_id, instance)
    if sync:
        session.quiet(sync_request(member), version=3, on="member")
    return member


@case("JoinGroup")
def first_member(session: Session) -> None:
    group = session.name("g")
    coordinated(session, group)
    answer = session.ask(join_request(group), note="join")
    if answer is not None and answer.error_code == 79:
        answer = session.ask(join_request(group, answer.member_id), note="join with the member id given")
    member = Member(group, answer.member_id, answer.generation_id)
    session.ask(join_request(group, member.member_id), note="join again")
    session.ask(join_request(group, member.member_id, protocols=("roundrobin",)), note="other protocols")


@case("JoinGroup")
def join_refused(session: Session) -> None:
    member = joined(session, session.name("g"))
    session.ask(join_request(member.group, "nobody"), note="unknown member")
    session.ask(join_request(session.name("new"), "nobody"), note="unknown member of an unknown group")
    session.ask(join_request(""), note="empty group")
    session.ask(join_request(member.group, protocol_type="connect"), note="other protocol type")
    session.ask(join_request(member.group, protocols=("sticky",)), note="no common protocol")
    session.ask(join_request(session.name("new"), protocols=()), note="no protocols")
    session.ask(join_request(session.name("new"), protocol_type=""), note="no protocol type")
    for timeout in (1, 2**31 - 1, 0, -1):
        session.ask(
            join_request(session.name("new"), session_timeout_ms=timeout), note=f"session timeout {timeout}"
        )


@case("JoinGroup", first=5)
def static_member(session: Session) -> None:
    member = joined(session, session.name("g"), "one")
    session.ask(join_request(member.group, instance="one"), note="the same instance again")
    session.ask(
        join_request(member.group, member.member_id, instance="one"), note="the old member id: fenced"
    )
    session.ask(join_request(member.group, "nobody", instance="two"), note="unknown member id, new instance")
    for instance in ("", "bad id"):  # each in a group of its own: one that is let in starts a rebalance
        session.ask(join_request(session.name(f"g{len(instance)}"), instance=instance), note=f"{instance!r}")


@case("JoinGroup")
def second_member(session: Session) -> None:
    """The first member must join again; both get the new generation."""
    member = joined(session, session.name("g"))
    second = join_request(member.group)
    correlation_id = session.send(second)
    if session.version >= 4:
        answer = session.await_answer(second, correlation_id, note="a member id first")
        second = join_request(member.group, answer.member_id)
        correlation_id = session.send(second)
    rebalancing(session, member.group)  # its JoinGroup is there before the other connection's heartbeat
    beat = HeartbeatRequest(
        group_id=member.group, generation_id=member.generation, member_id=member.member_id
    )
    session.ask(beat, version=3, on="member", note="heartbeat of the first")
    session.ask(
        join_request(member.group, member.member_id), version=3, on="member", note="the first joins again"
    )
    session.await_answer(second, correlation_id, note="the second")


@case("SyncGroup")
def sync(session: Session) -> None:
    member = joined(session, session.name("g"), sync=False)
    session.ask(sync_request(member._replace(generation=9)), note="wrong generation")
    session.ask(sync_request(member._replace(member_id="nobody")), note="unknown member")
    session.ask(sync_request(member._replace(group=session.name("unknown"))), note="unknown group")
    session.ask(sync_request(member._replace(group="")), note="empty group")
    if session.version >= 3:
        session.ask(sync_request(member._replace(instance="nobody")), note="unknown instance")
    if session.version >= 5:
        session.ask(sync_request(member, protocol="sticky"), note="wrong protocol")
        session.ask(sync_request(member, protocol=None), note="no protocol")
    session.ask(sync_request(member), note="good")
    session.ask(sync_request(member), note="again")


@case("Heartbeat")
def heartbeat(session: Session) -> None:
    member = joined(session, session.name("g"))

    def beat(note: str, **changes: Any) -> None:
        fields: dict[str, Any] = {
            "group_id": member.group,
            "generation_id": member.generation,
            "member_id": member.member_id,
        }
        session.ask(HeartbeatRequest(**(fields | changes)), note=note)

    beat("good")
    beat("wrong generation", generation_id=9)
    beat("generation -1", generation_id=-1)
    beat("unknown member", member_id="nobody")
    beat("empty member", member_id="")
    beat("unknown group", group_id=session.name("unknown"))
    beat("empty group", group_id="")
    if session.version >= 3:
        beat("unknown instance", group_instance_id="nobody")
        fixed = joined(session, session.name("static"), "one")
        same = {"group_id": fixed.group, "generation_id": fixed.generation, "group_instance_id": "one"}
        beat("static", member_id=fixed.member_id, **same)
        beat("static, fenced", member_id="another", **same)


@case("LeaveGroup")
def leave(session: Session) -> None:
    member = joined(session, session.name("g"))

    def go(note: str, group: str, member_id: str, instance: str | None = None) -> None:
        one = MemberIdentity(member_id=member_id, group_instance_id=instance, reason="done")
        session.ask(LeaveGroupRequest(group_id=group, member_id=member_id, members=[one]), note=note)

    go("unknown member", member.group, "nobody")
    go("unknown group", session.name("unknown"), "nobody")
    go("empty group", "", "nobody")
    go("empty member", member.group, "")
    go("good", member.group, member.member_id)
    go("again", member.group, member.member_id)
    if session.version >= 3:
        fixed = joined(session, session.name("static"), "one")
        go("unknown instance", fixed.group, "", "two")
        go("fenced instance", fixed.group, "nobody", "one")
        go("instance alone", fixed.group, "", "one")
        session.ask(LeaveGroupRequest(group_id=fixed.group, members=[]), note="no member leaves")


@case("DescribeGroups")
def describe(session: Session) -> None:
    group = session.name("g")
    member = joined(session, group, sync=False)
    session.ask(DescribeGroupsRequest(groups=[group]), note="completing the rebalance")
    session.quiet(sync_request(member), version=3, on="member")
    session.ask(DescribeGroupsRequest(groups=[group]), note="stable")
    session.ask(DescribeGroupsRequest(groups=[group, session.name("unknown"), ""]), note="three")
    session.ask(DescribeGroupsRequest(groups=[group], include_authorized_operations=True), note="operations")
    session.ask(DescribeGroupsRequest(groups=[group, group]), note="twice")
    session.ask(DescribeGroupsRequest(groups=[]), note="none")
    session.quiet(
        LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id=member.member_id)]), version=4
    )
    session.ask(DescribeGroupsRequest(groups=[group]), note="empty")


@case("ListGroups")
def list_groups(session: Session) -> None:
    """Only this case's own groups are compared."""
    stable, leaving = joined(session, session.name("stable")), joined(session, session.name("empty"))
    one = MemberIdentity(member_id=leaving.member_id)
    session.quiet(LeaveGroupRequest(group_id=leaving.group, members=[one]), version=4)

    def ask(note: str, states: list[str], types: list[str]) -> None:
        request = ListGroupsRequest(states_filter=states, types_filter=types)
        answer = session.quiet(request, version=session.version)
        mine = [entry for entry in answer.groups if entry.group_id in (stable.group, leaving.group)]
        session.record(note, [answer.error_code, session.names.tree(mine)])

    ask("all", [], [])
    if session.version >= 4:
        for state in ("Stable", "stable", "Empty", "Dead", "PreparingRebalance", "nonsense"):
            ask(f"state {state}", [state], [])
    if session.version >= 5:
        for kind in ("classic", "Classic", "consumer", "share", "nonsense"):
            ask(f"type {kind}", [], [kind])
        ask("state and type", ["Stable"], ["classic"])


@case("DeleteGroups")
def delete_groups(session: Session) -> None:
    member, empty = joined(session, session.name("g")), joined(session, session.name("empty"))
    one = MemberIdentity(member_id=empty.member_id)
    session.quiet(LeaveGroupRequest(group_id=empty.group, members=[one]), version=4)
    session.ask(DeleteGroupsRequest(groups_names=[member.group]), note="not empty")
    session.ask(DeleteGroupsRequest(groups_names=[empty.group]), note="empty")
    session.ask(DeleteGroupsRequest(groups_names=[empty.group]), note="again")
    session.ask(
        DeleteGroupsRequest(groups_names=[session.name("unknown"), ""]), note="unknown and empty name"
    )
    session.ask(DeleteGroupsRequest(groups_names=[]), note="none")
