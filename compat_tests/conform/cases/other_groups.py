"""Share groups and groups of other kinds: what each API answers to a group that is not of its kind."""

from __future__ import annotations

from typing import Any

from barnabas.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.heartbeat import HeartbeatRequest
from barnabas.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from barnabas.wire.messages.list_groups import ListGroupsRequest
from barnabas.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from barnabas.wire.messages.share_group_describe import ShareGroupDescribeRequest
from barnabas.wire.messages.streams_group_describe import StreamsGroupDescribeRequest
from barnabas.wire.messages.sync_group import SyncGroupRequest
from barnabas.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from compat_tests.conform.case import case
from compat_tests.conform.cases import consumer_groups, streams_groups
from compat_tests.conform.cases.consumer_groups import commit, new_group
from compat_tests.conform.cases.groups import join_request
from compat_tests.conform.cases.share_group_offsets import alter_request, delete_request, describe_request
from compat_tests.conform.cases.share_groups import describe, first, next_one
from compat_tests.conform.session import Session, Topic
from compat_tests.conform.transactional import Producer

STATES = ("with a member", "empty")


def share_groups(session: Session) -> list[tuple[str, str]]:
    """(state, name) of a share group with a member `a` in epoch 1, and of an empty one."""
    missing = session.name("missing")
    full, empty = new_group(session, "full"), new_group(session, "empty")
    for group in (full, empty):
        session.quiet(first(group, "a", missing))
    session.quiet(next_one(empty, "a", -1))
    return list(zip(STATES, (full, empty), strict=True))


@case("JoinGroup")
def of_share_groups(session: Session) -> None:
    for state, group in share_groups(session):
        session.ask(join_request(group), note=f"{state}, a new member")
        session.ask(join_request(group, "a"), note=f"{state}, its member")
        session.ask(join_request(group, protocol_type="share"), note=f"{state}, protocol type share")
        describe(session, group, state)


@case("SyncGroup")
def of_share_groups_synced(session: Session) -> None:
    for state, group in share_groups(session):
        session.ask(SyncGroupRequest(group, 1, "a", None, "consumer", "range"), note=state)


@case("Heartbeat")
def of_share_groups_alive(session: Session) -> None:
    for state, group in share_groups(session):
        session.ask(HeartbeatRequest(group, 1, "a"), note=state)


@case("LeaveGroup")
def of_share_groups_left(session: Session) -> None:
    for state, group in share_groups(session):
        session.ask(LeaveGroupRequest(group, "a", [MemberIdentity("a")]), note=state)
        describe(session, group, f"{state}: described")


@case("OffsetCommit")
def commits_to_share_groups(session: Session) -> None:
    topic = session.create_topic("t")
    for state, group in share_groups(session):
        session.ask(commit(topic, group, "a", 1, 0), note=f"{state}, its member")
        session.ask(commit(topic, group, "", -1, 0), note=f"{state}, no member")
        session.ask(commit(topic, group, "b", 7, 0), note=f"{state}, an unknown one")


@case("TxnOffsetCommit")
def commits_to_share_groups_in_a_transaction(session: Session) -> None:
    topic, producer = session.create_topic("t"), Producer(session, "txn")
    for state, group in share_groups(session):
        for note, member, epoch in (("its member", "a", 1), ("no member", "", -1)):
            named = TxnOffsetCommitRequestTopic(topic.name, [TxnOffsetCommitRequestPartition(0, 1)])
            request = TxnOffsetCommitRequest(
                producer.transactional_id, group, producer.id, producer.epoch, epoch, member, None, [named]
            )
            session.ask(request, note=f"{state}, {note}")


@case("OffsetFetch")
def from_share_groups(session: Session) -> None:
    topic = session.create_topic("t")
    old = [OffsetFetchRequestTopic(topic.name, [0])]
    new = [OffsetFetchRequestTopics(topic.name, topic.id, [0])]
    for state, group in share_groups(session):
        for note, of_old, of_new in (("one topic", old, new), ("all", None, None)):
            if of_old is None and session.version < 2:
                continue
            for stable in (False, True) if session.version >= 7 else (False,):
                wanted = OffsetFetchRequestGroup(group_id=group, topics=of_new)
                request = OffsetFetchRequest(group, of_old, [wanted], stable)
                session.ask(request, note=f"{state}, {note}{', stable' if stable else ''}")
        if session.version >= 9:
            wanted = OffsetFetchRequestGroup(group, "a", 1, new)
            session.ask(OffsetFetchRequest(groups=[wanted]), note=f"{state}, its member")


@case("OffsetDelete")
def of_share_groups_deleted(session: Session) -> None:
    topics = [OffsetDeleteRequestTopic(session.create_topic("t").name, [OffsetDeleteRequestPartition(0)])]
    for state, group in share_groups(session):
        session.ask(OffsetDeleteRequest(group, topics), note=state)


@case("DescribeGroups")
def share_groups_as_classic_ones(session: Session) -> None:
    for state, group in share_groups(session):
        session.ask(DescribeGroupsRequest([group, session.name("missing")]), note=state)


