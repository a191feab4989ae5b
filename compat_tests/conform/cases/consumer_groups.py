"""Consumer groups (KIP-848): ConsumerGroupHeartbeat, ConsumerGroupDescribe, and their offsets."""

from __future__ import annotations

from typing import Any

from barnabas.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from barnabas.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from barnabas.wire.messages.consumer_protocol import (
    CONSUMER_PROTOCOL_ASSIGNMENT,
    CONSUMER_PROTOCOL_SUBSCRIPTION,
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from barnabas.wire.messages.delete_groups import DeleteGroupsRequest
from barnabas.wire.messages.describe_groups import DescribeGroupsRequest
from barnabas.wire.messages.heartbeat import HeartbeatRequest
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
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
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from compat_tests.conform.case import case
from compat_tests.conform.cases.groups import coordinated, join_request
from compat_tests.conform.session import Session, Topic
from compat_tests.harness.eventually import eventually

HEARTBEAT = "ConsumerGroupHeartbeat"
DESCRIBE = "ConsumerGroupDescribe"


def first(group: str, member: str, *topics: str, **options: Any) -> ConsumerGroupHeartbeatRequest:
    """The first heartbeat of a member, with the range assignor: its results are the same everywhere."""
    given: dict[str, Any] = {
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": list(topics),
        "server_assignor": "range",
        "topic_partitions": [],
        **options,
    }
    return ConsumerGroupHeartbeatRequest(group, member, 0, **given)


def next_one(group: str, member: str, epoch: int, **options: Any) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(group, member, epoch, **options)


def owning(topic: Topic, *partitions: int) -> list[TopicPartitions]:
    return [TopicPartitions(topic.id, list(partitions))]


def describe(session: Session, group: str, note: str) -> None:
    version = session.version if session.version <= 1 else 1
    session.ask(ConsumerGroupDescribeRequest([group]), version=version, note=note)


def new_group(session: Session, suffix: str = "g") -> str:
    group = session.name(suffix)
    coordinated(session, group)
    return group


@case(HEARTBEAT)
def one_member(session: Session) -> None:
    topic, group = session.create_topic("t", partitions=4), new_group(session)
    epoch = session.ask(first(group, "one", topic.name), note="join").member_epoch
    describe(session, group, "joined")
    session.ask(next_one(group, "one", epoch), note="nothing new")
    session.ask(next_one(group, "one", epoch, topic_partitions=owning(topic, 0, 1, 2, 3)), note="owns all")
    full = first(group, "one", topic.name, topic_partitions=owning(topic, 0, 1))
    full.member_epoch = epoch
    session.ask(full, note="full request")
    session.ask(first(group, "one", topic.name), note="joins again")
    session.ask(next_one(group, "one", -1), note="leaves")
    describe(session, group, "empty")
    session.ask(next_one(group, "one", epoch), note="after it left")


@case(HEARTBEAT)
def refused(session: Session) -> None:
    group = new_group(session)
    session.ask(first("", "one"), note="no group")
    session.ask(first(group, "", subscribed_topic_names=["nothing"], instance_id=""), note="empty instance")
    session.ask(first(group, "one", instance_id=""), note="empty instance")
    session.ask(first(group, "one", rack_id=""), note="empty rack")
    session.ask(next_one(group, "", 1), note="no member id, epoch 1")
    session.ask(next_one(group, "", -1), note="no member id, leaves")
    session.ask(next_one(group, "one", -2), note="-2 without an instance")
    session.ask(next_one(group, "one", -3), note="-3")
    session.ask(first(group, "one", rebalance_timeout_ms=-1), note="no rebalance timeout")
    session.ask(first(group, "one", topic_partitions=None), note="null partitions")
    session.ask(first(group, "one", topic_partitions=[TopicPartitions(bytes(16), [1])]), note="partitions")
    session.ask(first(group, "one", subscribed_topic_names=None), note="no subscription")
    session.ask(first(group, "one", server_assignor="sticky"), note="unknown assignor")
    session.ask(next_one(group, "one", 1), note="no such group")
    session.ask(next_one(group, "one", -1), note="no such group, leaves")
    session.ask(next_one(group, "one", -2, instance_id="i"), note="no such group, leaves for now")
    session.ask(first(group, "one"), note="empty list of names")
    session.ask(next_one(group, "two", 1), note="unknown member")
    session.ask(next_one(group, "two", -1), note="unknown member leaves")
    session.ask(next_one(group, "two", 1, instance_id="i"), note="unknown instance")
    session.ask(next_one(group, "two", -1, instance_id="i"), note="unknown instance leaves")


@case(HEARTBEAT)
def epochs(session: Session) -> None:
    topic, group = session.create_topic("t", partitions=4), new_group(session)
    one = session.ask(first(group, "a", topic.name), note="a joins").member_epoch
    session.ask(next_one(group, "a", one + 1), note="a greater epoch")
    session.ask(next_one(group, "a", 0, rebalance_timeout_ms=1), note="0, incomplete")
    two = session.ask(first(group, "b", topic.name), note="b joins").member_epoch
    session.ask(next_one(group, "a", one, topic_partitions=owning(topic, 0, 1, 2, 3)), note="a is to revoke")
    describe(session, group, "a revokes")
    session.ask(next_one(group, "a", one), note="a, owned null")
    session.ask(next_one(group, "a", one, topic_partitions=owning(topic, 0, 1, 2)), note="a still owns one")
    session.ask(next_one(group, "b", two), note="b waits")
    session.ask(next_one(group, "a", one, topic_partitions=owning(topic, 0, 1)), note="a has revoked")
    session.ask(next_one(group, "a", one), note="a, the epoch before, owned null")
    session.ask(next_one(group, "a", one, topic_partitions=owning(topic, 0)), note="a, the epoch before")
    session.ask(
        next_one(group, "a", one, topic_partitions=owning(topic, 0, 3)),
        note="a, the epoch before, with one that it does not have",
    )
    session.ask(next_one(group, "b", two), note="b gets its own")
    describe(session, group, "stable")
    session.ask(next_one(group, "b", -1), note="b leaves")
    session.ask(next_one(group, "a", two), note="a gets all")
    describe(session, group, "a alone")


@case(HEARTBEAT)
def static_members(session: Session) -> None:
    topic, group = session.create_topic("t", partitions=4), new_group(session)
    one = session.ask(first(group, "a", topic.name, instance_id="i"), note="a joins").member_epoch
    session.ask(first(group, "b", topic.name, instance_id="i"), note="b, while a is there")
    session.ask(first(group, "a", topic.name, instance_id="i"), note="a again, while a is there")
    session.ask(next_one(group, "b", one, instance_id="i"), note="b heartbeats")
    session.ask(next_one(group, "b", -1, instance_id="i"), note="b leaves")
    session.ask(next_one(group, "a", -2, instance_id="i"), note="a leaves for now")
    describe(session, group, "a has left for now")
    session.ask(next_one(group, "a", one, instance_id="i"), note="a after it left")
    session.ask(first(group, "b", topic.name, instance_id="i"), note="b takes over")
    describe(session, group, "b")
    session.ask(next_one(group, "b", -2, instance_id="i"), note="b leaves for now")
    two = session.ask(first(group, "b", topic.name, instance_id="i"), note="b comes back").member_epoch
    session.ask(first(group, "c", topic.name, instance_id="j"), note="c joins")
    session.ask(next_one(group, "b", two, instance_id="i", topic_partitions=owning(topic, 0, 1)), note="b")
    session.ask(next_one(group, "b", -1, instance_id="i"), note="b leaves for good")
    describe(session, group, "c alone")


@case(HEARTBEAT)
def subscriptions(session: Session) -> None:
    topic, other = session.create_topic("t", partitions=2), session.create_topic("u")
    group = new_group(session)
    missing = session.name("missing")
    epoch = session.ask(first(group, "a", topic.name, missing), note="one topic is missing").member_epoch

    def then(note: str, **options: Any) -> None:
        nonlocal epoch
        epoch = session.ask(next_one(group, "a", epoch, **options), note=note).member_epoch

    then("another", subscribed_topic_names=[topic.name, other.name])
    then("one less", subscribed_topic_names=[other.name])
    describe(session, group, "one is given up")
    then("given up", topic_partitions=owning(other, 0))
    then("none", subscribed_topic_names=[])
    then("owns none", topic_partitions=[])
    describe(session, group, "none")
    then("another assignor", server_assignor="uniform")
    then("rack and timeout", rack_id="r", rebalance_timeout_ms=7)
    describe(session, group, "uniform")


@case(HEARTBEAT, first=1)
def wrong_expressions(session: Session) -> None:
    group = new_group(session)
    for wrong in (
        *("(", ")", "[z-a]", "[a", "a**", "*", "a|*", "\\", "\\8", "\\y", "\\x{110000}", "(?P<>a)"),
        *(
            "(?z)",
            "a{2,1}",
            "a{1001}",
            "\\p{No",
            "\\p{Nope}",
            "[[:nope:]]",
            "(?P<n>a)(?P<n>b)",
            "(?i",
            "(?P=n)",
        ),
    ):
        session.ask(first(group, "a", subscribed_topic_regex=wrong), note=wrong)


@case(HEARTBEAT, first=1)
def regular_expressions(session: Session) -> None:
    topic, group = session.create_topic("t", partitions=2), new_group(session)
    pattern = f"{session.name('')}[t-u]"
    joining = first(group, "a", subscribed_topic_names=None, subscribed_topic_regex=pattern)
    epoch = session.ask(joining, note="join").member_epoch

    def is_resolved() -> bool:
        answer = session.quiet(ConsumerGroupDescribeRequest([group]), version=1).groups[0]
        return bool(answer.group_epoch > epoch)

    eventually(is_resolved)
    describe(session, group, "resolved")
    epoch = session.ask(next_one(group, "a", epoch), note="heartbeat").member_epoch
    epoch = session.ask(joining, note="joins again").member_epoch
    both = first(group, "b", topic.name, subscribed_topic_regex=pattern)
    session.ask(both, note="b has names and the same expression")
    describe(session, group, "two")
    session.ask(next_one(group, "b", -1), note="b leaves")
    session.ask(next_one(group, "a", epoch, subscribed_topic_regex=""), note="no expression")
    describe(session, group, "none")


@case(DESCRIBE)
def described(session: Session) -> None:
    group = new_group(session)
    session.ask(ConsumerGroupDescribeRequest([]), note="nothing")
    session.ask(ConsumerGroupDescribeRequest([group, ""]), note="missing and empty")
    session.quiet(first(group, "a"), version=1)
    session.ask(ConsumerGroupDescribeRequest([group, group], True), note="with operations, twice")
    classic = new_group(session, "classic")
    session.quiet(join_request(classic), version=3, on="member")
    session.ask(ConsumerGroupDescribeRequest([classic]), note="classic")


@case("DescribeGroups")
def of_consumer_groups(session: Session) -> None:
    group = new_group(session, "consumer")
    session.quiet(first(group, "a"), version=1)
    session.ask(DescribeGroupsRequest([group]), note="consumer group")


@case("ListGroups")
def consumer_groups_listed(session: Session) -> None:
    group = new_group(session, "consumer")
    topic = session.create_topic("t")
    session.quiet(first(group, "a", topic.name), version=1)

    def listed(note: str, **filters: Any) -> None:
        answer = session.connection().ask(ListGroupsRequest(**filters), session.version)
        own = [each for each in answer.groups if each.group_id == group]
        session.record(note, session.names.tree(own))

    listed("all")
    if session.version >= 4:
        for state in ("stable", "Assigning", "empty"):
            listed(state, states_filter=[state])
    if session.version >= 5:
        for kind in ("Consumer", "classic", "share", "nothing"):
            listed(kind, types_filter=[kind])
    session.quiet(next_one(group, "a", -1), version=1)
    listed("empty")


def commit(topic: Topic, group: str, member: str, epoch: int, *partitions: int) -> OffsetCommitRequest:
    topics = [
        OffsetCommitRequestTopic(
            name=topic.name,
            topic_id=topic.id,
            partitions=[OffsetCommitRequestPartition(index, 7) for index in partitions],
        )
    ]
    return OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=epoch, member_id=member, topics=topics
    )


