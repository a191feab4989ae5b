"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup: a member's life, what each request refuses, and rebalances."""

from __future__ import annotations

import time

from barnabas.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity

from compat_tests.conform.case import case
from compat_tests.conform.cases.group_requests import (
    MEMBER_ID_REQUIRED,
    beat,
    join,
    leave,
    new_id,
    only_member,
    ready_group,
    show,
    start_rebalance,
    sync,
)
from compat_tests.conform.session import Session

BOTH_WAYS = (("range", b"r"), ("roundrobin", b"rr"))


@case("JoinGroup")
def joins_alone(session: Session) -> None:
    group = ready_group(session)
    answer = session.ask(join(group), note="without an id")
    if answer.error_code == MEMBER_ID_REQUIRED:
        show(session, group, "while it is awaited")
        answer = session.ask(join(group, answer.member_id), note="with the id given")
    show(session, group)
    session.ask(join(group, answer.member_id), note="once more before syncing")


@case("JoinGroup")
def joins_refused(session: Session) -> None:
    group = ready_group(session)
    for note, request in {
        "session too short": join(group, session_ms=50),
        "session too long": join(group, session_ms=1800001),
        "empty group": join(""),
        "empty group, bad session": join("", session_ms=1),
        "unknown member": join(group, "nobody"),
        "unknown group and member, bad session": join(group, "nobody", session_ms=1),
        "no protocols": join(group, protocols=()),
        "no protocol type": join(group, protocol_type=""),
    }.items():
        session.ask(request, note=note)
    show(session, group)


@case("JoinGroup")
def protocols_that_do_not_fit(session: Session) -> None:
    group = ready_group(session)
    one = only_member(session, group)
    for note, options in {
        "another type": {"protocol_type": "connect"},
        "no common protocol": {"protocols": (("sticky", b"s"),)},
    }.items():
        session.ask(join(group, **options), note=note, on=note)  # type: ignore[arg-type]
        session.ask(join(group, one.id, **options), note=f"{note}, as a member", on=one.on)  # type: ignore[arg-type]
    session.ask(join(group, "nobody"), note="unknown member")
    show(session, group)


@case("JoinGroup")
def rejoin(session: Session) -> None:
    """The leader's rejoin starts a new generation, with whatever it now supports."""
    group = ready_group(session)
    one = only_member(session, group)
    session.ask(join(group, one.id), note="the leader, unchanged", on=one.on)
    session.ask(join(group, one.id, protocols=BOTH_WAYS), note="with one more protocol", on=one.on)
    session.ask(join(group, one.id, protocols=BOTH_WAYS[::-1]), note="in the other order", on=one.on)
    show(session, group)


@case("JoinGroup")
def two_members(session: Session) -> None:
    group = ready_group(session)
    one = only_member(session, group, protocols=BOTH_WAYS)
    two = new_id(session, group, "two", protocols=BOTH_WAYS[::-1])
    request = join(group, two, protocols=BOTH_WAYS[::-1])
    sent = session.send(request, on="two")
    wait_for_rebalance(session, group, one.id, one.generation)
    show(session, group, "while it rebalances")
    leader = session.ask(join(group, one.id, protocols=BOTH_WAYS), note="the leader", on=one.on)
    session.await_answer(request, sent, on="two", note="the follower")
    generation = leader.generation_id
    session.ask(request, note="the follower again, before any assignment", on="two")
    chosen = leader.protocol_name
    session.quiet(sync(group, one.id, generation, [(two, b"for two")], protocol_name=chosen), on=one.on)
    session.ask(request, note="the follower again, unchanged and stable", on="two")
    show(session, group)


def wait_for_rebalance(session: Session, group: str, member: str, generation: int) -> None:
    for _ in range(200):
        if session.quiet(beat(group, member, generation)).error_code == 27:
            return
        time.sleep(0.02)


@case("JoinGroup", first=5)
def static_member_returns(session: Session) -> None:
    group = ready_group(session)
    first = session.ask(join(group, instance="i"), note="first").member_id
    session.quiet(sync(group, first, 1, [(first, b"all")], instance="i"))
    show(session, group)
    second = session.ask(join(group, instance="i"), note="returns without its id").member_id
    show(session, group, "after it returned")
    session.ask(join(group, first, instance="i"), note="the id it had before")
    session.ask(join(group, "nobody", instance="i"), note="an unknown id")
    session.ask(join(group, second, instance="other"), note="an id and an unknown instance")
    changed = session.ask(join(group, instance="i", protocols=BOTH_WAYS), note="returns changed").member_id
    session.ask(join(group, changed, instance="i"), note="the id it has", on="own")
    show(session, group)


