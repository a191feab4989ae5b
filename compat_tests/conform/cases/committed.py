"""OffsetCommit, OffsetFetch, OffsetDelete: what is kept, what is refused, and what is told about it."""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from barnabas.wire.messages.offset_commit import OffsetCommitRequest
from barnabas.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from barnabas.wire.messages.offset_fetch import OffsetFetchRequest

from compat_tests.conform.case import case
from compat_tests.conform.cases.group_requests import (
    only_member,
    ready_group,
    show,
    start_rebalance,
    subscription,
)
from compat_tests.conform.cases.offset_requests import UNKNOWN, commit, fetch_offsets
from compat_tests.conform.session import Session, Topic


def show_offsets(session: Session, group: str, note: str = "the offsets now") -> None:
    """Record everything the group has committed."""
    session.ask(fetch_offsets(9, group), version=9, note=note)


@case("OffsetCommit")
def commits_by_anyone(session: Session) -> None:
    group, topic = ready_group(session), session.create_topic(partitions=2)
    for note, request in {
        "two partitions": commit(group, topic, partitions=(0, 1)),
        "a lower offset": commit(group, topic, offset=1),
        "offset 0, no metadata": commit(group, topic, offset=0, metadata=""),
        "null metadata": commit(group, topic, metadata=None),
        "negative offset": commit(group, topic, partitions=(1,), offset=-1),
        "very negative offset": commit(group, topic, partitions=(1,), offset=-100),
        "leader epoch": commit(group, topic, leader_epoch=7),
        "one partition twice": commit(group, topic, partitions=(1, 1), offset=8),
        "one topic twice": commit(group, topic, topic, offset=9),
        "no topics": commit(group),
        "no partitions": commit(group, topic, partitions=()),
    }.items():
        session.ask(request, note=note)
        show_offsets(session, group)
    show(session, group)


@case("OffsetCommit")
def commit_refused(session: Session) -> None:
    group, topic = ready_group(session), session.create_topic(partitions=2)
    for note, request in {
        "empty group": commit("", topic),
        "empty group, unknown topic": commit("", UNKNOWN),
        "unknown topic": commit(group, UNKNOWN),
        "unknown partition": commit(group, topic, partitions=(9,)),
        "negative partition": commit(group, topic, partitions=(-1,)),
        "known and unknown": commit(group, UNKNOWN, topic, partitions=(0, 9)),
        "metadata too long": commit(group, topic, metadata="x" * 4097),
        "metadata just fits": commit(group, topic, metadata="x" * 4096),
        "generation without a group": commit(session.name("none"), topic, generation=1, member="m"),
        "member without a group": commit(session.name("none"), topic, member="m"),
        "generation 0, no group": commit(session.name("none"), topic, generation=0),
        "member of a group without members": commit(group, topic, generation=1, member="m"),
    }.items():
        session.ask(request, note=note)
    show_offsets(session, group)
    show_offsets(session, session.name("none"))


@case("OffsetCommit")
def commits_of_a_member(session: Session) -> None:
    group, topic = ready_group(session), session.create_topic()
    one = only_member(session, group, synced=False)
    session.ask(commit(group, topic, generation=1, member=one.id), note="completing")
    other = ready_group(session, "b")
    two = only_member(session, other, "two-one")
    for note, request in {
        "right": commit(other, topic, generation=1, member=two.id),
        "older generation": commit(other, topic, generation=0, member=two.id),
        "newer generation": commit(other, topic, generation=2, member=two.id),
        "unknown member": commit(other, topic, generation=1, member="nobody"),
        "no member": commit(other, topic),
        "no generation": commit(other, topic, member=two.id),
        "generation alone": commit(other, topic, generation=1),
        "wrong generation, unknown topic": commit(other, UNKNOWN, generation=9, member=two.id),
        "right, known and unknown": commit(other, UNKNOWN, topic, offset=6, generation=1, member=two.id),
    }.items():
        session.ask(request, note=note)
    start_rebalance(session, other)
    session.ask(commit(other, topic, offset=7, generation=1, member=two.id), note="while it rebalances")
    session.quiet(LeaveGroupRequest(group_id=other, members=[MemberIdentity(member_id=two.id)]))
    session.ask(commit(other, topic, generation=1, member=two.id), note="after it left")
    show_offsets(session, other)


