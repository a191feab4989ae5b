"""Streams groups (KIP-1071): StreamsGroupHeartbeat, StreamsGroupDescribe, and their offsets."""

from __future__ import annotations

from typing import Any

from barnabas.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from barnabas.wire.messages.delete_groups import DeleteGroupsRequest
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from barnabas.wire.messages.list_groups import ListGroupsRequest
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from barnabas.wire.messages.streams_group_describe import StreamsGroupDescribeRequest
from barnabas.wire.messages.streams_group_heartbeat import (
    CopartitionGroup,
    Endpoint,
    KeyValue,
    StreamsGroupHeartbeatRequest,
    Subtopology,
    TaskIds,
    TaskOffset,
    TopicInfo,
    Topology,
)
from compat_tests.conform.case import case
from compat_tests.conform.cases.consumer_groups import new_group
from compat_tests.conform.cases.groups import join_request
from compat_tests.conform.session import Session
from compat_tests.harness.eventually import eventually

HEARTBEAT = "StreamsGroupHeartbeat"
DESCRIBE = "StreamsGroupDescribe"
NOTHING: dict[str, Any] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}


def reads(*topics: str, epoch: int = 0, **fields: Any) -> Topology:
    """One subtopology that reads these topics."""
    return Topology(epoch, [subtopology("0", *topics, **fields)])


def subtopology(name: str, *topics: str, **fields: Any) -> Subtopology:
    given: dict[str, Any] = {
        "source_topic_regex": [],
        "state_changelog_topics": [],
        "repartition_sink_topics": [],
        "repartition_source_topics": [],
        "copartition_groups": [],
        **fields,
    }
    return Subtopology(subtopology_id=name, source_topics=list(topics), **given)


def internal(name: str, partitions: int = 0, replication_factor: int = 1) -> TopicInfo:
    return TopicInfo(name, partitions, replication_factor, [KeyValue("cleanup.policy", "compact")])


def first(group: str, member: str, topology: Topology | None, **options: Any) -> StreamsGroupHeartbeatRequest:
    given: dict[str, Any] = {
        "endpoint_information_epoch": 0,
        "rebalance_timeout_ms": 60_000,
        "process_id": f"process of {member}",
        "client_tags": [],
        **NOTHING,
        **options,
    }
    return StreamsGroupHeartbeatRequest(group, member, 0, topology=topology, **given)


def next_one(group: str, member: str, epoch: int, **options: Any) -> StreamsGroupHeartbeatRequest:
    given = {"endpoint_information_epoch": 0, **options}
    return StreamsGroupHeartbeatRequest(group, member, epoch, **given)


def owning(*partitions: int, standby: tuple[int, ...] = ()) -> dict[str, Any]:
    return {
        "active_tasks": [TaskIds("0", list(partitions))] if partitions else [],
        "standby_tasks": [TaskIds("0", list(standby))] if standby else [],
        "warmup_tasks": [],
    }


def describe(session: Session, group: str, note: str) -> None:
    session.ask(StreamsGroupDescribeRequest([group]), version=0, note=note)


def await_topics(session: Session, group: str, epoch: int) -> None:
    """Until the coordinator knows that all topics exist."""

    def is_ready() -> bool:
        nonlocal epoch
        answer = session.quiet(next_one(group, "one", epoch), version=0)
        epoch = answer.member_epoch
        return not answer.status

    eventually(is_ready)