@case("JoinGroup", first=5)
def static_member_rejoins_while_completing(session: Session) -> None:
    group = ready_group(session)
    session.ask(join(group, instance="i"), note="first")
    session.ask(join(group, instance="i"), note="returns before it synced")
    show(session, group)


@case("JoinGroup", first=5)
def awaited_id_with_an_instance(session: Session) -> None:
    group = ready_group(session)
    member = new_id(session, group, "one")
    session.ask(join(group, member, instance="i"), note="a dynamic member's id, now static")
    show(session, group)


@case("JoinGroup", first=9)
def session_expires(session: Session) -> None:
    group = ready_group(session)
    one = only_member(session, group, session_ms=300)
    time.sleep(1.0)
    session.ask(beat(group, one.id, one.generation), version=4, note="beat after the session")
    show(session, group)
    only_member(session, group, "again", session_ms=300, rebalance_ms=200, synced=False)
    show(session, group, "completing")
    time.sleep(1.0)
    show(session, group, "nobody synced in time")


@case("JoinGroup", first=9)
def absent_member_is_left_behind(session: Session) -> None:
    group = ready_group(session)
    one = only_member(session, group, rebalance_ms=500)
    two = new_id(session, group, "two", rebalance_ms=500)
    session.ask(join(group, two, rebalance_ms=500), note="joins without the first", on="two")
    session.ask(beat(group, one.id, one.generation), version=4, note="the first one's beat")
    show(session, group)


@case("SyncGroup")
def leader_and_follower(session: Session) -> None:
    group = ready_group(session)
    one = only_member(session, group)
    two = start_rebalance(session, group)
    generation = session.quiet(join(group, one.id), on=one.on).generation_id
    session.connection("two").receive_frame()
    follower = sync(group, two, generation)
    sent = session.send(follower, on="two")
    session.ask(
        sync(group, one.id, generation, [(two, b"for two"), ("stranger", b"x")]), note="the leader", on=one.on
    )
    session.await_answer(follower, sent, on="two", note="the follower")
    session.ask(follower, note="the follower again", on="two")
    session.ask(sync(group, one.id, generation, [(one.id, b"late")]), note="the leader again", on=one.on)
    show(session, group)


@case("SyncGroup")
def sync_refused(session: Session) -> None:
    group = ready_group(session)
    one = only_member(session, group, synced=False)
    for note, request in {
        "empty group": sync("", one.id, 1),
        "unknown group": sync(session.name("none"), one.id, 1),
        "unknown member": sync(group, "nobody", 1),
        "empty member": sync(group, "", 1),
        "older generation": sync(group, one.id, 0),
        "newer generation": sync(group, one.id, 2),
        "null type and name": sync(group, one.id, 9, protocol_type=None, protocol_name=None),
        "empty type and name": sync(group, one.id, 1, protocol_type="", protocol_name=""),
        "another type": sync(group, one.id, 1, protocol_type="connect"),
        "another protocol": sync(group, one.id, 1, protocol_name="sticky"),
        "null type": sync(group, one.id, 1, protocol_type=None),
        "null name": sync(group, one.id, 1, protocol_name=None),
    }.items():
        session.ask(request, note=note)
    show(session, group)


@case("SyncGroup")
def sync_while_rebalancing_and_when_empty(session: Session) -> None:
    group = ready_group(session)
    awaited = new_id(session, group, "awaited")
    session.ask(sync(group, awaited, 0), note="an awaited member")
    one = only_member(session, group)
    start_rebalance(session, group)
    session.ask(sync(group, one.id, 1), note="while it rebalances")
    session.drop("two")
    other = ready_group(session, "b")
    gone = only_member(session, other, "gone")
    session.quiet(LeaveGroupRequest(group_id=other, members=[MemberIdentity(member_id=gone.id)]))
    session.ask(sync(other, gone.id, 1), note="when empty")


@case("SyncGroup", first=3)
def sync_static(session: Session) -> None:
    group = ready_group(session)
    one = only_member(session, group, instance="i", synced=False)
    session.ask(sync(group, one.id, 1, instance="other"), note="unknown instance")
    session.ask(sync(group, "nobody", 1, instance="i"), note="fenced")
    session.ask(sync(group, one.id, 1, [(one.id, b"all")], instance="i"), note="right")
    session.ask(sync(group, one.id, 1), note="without its instance")