@case("OffsetCommit")
def by_members_of_consumer_groups(session: Session) -> None:
    topic, group = session.create_topic("t", partitions=4), new_group(session)
    one = session.quiet(first(group, "a", topic.name), version=1).member_epoch
    session.ask(commit(topic, group, "a", one, 0, 1), note="its epoch")
    session.ask(commit(topic, group, "a", one + 1, 0), note="a greater one")
    session.ask(commit(topic, group, "a", one - 1, 0), note="one before it had the partition")
    session.ask(commit(topic, group, "b", one, 0), note="unknown member")
    session.ask(commit(topic, group, "", -1, 0), note="no member")
    two = session.quiet(first(group, "b", topic.name), version=1).member_epoch
    session.quiet(next_one(group, "a", one, topic_partitions=owning(topic, 0, 1, 2, 3)), version=1)
    session.ask(commit(topic, group, "a", one, 0, 3), note="one that it is to revoke")
    session.quiet(next_one(group, "a", one, topic_partitions=owning(topic, 0, 1)), version=1)
    session.ask(commit(topic, group, "a", one, 0), note="one that it keeps, by the epoch before")
    session.ask(commit(topic, group, "a", one, 0, 3), note="one that it has revoked")
    session.quiet(next_one(group, "b", two), version=1)
    session.ask(commit(topic, group, "b", one, 2), note="an epoch before it had the partition")
    for member in ("a", "b"):
        session.quiet(next_one(group, member, -1), version=1)
    session.ask(commit(topic, group, "", -1, 3), note="no member, empty group")
    session.ask(commit(topic, group, "a", two, 3), note="a member that has left")