@case(HEARTBEAT)
def one_member(session: Session) -> None:
    topic, group = session.create_topic("t", partitions=4), new_group(session)
    epoch = session.ask(first(group, "one", reads(topic.name)), note="join").member_epoch
    describe(session, group, "joined")
    session.ask(next_one(group, "one", epoch), note="nothing new")
    session.ask(next_one(group, "one", epoch, **owning(0, 1, 2, 3)), note="owns all")
    session.ask(next_one(group, "one", epoch, **owning(7)), note="owns a task that is not there")
    other = {"active_tasks": [TaskIds("1", [0])], "standby_tasks": [], "warmup_tasks": []}
    session.ask(next_one(group, "one", epoch, **other), note="owns one of no subtopology")
    session.ask(next_one(group, "one", epoch, process_id="other"), note="another process")
    session.ask(first(group, "one", reads(topic.name)), note="joins again")
    session.ask(first(group, "one", reads(topic.name, "other")), note="another topology")
    session.ask(first(group, "one", reads(topic.name, epoch=1)), note="a later topology")
    describe(session, group, "with all")
    session.ask(next_one(group, "one", -1), note="leaves")
    describe(session, group, "empty")
    session.ask(next_one(group, "one", epoch), note="after it left")
    session.ask(first(group, "one", reads(topic.name)), note="joins the empty group")


@case(HEARTBEAT)
def refused(session: Session) -> None:
    group, topic = new_group(session), session.create_topic("t")
    topology = reads(topic.name)
    session.ask(first("", "one", topology), note="no group")
    session.ask(first(group, "", topology), note="no member")
    session.ask(first(group, "one", topology, instance_id="i"), note="static")
    session.ask(first(group, "one", topology, instance_id=""), note="empty instance")
    session.ask(first(group, "one", topology, rack_id=""), note="empty rack")
    session.ask(first(group, "one", topology, task_offsets=[]), note="task offsets")
    session.ask(first(group, "one", topology, task_end_offsets=[TaskOffset("0", 0, 0)]), note="end offsets")
    session.ask(first(group, "one", topology, warmup_tasks=[TaskIds("0", [0])]), note="warm-up tasks")
    session.ask(first(group, "one", reads("t", source_topic_regex=["a.*"])), note="regular expression")
    session.ask(first(group, "one", topology, rebalance_timeout_ms=-1), note="no rebalance timeout")
    for name in NOTHING:
        session.ask(first(group, "one", topology, **{name: None}), note=f"{name} null")
    session.ask(first(group, "one", topology, active_tasks=[TaskIds("0", [0])]), note="active tasks")
    session.ask(first(group, "one", topology, standby_tasks=[TaskIds("0", [0])]), note="standby tasks")
    session.ask(first(group, "one", None), note="no topology")
    changelog = reads(topic.name, state_changelog_topics=[internal("changelog", 3)])
    session.ask(first(group, "one", changelog), note="changelog with partitions")
    session.ask(first(group, "one", reads("__consumer_offsets")), note="internal topic")
    session.ask(first(group, "one", reads("a b", "c")), note="bad name")
    session.ask(first(group, "one", reads()), note="no sources")
    session.ask(first(group, "one", Topology(0, [])), note="no subtopologies")
    session.ask(first(group, "one", reads(topic.name, epoch=-1)), note="negative epoch")
    twice = Topology(0, [subtopology("0", topic.name), subtopology("0", topic.name)])
    session.ask(first(group, "one", twice), note="one id twice")
    out_of_range = reads(topic.name, copartition_groups=[CopartitionGroup([3], [], [])])
    session.ask(first(group, "one", out_of_range), note="index out of range")
    unfed = reads(topic.name, repartition_source_topics=[internal("r")])
    session.ask(first(group, "one", unfed), note="repartition topic without a sink")
    loop = [subtopology("0", repartition_sink_topics=["r"], repartition_source_topics=[internal("r")])]
    session.ask(first(group, "one", Topology(0, loop)), note="loop")
    session.ask(next_one(group, "one", 1), note="no such group")
    session.ask(next_one(group, "one", -1), note="no such group, leaves")
    session.ask(next_one(group, "one", -2), note="-2")
    session.ask(next_one(group, "one", -3), note="-3")
    session.ask(next_one(group, "one", 1, active_tasks=[]), note="some lists")
    session.ask(next_one(group, "one", 1, topology=topology), note="topology later")
    session.ask(first(group, "one", topology), note="joins")
    session.ask(next_one(group, "two", 1), note="unknown member")
    session.ask(next_one(group, "two", -1), note="unknown member leaves")
    session.ask(ConsumerGroupHeartbeatRequest(group, "c", 1), version=1, note="a consumer")
    describe(session, group, "stays")