@case("SyncGroup")
def sync_without_assignments(session: Session) -> None:
    group = ready_group(session)
    one = only_member(session, group, synced=False)
    session.ask(sync(group, one.id, 1), note="the leader, with nothing")
    show(session, group)


@case("Heartbeat")
def beats(session: Session) -> None:
    group = ready_group(session)
    awaited = new_id(session, group, "awaited")
    session.ask(beat(group, awaited, 0), note="an awaited member")
    one = only_member(session, group, synced=False)
    session.ask(beat(group, one.id, 1), note="completing")
    session.ask(beat(group, one.id, 0), note="completing, older generation")
    session.quiet(sync(group, one.id, 1), on=one.on)
    for note, request in {
        "stable": beat(group, one.id, 1),
        "older generation": beat(group, one.id, 0),
        "newer generation": beat(group, one.id, 2),
        "generation -1": beat(group, one.id, -1),
        "unknown member": beat(group, "nobody", 1),
        "empty member": beat(group, "", 1),
        "unknown group": beat(session.name("none"), one.id, 1),
        "empty group": beat("", one.id, 1),
    }.items():
        session.ask(request, note=note)
    start_rebalance(session, group)
    session.ask(beat(group, one.id, 1), note="rebalancing")
    session.ask(beat(group, one.id, 2), note="rebalancing, newer generation")
    session.quiet(LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id=one.id)]))
    session.ask(beat(group, one.id, 1), note="after it left")


@case("Heartbeat", first=3)
def beats_of_a_static_member(session: Session) -> None:
    group = ready_group(session)
    one = only_member(session, group, instance="i")
    session.ask(beat(group, one.id, 1, "i"), note="right")
    session.ask(beat(group, one.id, 1), note="without its instance")
    session.ask(beat(group, one.id, 1, "other"), note="unknown instance")
    session.ask(beat(group, "nobody", 1, "i"), note="fenced")
    session.ask(beat(group, "nobody", 9, "i"), note="fenced, newer generation")


@case("LeaveGroup")
def leaves(session: Session) -> None:
    group = ready_group(session)
    one = only_member(session, group)
    session.ask(leave(session, group, ("nobody", None)), note="unknown member")
    session.ask(leave(session, group, ("", None)), note="empty member")
    session.ask(leave(session, session.name("none"), (one.id, None)), note="unknown group")
    session.ask(leave(session, "", (one.id, None)), note="empty group")
    show(session, group, "still there")
    session.ask(leave(session, group, (one.id, None)), note="leaves")
    session.ask(leave(session, group, (one.id, None)), note="leaves again")
    show(session, group)


@case("LeaveGroup")
def awaited_member_leaves(session: Session) -> None:
    group = ready_group(session)
    member = new_id(session, group, "one")
    session.ask(leave(session, group, (member, None)), note="an awaited member")
    session.ask(join(group, member), note="then it joins", version=9)
    show(session, group)


@case("LeaveGroup")
def leaves_during_a_rebalance(session: Session) -> None:
    """The one who was waited for leaves: the rebalance ends without it."""
    group = ready_group(session)
    one = only_member(session, group)
    start_rebalance(session, group)
    session.ask(leave(session, group, (one.id, None)), note="leaves")
    session.connection("two").receive_frame()
    show(session, group)


@case("LeaveGroup", first=3)
def several_leave(session: Session) -> None:
    group = ready_group(session)
    one = only_member(session, group, instance="i")
    session.ask(LeaveGroupRequest(group_id=group, members=[]), note="nobody")
    session.ask(
        leave(session, group, ("", "other"), ("", None), ("nobody", "i"), ("nobody", None)), note="all wrong"
    )
    session.ask(
        leave(session, group, ("nobody", "other"), (one.id, "i"), (one.id, "i")),
        note="one right, named twice",
    )
    show(session, group)


@case("LeaveGroup", first=3)
def static_member_leaves_by_instance(session: Session) -> None:
    group = ready_group(session)
    only_member(session, group, instance="i")
    session.ask(leave(session, group, ("", "i")), note="by its instance alone")
    show(session, group)
    session.ask(leave(session, "", ("", "i")), note="empty group")
    session.ask(leave(session, session.name("none"), ("", "i"), ("m", None)), note="unknown group")