@case("OffsetFetch", first=8)
def by_members_of_consumer_groups_fetched(session: Session) -> None:
    topic, group = session.create_topic("t", partitions=4), new_group(session)
    epoch = session.quiet(first(group, "a", topic.name), version=1).member_epoch
    session.quiet(commit(topic, group, "a", epoch, 0), version=9)
    wanted = [OffsetFetchRequestTopics(topic.name, topic.id, [0, 1])]
    for member, more in ((None, -1), ("a", 0), ("a", 1), ("a", -1), ("b", 0), ("", -1), (None, 0)):
        given = (
            {"member_id": member, "member_epoch": epoch + more if member or more >= 0 else -1}
            if session.version >= 9
            else {}
        )
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group, topics=wanted, **given)]  # type: ignore[arg-type]
        )
        session.ask(request, note=f"{member}, {more}")


@case("OffsetDelete")
def of_consumer_groups_deleted(session: Session) -> None:
    topic, other, group = session.create_topic("t"), session.create_topic("u"), new_group(session)
    session.quiet(first(group, "a", topic.name), version=1)
    topics = [
        OffsetDeleteRequestTopic(each.name, [OffsetDeleteRequestPartition(0)]) for each in (topic, other)
    ]
    session.ask(OffsetDeleteRequest(group, topics), note="one is subscribed")


