"""FindCoordinator, DescribeGroups, ListGroups, DeleteGroups: what is told about groups, and their removal."""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.wire.messages.delete_groups import DeleteGroupsRequest
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from barnabas.wire.messages.list_groups import ListGroupsRequest

from compat_tests.conform.case import case
from compat_tests.conform.cases.group_requests import (
    Member,
    new_id,
    only_member,
    ready_group,
    show,
    start_rebalance,
)
from compat_tests.conform.cases.offset_requests import commit, fetch_offsets
from compat_tests.conform.session import Session


def empty(session: Session, group: str, member: Member) -> None:
    session.quiet(LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id=member.id)]))


@case("FindCoordinator")
def finds(session: Session) -> None:
    group = ready_group(session)
    session.ask(FindCoordinatorRequest(key=group, coordinator_keys=[group]), note="a group")
    session.ask(FindCoordinatorRequest(key="", coordinator_keys=[""]), note="the empty group")
    if session.version >= 1:
        for kind in (3, -1, 127):
            session.ask(
                FindCoordinatorRequest(key=group, key_type=kind, coordinator_keys=[group]),
                note=f"type {kind}",
            )


@case("FindCoordinator", first=4)
def finds_several(session: Session) -> None:
    group = ready_group(session)
    session.ask(FindCoordinatorRequest(coordinator_keys=[group, session.name("b"), ""]), note="three")
    session.ask(FindCoordinatorRequest(coordinator_keys=[group, group]), note="one twice")
    session.ask(FindCoordinatorRequest(coordinator_keys=[]), note="none")
    session.ask(
        FindCoordinatorRequest(key_type=9, coordinator_keys=[group, "b"]), note="two of an unknown type"
    )


@case("FindCoordinator", first=1)
def finds_for_shares(session: Session) -> None:
    group = ready_group(session)
    for key in (group, f"{group}:AAAAAAAAAAAAAAAAAAAAAQ:0", f"{group}:x:0"):
        session.ask(
            FindCoordinatorRequest(key=key, key_type=2, coordinator_keys=[key]),
            note=f"share key with {key.count(':')} colons, {key[-3:]}",
        )


@case("DescribeGroups")
def describes_each_state(session: Session) -> None:
    group = ready_group(session)

    def describe(note: str, *groups: str) -> None:
        session.ask(DescribeGroupsRequest(groups=list(groups)), note=note)

    describe("never seen", group)
    new_id(session, group, "awaited")
    describe("with an awaited member", group)
    one = only_member(session, group, synced=False)
    describe("completing", group)
    session.drop(one.on)
    other = ready_group(session, "b")
    member = only_member(session, other, "b")
    describe("stable", other)
    second = start_rebalance(session, other)
    describe("preparing", other)
    empty(session, other, member)
    session.connection("two").receive_frame()
    describe("completing without the first", other)
    session.quiet(LeaveGroupRequest(group_id=other, members=[MemberIdentity(member_id=second)]))
    describe("empty", other)


@case("DescribeGroups")
def describes_others(session: Session) -> None:
    group = ready_group(session)
    topic = session.create_topic()
    session.quiet(commit(group, topic), version=9)
    for note, groups in {
        "offsets only": [group],
        "empty id": [""],
        "none": [],
        "unknown and known": [session.name("none"), group],
        "one twice": [group, group],
    }.items():
        session.ask(DescribeGroupsRequest(groups=groups), note=note)


@case("DescribeGroups", first=3)
def describes_authorized_operations(session: Session) -> None:
    group = ready_group(session)
    only_member(session, group, instance="i")
    session.ask(
        DescribeGroupsRequest(groups=[group, session.name("none")], include_authorized_operations=True),
        note="with operations",
    )


def listed(session: Session, note: str, states: Sequence[str] = (), types: Sequence[str] = ()) -> None:
    """Record only this run's groups: other cases' are listed too."""
    request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
    answer = session.quiet(request, version=session.version)
    answer.groups = [group for group in answer.groups if group.group_id.startswith(session.name(""))]
    session.record(note, session.names.tree(answer))


@case("ListGroups")
def lists(session: Session) -> None:
    topic = session.create_topic()
    groups = [
        ready_group(session, suffix) for suffix in ("stable", "empty", "offsets", "completing", "awaited")
    ]
    only_member(session, groups[0])
    empty(session, groups[1], only_member(session, groups[1], "b"))
    session.quiet(commit(groups[2], topic), version=9)
    only_member(session, groups[3], "c", synced=False, protocol_type="connect")
    new_id(session, groups[4], "d")
    listed(session, "all")
    if session.version >= 4:
        for states in (
            ["Stable"], ["stable"], ["EMPTY", "CompletingRebalance"], ["Dead"], ["PreparingRebalance"],
            [" Stable"], ["nonsense"], ["nonsense", "Empty"], [""], ["Assigning"],
        ):  # fmt: skip
            listed(session, f"states {states}", states)
    if session.version >= 5:
        for types in (
            ["classic"], ["Classic"], ["CLASSIC", "consumer"], ["consumer"], ["share"], ["streams"],
            ["nonsense"], [""], ["nonsense", "classic"],
        ):  # fmt: skip
            listed(session, f"types {types}", types=types)
        listed(session, "both", ["Stable"], ["classic"])


@case("DeleteGroups")
def deletes(session: Session) -> None:
    topic = session.create_topic()
    stable, gone, offsets = (ready_group(session, suffix) for suffix in ("stable", "empty", "offsets"))
    one = only_member(session, stable)
    empty(session, gone, only_member(session, gone, "b"))
    session.quiet(commit(gone, topic), version=9)
    session.quiet(commit(offsets, topic), version=9)

    def delete(note: str, *groups: str) -> None:
        session.ask(DeleteGroupsRequest(groups_names=list(groups)), note=note)

    delete("nobody")
    delete("unknown and empty id", session.name("none"), "")
    delete("stable", stable)
    delete("all", stable, gone, offsets)
    for group in (gone, offsets):
        show(session, group)
        session.ask(fetch_offsets(9, group), version=9, note="its offsets")
    delete("again", gone)
    empty(session, stable, one)
    delete("the one that was stable, twice", stable, stable)
    delete("a new one", ready_group(session, "new"))


@case("DeleteGroups")
def deletes_with_an_awaited_member(session: Session) -> None:
    group = ready_group(session)
    new_id(session, group, "one")
    session.ask(DeleteGroupsRequest(groups_names=[group]), note="awaited member only")
    show(session, group)
    other = ready_group(session, "b")
    only_member(session, other, "b", synced=False)
    session.ask(DeleteGroupsRequest(groups_names=[other]), note="completing")