@case("OffsetCommit")
def commits_to_an_emptied_group(session: Session) -> None:
    group, topic = ready_group(session), session.create_topic()
    one = only_member(session, group)
    session.quiet(LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id=one.id)]))
    session.ask(commit(group, topic), note="anyone")
    session.ask(commit(group, topic, generation=1, member=one.id), note="who left")
    session.ask(commit(group, topic, generation=2, member=one.id), note="who left, next generation")
    show_offsets(session, group)


@case("OffsetCommit", first=7)
def commits_of_a_static_member(session: Session) -> None:
    group, topic = ready_group(session), session.create_topic()
    one = only_member(session, group, instance="i")
    for note, request in {
        "right": commit(group, topic, generation=1, member=one.id, instance="i"),
        "unknown instance": commit(group, topic, generation=1, member=one.id, instance="other"),
        "fenced": commit(group, topic, generation=1, member="nobody", instance="i"),
        "without its instance": commit(group, topic, generation=1, member=one.id),
    }.items():
        session.ask(request, note=note)


@case("OffsetCommit", first=2, last=4)
def commits_with_retention(session: Session) -> None:
    group, topic = ready_group(session), session.create_topic()
    session.ask(commit(group, topic, retention_ms=3_600_000), note="an hour")
    session.ask(commit(group, topic, retention_ms=0, offset=6), note="zero")
    show_offsets(session, group)


@case("OffsetCommit", first=10)
def commits_by_zero_id(session: Session) -> None:
    group, topic = ready_group(session), session.create_topic()
    session.ask(commit(group, Topic(topic.name, bytes(16))), note="zero id")
    session.ask(commit(group, Topic(topic.name, bytes(16)), topic), note="zero id and a right one")
    session.ask(OffsetCommitRequest(group_id=group), note="nothing at all")


@case("OffsetFetch")
def fetches_each_kind(session: Session) -> None:
    version = session.version
    group, topic = ready_group(session), session.create_topic(partitions=3)
    other = session.create_topic("b")
    session.quiet(commit(group, topic, partitions=(0, 2), offset=4), version=9)
    session.quiet(commit(group, other, offset=8, metadata="", leader_epoch=-1), version=9)
    for note, request in {
        "all kinds": fetch_offsets(
            version, group, topics=[topic, UNKNOWN, other], partitions=(0, 1, 2, 9, -1)
        ),
        "one partition twice": fetch_offsets(version, group, topics=[topic], partitions=(0, 0)),
        "no partitions": fetch_offsets(version, group, topics=[topic], partitions=()),
        "no topics": fetch_offsets(version, group, topics=[]),
        "unknown group": fetch_offsets(version, session.name("none"), topics=[topic, UNKNOWN]),
        "empty group": fetch_offsets(version, "", topics=[topic]),
    }.items():
        session.ask(request, note=note)
    if version >= 2:
        session.ask(fetch_offsets(version, group), note="everything")
        session.ask(fetch_offsets(version, session.name("none")), note="everything of an unknown group")
        session.ask(fetch_offsets(version, ""), note="everything of the empty group")
    if version >= 7:
        session.ask(fetch_offsets(version, group, topics=[topic], require_stable=True), note="stable only")
        session.ask(fetch_offsets(version, group, require_stable=True), note="everything stable")


@case("OffsetFetch", first=8)
def fetches_of_several_groups(session: Session) -> None:
    version = session.version
    topic = session.create_topic()
    groups = [ready_group(session, suffix) for suffix in ("a", "b")]
    for offset, group in enumerate(groups):
        session.quiet(commit(group, topic, offset=offset), version=9)
    session.ask(
        fetch_offsets(version, *groups, session.name("none"), "", topics=[topic]), note="one topic of each"
    )
    session.ask(fetch_offsets(version, *groups, session.name("none")), note="everything of each")
    session.ask(OffsetFetchRequest(), note="of none")