@case("DeleteGroups")
def consumer_groups_deleted(session: Session) -> None:
    topic, group = session.create_topic("t"), new_group(session)
    session.quiet(first(group, "a", topic.name), version=1)
    session.ask(DeleteGroupsRequest([group]), note="with a member")
    session.quiet(next_one(group, "a", -1), version=1)
    session.ask(DeleteGroupsRequest([group]), note="empty")
    session.ask(DeleteGroupsRequest([group]), note="gone")
    session.ask(next_one(group, "a", 1), version=1, note="heartbeat")


def subscription(*topics: str, owned: tuple[str, list[int]] | None = None) -> bytes:
    """What a classic consumer says of itself, version 1."""
    partitions = [] if owned is None else [TopicPartition(*owned)]
    parts = CONSUMER_PROTOCOL_SUBSCRIPTION.encode(
        1, ConsumerProtocolSubscription(list(topics), None, partitions)
    )
    return b"\0\1" + b"".join(parts)  # type: ignore[arg-type]  # all bytes


def classic_join(
    group: str, member: str, metadata: bytes, *, instance: str | None = None, protocol: str = "range"
) -> JoinGroupRequest:
    protocols = [JoinGroupRequestProtocol(protocol, metadata)]
    return JoinGroupRequest(group, 45_000, 60_000, member, instance, "consumer", protocols)


def classic_assignment(topic: Topic, *partitions: int) -> bytes:
    assigned = [ConsumerProtocolAssignmentTopicPartition(topic.name, list(partitions))]
    parts = CONSUMER_PROTOCOL_ASSIGNMENT.encode(1, ConsumerProtocolAssignment(assigned, None))
    return b"\0\1" + b"".join(parts)  # type: ignore[arg-type]  # all bytes


def classic_group(session: Session, group: str, topic: Topic, instance: str | None = None) -> tuple[str, int]:
    """A stable classic group of one member, with all of the topic's four partitions."""
    answer = session.quiet(
        classic_join(group, "", subscription(topic.name), instance=instance),
        version=3 if instance is None else 5,
    )
    member, generation = answer.member_id, answer.generation_id
    assignments = [SyncGroupRequestAssignment(member, classic_assignment(topic, 0, 1, 2, 3))]
    session.quiet(
        SyncGroupRequest(group, generation, member, instance, "consumer", "range", assignments), version=3
    )
    return member, generation