@case(HEARTBEAT)
def epochs(session: Session) -> None:
    topic, group = session.create_topic("t", partitions=4), new_group(session)
    topology = reads(topic.name)
    one = session.ask(first(group, "a", topology), note="a joins").member_epoch
    session.ask(next_one(group, "a", one + 1), note="a greater epoch")
    two = session.ask(first(group, "b", topology), note="b joins").member_epoch
    describe(session, group, "b waits")
    session.ask(next_one(group, "a", one, **owning(0, 1, 2, 3)), note="a is to revoke")
    describe(session, group, "a revokes")
    session.ask(next_one(group, "a", one), note="a, owned null")
    session.ask(next_one(group, "b", two), note="b waits")
    session.ask(next_one(group, "a", one, **owning(0, 1)), note="a has revoked")
    session.ask(next_one(group, "a", one), note="a, the epoch before, owned null")
    session.ask(next_one(group, "a", one, **owning(0)), note="a, the epoch before")
    session.ask(
        next_one(group, "a", one, **owning(0, 3)), note="a, the epoch before, with one that it has not"
    )
    session.ask(next_one(group, "b", two, **owning()), note="b gets its own")
    describe(session, group, "stable")
    session.ask(next_one(group, "b", two, shutdown_application=True), note="b asks all to end")
    session.ask(next_one(group, "a", two), note="a hears of it")
    session.ask(next_one(group, "b", -1, shutdown_application=True), note="b leaves")
    session.ask(next_one(group, "a", two), note="a gets all")
    describe(session, group, "a alone")


@case(HEARTBEAT)
def missing_topics(session: Session) -> None:
    group, source, changelog = new_group(session), session.name("source"), session.name("changelog")
    topology = reads(source, epoch=3, state_changelog_topics=[internal(changelog)])
    epoch = session.ask(first(group, "one", topology), note="no source").member_epoch
    describe(session, group, "not ready")
    session.create_topic("source", partitions=3)
    epoch = session.ask(next_one(group, "one", epoch), note="with the source").member_epoch
    await_topics(session, group, epoch)
    session.ask(first(group, "one", topology), note="with all topics")
    describe(session, group, "ready")
    session.ask(first(group, "two", Topology(2, topology.subtopologies)), note="an older topology")


@case(HEARTBEAT)
def repartition_topic(session: Session) -> None:
    group, source = new_group(session), session.create_topic("source", partitions=2)
    name = session.name("repartition")
    writer = subtopology("0", source.name, repartition_sink_topics=[name])
    reader = subtopology("1", repartition_source_topics=[internal(name, replication_factor=0)])
    epoch = session.ask(first(group, "one", Topology(0, [writer, reader])), note="without it").member_epoch
    await_topics(session, group, epoch)
    session.ask(first(group, "one", Topology(0, [writer, reader])), note="with it")
    describe(session, group, "ready")


@case(HEARTBEAT)
def partitions(session: Session) -> None:
    """Topics whose numbers of partitions don't fit."""
    a, b = session.create_topic("a", partitions=2), session.create_topic("b", partitions=3)
    joined = [CopartitionGroup([0, 1], [], [])]
    session.ask(
        first(new_group(session, "g1"), "m", reads(a.name, b.name, copartition_groups=joined)), note="joined"
    )
    session.ask(first(new_group(session, "g2"), "m", reads(a.name, b.name)), note="not joined")
    changelog = reads(b.name, state_changelog_topics=[internal(a.name)])
    session.ask(first(new_group(session, "g3"), "m", changelog), note="changelog with other partitions")
    fixed = reads(
        a.name,
        repartition_sink_topics=["r"],
        repartition_source_topics=[internal("r", 5)],
        copartition_groups=[CopartitionGroup([0], [], [0])],
    )
    session.ask(first(new_group(session, "g4"), "m", fixed), note="repartition topic with other partitions")
    stateful = reads(b.name, state_changelog_topics=[internal(session.create_topic("c", partitions=3).name)])
    group = new_group(session, "g5")
    endpoint = {"user_endpoint": Endpoint("host", 99), "client_tags": [KeyValue("k", "v")], "rack_id": "r"}
    epoch = session.ask(
        first(group, "m", stateful, **endpoint), note="stateful, with an endpoint"
    ).member_epoch
    session.ask(next_one(group, "m", epoch), note="endpoints")
    session.ask(next_one(group, "m", epoch, process_id="other"), note="another process")
    describe(session, group, "stateful")