@case("OffsetFetch", first=9)
def fetches_of_a_member(session: Session) -> None:
    version = session.version
    group, topic = ready_group(session), session.create_topic()
    one = only_member(session, group)
    session.quiet(commit(group, topic, generation=1, member=one.id), version=9)
    for note, member, epoch in (
        ("right", one.id, 1),
        ("wrong epoch", one.id, 7),
        ("unknown member", "nobody", 1),
        ("empty member", "", -1),
        ("no epoch", one.id, -1),
    ):
        session.ask(
            fetch_offsets(version, group, topics=[topic], member=member, member_epoch=epoch), note=note
        )
        session.ask(
            fetch_offsets(version, group, member=member, member_epoch=epoch), note=f"{note}, everything"
        )


@case("OffsetFetch")
def fetches_after_the_topic_is_gone(session: Session) -> None:
    """Deleting a topic deletes what was committed for it, a moment later."""
    version = session.version
    group, topic, kept = ready_group(session), session.create_topic(), session.create_topic("kept")
    session.quiet(commit(group, topic, kept), version=9)
    session.delete_topic(topic)
    for _ in range(100):
        left = session.quiet(fetch_offsets(9, group), version=9).groups[0].topics
        if len(left) == 1:
            break
    session.ask(fetch_offsets(version, group, topics=[topic, kept]), note="both")
    if version >= 2:
        session.ask(fetch_offsets(version, group), note="everything")


def delete(group: str, *topics: Topic, partitions: Sequence[int] = (0,)) -> OffsetDeleteRequest:
    wanted = [OffsetDeleteRequestPartition(partition_index=index) for index in partitions]
    return OffsetDeleteRequest(
        group_id=group,
        topics=[OffsetDeleteRequestTopic(name=topic.name, partitions=wanted) for topic in topics],
    )


@case("OffsetDelete")
def deletes_of_an_empty_group(session: Session) -> None:
    group, topic = ready_group(session), session.create_topic(partitions=3)
    session.quiet(commit(group, topic, partitions=(0, 1, 2)), version=9)
    none = session.name("none")
    for note, request in {
        "one": delete(group, topic),
        "again": delete(group, topic),
        "known and unknown": delete(group, topic, UNKNOWN, partitions=(1, 9)),
        "no topics": delete(group),
        "no partitions": delete(group, topic, partitions=()),
        "unknown group": delete(none, topic),
        "unknown group and topic": delete(none, UNKNOWN),
        "unknown group, no topics": delete(none),
        "empty group": delete("", topic),
    }.items():
        session.ask(request, note=note)
        show_offsets(session, group)
    session.ask(delete(group, topic, partitions=(2,)), note="the last one")
    show(session, group)


@case("OffsetDelete")
def deletes_of_a_group_with_members(session: Session) -> None:
    group, topic, other = ready_group(session), session.create_topic(), session.create_topic("b")
    one = only_member(session, group, protocols=[("range", subscription(topic.name))])
    session.quiet(commit(group, topic, other, generation=1, member=one.id), version=9)
    session.ask(delete(group, topic, other, UNKNOWN), note="subscribed, not subscribed, unknown")
    show_offsets(session, group)
    session.quiet(LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id=one.id)]))
    session.ask(delete(group, topic), note="when empty")
    show_offsets(session, group)


@case("OffsetDelete")
def deletes_of_groups_that_tell_nothing(session: Session) -> None:
    """Without a readable subscription, or of another kind, every topic counts as subscribed."""
    topic = session.create_topic()
    for suffix, protocol_type, data in (
        ("garbled", "consumer", b"\x00"),
        ("nothing", "consumer", b""),
        ("connect", "connect", b"x"),
    ):
        group = ready_group(session, suffix)
        one = only_member(session, group, suffix, protocol_type=protocol_type, protocols=[("range", data)])
        session.quiet(commit(group, topic, generation=1, member=one.id), version=9)
        session.ask(delete(group, topic), note=suffix)
        show_offsets(session, group)