def all_views(session: Session, group: str, note: str) -> None:
    """The group as the three APIs that show it."""
    session.ask(ConsumerGroupDescribeRequest([group]), version=1, note=f"{note}: 69")
    session.ask(DescribeGroupsRequest([group]), version=6, note=f"{note}: 15")
    answer = session.connection().ask(ListGroupsRequest(), 5)
    own = [each for each in answer.groups if each.group_id == group]
    session.record(f"{note}: 16", session.names.tree(own))


@case(HEARTBEAT)
def upgraded_and_downgraded(session: Session) -> None:
    """A classic group that a member of the new protocol joins, and that it leaves again."""
    topic, group = session.create_topic("t", partitions=4), new_group(session)
    old, generation = classic_group(session, group, topic)
    session.names.numbered("member", old)
    session.names.texts[old] = "<old>"
    epoch = session.ask(first(group, "new", topic.name), note="joins").member_epoch
    all_views(session, group, "two")
    beat = HeartbeatRequest(group, generation, old)
    session.ask(beat, version=4, note="the old one is to revoke")
    sync = SyncGroupRequest(group, generation, old, None, "consumer", "range")
    session.ask(sync, version=5, note="it gets what it keeps")
    session.ask(HeartbeatRequest(group, generation + 7, old), version=4, note="another generation")
    session.ask(HeartbeatRequest(group, epoch, "new"), version=4, note="classic heartbeat of the new one")
    session.ask(SyncGroupRequest(group, generation, old, None, "x", "range"), version=5, note="other type")
    session.ask(SyncGroupRequest(group, generation, old, None, "consumer", "x"), version=5, note="other name")
    joined = session.ask(
        classic_join(group, old, subscription(topic.name, owned=(topic.name, [0, 1]))),
        version=5,
        note="it joins again without them",
    )
    sync.generation_id = joined.generation_id
    session.ask(sync, version=5, note="it syncs")
    session.ask(HeartbeatRequest(group, joined.generation_id, old), version=4, note="it is level")
    session.ask(next_one(group, "new", epoch), note="the new one gets its own")
    session.ask(classic_join(group, old, b"\0\1\0", protocol="range"), version=5, note="malformed")
    session.ask(classic_join(group, old, subscription(topic.name), protocol="x"), version=5, note="x")
    session.ask(classic_join(group, "unknown", subscription(topic.name)), version=5, note="unknown member")
    session.ask(classic_join(group, "", subscription(topic.name), protocol="x"), version=5, note="no id, x")
    all_views(session, group, "level")
    session.ask(commit(topic, group, old, joined.generation_id, 0), version=8, note="the old one commits")
    session.ask(commit(topic, group, old, joined.generation_id + 1, 0), version=8, note="wrong generation")
    session.ask(commit(topic, group, "new", epoch, 2), version=8, note="the new one by an old version")
    session.ask(next_one(group, "new", -1), note="the new one leaves")
    all_views(session, group, "downgraded")
    session.ask(HeartbeatRequest(group, joined.generation_id, old), version=4, note="the old generation")


@case(HEARTBEAT)
def static_member_changes_its_protocol(session: Session) -> None:
    topic, group = session.create_topic("t", partitions=4), new_group(session)
    old, _generation = classic_group(session, group, topic, "i")
    session.names.texts[old] = "<old>"
    epoch = session.ask(first(group, "new", topic.name, instance_id="i"), note="joins").member_epoch
    all_views(session, group, "new")
    session.ask(next_one(group, "new", epoch, instance_id="i"), note="heartbeat")
    session.ask(next_one(group, "new", -2, instance_id="i"), note="leaves for now")
    joined = session.quiet(classic_join(group, "", subscription(topic.name), instance="i"), version=5)
    session.names.texts[joined.member_id] = "<again>"
    session.record("classic again", session.names.tree(joined))
    all_views(session, group, "classic again")


@case(HEARTBEAT)
def empty_groups_change_their_kind(session: Session) -> None:
    topic, group = session.create_topic("t"), new_group(session)
    session.quiet(commit(topic, group, "", -1, 0), version=9)
    session.ask(first(group, "a", topic.name), note="a group with offsets alone")
    session.ask(next_one(group, "a", -1), note="leaves")
    all_views(session, group, "empty")
    answer = session.ask(classic_join(group, "", subscription(topic.name)), version=3, note="classic")
    session.names.texts[answer.member_id] = "<classic>"
    all_views(session, group, "classic")
    session.ask(first(group, "b", topic.name), note="while it rebalances")
    wanted = [OffsetFetchRequestTopics(topic.name, topic.id, [0])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=wanted)])
    session.ask(request, version=8, note="offsets")