@case(DESCRIBE)
def others(session: Session) -> None:
    topic, group, classic = session.create_topic("t"), new_group(session), new_group(session, "classic")
    session.ask(first(group, "one", reads(topic.name)), version=0, note="join")
    session.ask(StreamsGroupDescribeRequest([group, "missing", "", group], True), note="several")
    session.ask(StreamsGroupDescribeRequest([]), note="none")
    listed = session.connection().ask(
        ListGroupsRequest(types_filter=["Streams"], states_filter=["stable"]), 5
    )
    session.record("list", [each for each in listed.groups if each.group_id == group])
    session.ask(DescribeGroupsRequest([group]), version=6, note="as a classic group")
    session.ask(DescribeGroupsRequest([group]), version=5, note="as a classic group, v5")
    session.ask(join_request(group), version=9, note="classic join")
    session.ask(
        OffsetCommitRequest(classic, -1, "", topics=_committed(topic.name, 1)), version=9, note="simple"
    )
    session.ask(StreamsGroupDescribeRequest([classic]), note="a simple group")
    session.ask(first(classic, "m", reads(topic.name)), version=0, note="the simple group becomes one")
    describe(session, classic, "converted")
    session.ask(DeleteGroupsRequest([group, classic]), version=2, note="not empty")
    session.ask(next_one(group, "one", -1), version=0, note="leaves")
    session.ask(DeleteGroupsRequest([group]), version=2, note="empty")
    describe(session, group, "deleted")


def _committed(topic: str, offset: int) -> list[OffsetCommitRequestTopic]:
    return [OffsetCommitRequestTopic(topic, partitions=[OffsetCommitRequestPartition(0, offset)])]


@case(HEARTBEAT)
def offsets(session: Session) -> None:
    topic, group = session.create_topic("t", partitions=2), new_group(session)
    other = session.create_topic("u")
    topology = reads(topic.name)
    session.ask(first(group, "a", topology), note="a joins")
    epoch = session.ask(next_one(group, "a", 0, rebalance_timeout_ms=1), note="a, 0").member_epoch

    def commit(member: str, member_epoch: int, name: str, note: str, version: int = 9) -> None:
        request = OffsetCommitRequest(group, member_epoch, member, topics=_committed(name, 5))
        session.ask(request, version=version, note=note)

    session.ask(first(group, "a", topology, process_id="p"), note="a again")
    describe(session, group, "epochs")
    commit("a", 3, topic.name, "the epoch")
    commit("a", 2, topic.name, "an older epoch")
    commit("a", 1, topic.name, "an epoch before it joined")
    commit("a", 2, other.name, "an older epoch, another topic")
    commit("a", 9, topic.name, "a later epoch")
    commit("b", 3, topic.name, "unknown member")
    commit("a", 3, topic.name, "version 8", version=8)
    commit("", -1, topic.name, "an administrator")
    for note, member, member_epoch in (
        ("none", None, -1),
        ("member", "a", 3),
        ("old", "a", 2),
        ("who", "b", 3),
    ):
        topics = [OffsetFetchRequestTopics(topic.name, partition_indexes=[0])]
        fetched = OffsetFetchRequestGroup(group, member, member_epoch, topics)
        session.ask(OffsetFetchRequest(groups=[fetched]), version=9, note=f"fetch: {note}")
    for name in (topic.name, other.name):
        deleted = [OffsetDeleteRequestTopic(name, [OffsetDeleteRequestPartition(0)])]
        session.ask(OffsetDeleteRequest(group, deleted), version=0, note="delete")
    assert epoch >= 0