@case("ListGroups")
def share_groups_listed(session: Session) -> None:
    groups = {group for _, group in share_groups(session)}

    def listed(note: str, **filters: Any) -> None:
        answer = session.connection().ask(ListGroupsRequest(**filters), session.version)
        own = [each for each in answer.groups if each.group_id in groups]
        session.record(note, [answer.error_code, session.names.tree(own)])

    listed("all")
    if session.version >= 4:
        for states in (["stable"], ["EMPTY"], ["Dead"], ["Assigning"], ["Stable", "empty"], ["nothing"]):
            listed(f"{states}", states_filter=states)
    if session.version >= 5:
        for types in (["share"], ["Share"], ["SHARE", "classic"], ["consumer"], ["streams"], ["nothing"]):
            listed(f"{types}", types_filter=types)
            listed(f"{types}, empty", types_filter=types, states_filter=["Empty"])


@case("FindCoordinator")
def of_share_groups_found(session: Session) -> None:
    for state, group in share_groups(session):
        session.ask(FindCoordinatorRequest(group, 0, [group]), note=state)


@case("ConsumerGroupHeartbeat")
def consumers_of_share_groups(session: Session) -> None:
    topic = session.create_topic("t").name
    for state, group in share_groups(session):
        session.ask(consumer_groups.first(group, "c", topic), note=f"{state}, joins")
        session.ask(consumer_groups.first(group, "a", topic), note=f"{state}, its member joins")
        session.ask(consumer_groups.next_one(group, "a", 1), note=f"{state}, its member")
        session.ask(consumer_groups.next_one(group, "a", -1), note=f"{state}, its member leaves")
        session.ask(ConsumerGroupDescribeRequest([group]), version=1, note=f"{state}, described")
        describe(session, group, state)


@case("StreamsGroupHeartbeat")
def streams_of_share_groups(session: Session) -> None:
    topology = streams_groups.reads(session.create_topic("t").name)
    for state, group in share_groups(session):
        session.ask(streams_groups.first(group, "c", topology), note=f"{state}, joins")
        session.ask(streams_groups.next_one(group, "a", 1), note=f"{state}, its member")
        session.ask(streams_groups.next_one(group, "a", -1), note=f"{state}, its member leaves")
        session.ask(StreamsGroupDescribeRequest([group]), version=0, note=f"{state}, described")
        describe(session, group, state)


def others(session: Session, topic: Topic) -> list[tuple[str, str]]:
    """(kind, name) of groups of the other kinds, with a member `a` or empty."""
    found = [
        (kind, new_group(session, kind.replace(" ", "-")))
        for kind in ("classic", "offsets alone", "consumer", "empty consumer", "streams", "empty streams")
    ]
    of = dict(found)
    session.quiet(join_request(of["classic"]), version=3, on="member")
    session.quiet(commit(topic, of["offsets alone"], "", -1, 0), version=9)
    for kind in ("consumer", "empty consumer"):
        session.quiet(consumer_groups.first(of[kind], "a", topic.name))
    session.quiet(consumer_groups.next_one(of["empty consumer"], "a", -1))
    for kind in ("streams", "empty streams"):
        session.quiet(streams_groups.first(of[kind], "a", streams_groups.reads(topic.name)))
    session.quiet(streams_groups.next_one(of["empty streams"], "a", -1))
    return found


@case("ShareGroupHeartbeat")
def to_other_groups(session: Session) -> None:
    topic = session.create_topic("t")
    for kind, group in others(session, topic):
        session.ask(first(group, "s", topic.name), note=f"{kind}, joins")
        session.ask(next_one(group, "a", 1), note=f"{kind}, its member")
        session.ask(next_one(group, "a", -1), note=f"{kind}, its member leaves")


@case("ShareGroupDescribe")
def of_other_groups(session: Session) -> None:
    for kind, group in others(session, session.create_topic("t")):
        session.ask(ShareGroupDescribeRequest([group], True), note=kind)


@case("DescribeShareGroupOffsets")
def offsets_of_other_groups(session: Session) -> None:
    topic = session.create_topic("t")
    for kind, group in others(session, topic):
        session.ask(describe_request(group), note=f"{kind}, all")
        session.ask(describe_request(group, (topic, [0])), note=kind)


@case("AlterShareGroupOffsets")
def alters_offsets_of_other_groups(session: Session) -> None:
    topic = session.create_topic("t")
    for kind, group in others(session, topic):
        session.ask(alter_request(group, (topic, 0, 1)), note=kind)
        session.ask(alter_request(group), note=f"{kind}, nothing")


@case("DeleteShareGroupOffsets")
def deletes_offsets_of_other_groups(session: Session) -> None:
    topic = session.create_topic("t")
    for kind, group in others(session, topic):
        session.ask(delete_request(group, topic), note=kind)
        session.ask(delete_request(group), note=f"{kind}, nothing")
