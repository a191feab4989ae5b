"""Offsets of share groups: DescribeShareGroupOffsets, AlterShareGroupOffsets, DeleteShareGroupOffsets, and DeleteGroups."""

from __future__ import annotations

from barnabas.wire.messages import alter_share_group_offsets as altering
from barnabas.wire.messages import delete_share_group_offsets as deleting
from barnabas.wire.messages import describe_share_group_offsets as describing
from barnabas.wire.messages.delete_groups import DeleteGroupsRequest
from compat_tests.conform.batches import batch
from compat_tests.conform.case import case
from compat_tests.conform.cases import share_state
from compat_tests.conform.cases.consumer_groups import new_group
from compat_tests.conform.cases.share_fetch import ACCEPT, RELEASE, WAIT_MS, Member, configure
from compat_tests.conform.cases.share_groups import (
    add_partitions,
    describe,
    first,
    joined,
    next_one,
    settled,
    share_group,
)
from compat_tests.conform.session import Session, Topic

DESCRIBE = "DescribeShareGroupOffsets"
ALTER = "AlterShareGroupOffsets"
DELETE = "DeleteShareGroupOffsets"
Wanted = tuple[Topic | str, list[int]]


def _name(topic: Topic | str) -> str:
    return topic if isinstance(topic, str) else topic.name


def describe_request(group: str, *topics: Wanted) -> describing.DescribeShareGroupOffsetsRequest:
    """Of these topics; of all without any."""
    wanted = [describing.DescribeShareGroupOffsetsRequestTopic(_name(topic), each) for topic, each in topics]
    return describing.DescribeShareGroupOffsetsRequest(
        [describing.DescribeShareGroupOffsetsRequestGroup(group, wanted or None)]
    )


def alter_request(
    group: str, *offsets: tuple[Topic | str, int, int]
) -> altering.AlterShareGroupOffsetsRequest:
    """(topic, partition, start offset)."""
    topics: dict[str, altering.AlterShareGroupOffsetsRequestTopic] = {}
    for topic, index, offset in offsets:
        name = _name(topic)
        named = topics.setdefault(name, altering.AlterShareGroupOffsetsRequestTopic(name, []))
        named.partitions.append(altering.AlterShareGroupOffsetsRequestPartition(index, offset))
    return altering.AlterShareGroupOffsetsRequest(group, list(topics.values()))


def delete_request(group: str, *topics: Topic | str) -> deleting.DeleteShareGroupOffsetsRequest:
    named = [deleting.DeleteShareGroupOffsetsRequestTopic(_name(topic)) for topic in topics]
    return deleting.DeleteShareGroupOffsetsRequest(group, named)


def show(session: Session, group: str, note: str) -> None:
    """All offsets of the group."""
    session.ask(describe_request(group), version=1, note=note)


def emptied(session: Session, topic: Topic, *, partitions: int = 2, suffix: str = "g") -> str:
    """A group without members that has states of the topic's partitions."""
    group = share_group(session, topic, suffix=suffix, partitions=partitions)
    joined(session, group, "a", topic.name)
    session.quiet(next_one(group, "a", -1))
    return group


@case(DESCRIBE)
def offsets(session: Session) -> None:
    topic = session.create_topic("t", partitions=2)
    unknown = session.name("unknown")
    group = share_group(session, topic, partitions=2)
    session.ask(describe_request(group), note="unknown group, all")
    session.ask(describe_request(group, (topic, [0])), note="unknown group")
    session.ask(describe_request("", (topic, [0])), note="no group")
    session.ask(describe_request(""), note="no group, all")
    session.ask(describing.DescribeShareGroupOffsetsRequest([]), note="nothing")
    epoch = joined(session, group, "a", topic.name)
    session.ask(describe_request(group), note="all")
    session.ask(describe_request(group, (topic, [0, 1])), note="both")
    session.ask(describe_request(group, (topic, [1, 1])), note="one twice")
    session.ask(describe_request(group, (topic, [7])), note="unknown partition")
    session.ask(describe_request(group, (topic, [-1, 0])), note="partition -1")
    session.ask(describe_request(group, (unknown, [0, 3])), note="unknown topic")
    session.ask(describe_request(group, (unknown, [0, 0])), note="unknown topic, one twice")
    session.ask(describe_request(group, (topic, [0]), (topic, [1])), note="known topic twice")
    session.ask(describe_request(group, (topic, [0]), (topic, [0])), note="known topic twice, one partition")
    session.ask(describe_request(group, (unknown, [0]), (topic, [0])), note="known and unknown")
    session.ask(describe_request(group, (topic, [])), note="no partitions")
    no_topics = describing.DescribeShareGroupOffsetsRequestGroup(group, [])
    session.ask(describing.DescribeShareGroupOffsetsRequest([no_topics]), note="no topics")
    both = describe_request(group).groups + describe_request(session.name("other")).groups
    session.ask(describing.DescribeShareGroupOffsetsRequest(both), note="two groups")
    session.ask(next_one(group, "a", epoch), version=1, note="the member has not changed")


@case(DESCRIBE)
def topic_twice(session: Session) -> None:
    unknown = session.name("unknown")
    session.ask(describe_request(new_group(session), (unknown, [0]), (unknown, [0])), note="unknown")


@case(DESCRIBE)
def offsets_and_lags(session: Session) -> None:
    topic = session.create_topic("t", partitions=2)
    group = share_group(session, topic, partitions=2)
    configure(session, group, "share.auto.offset.reset", "earliest")
    session.produce(topic, batch([b"a"] * 5))
    joined(session, group, "a", topic.name)
    session.ask(describe_request(group), note="before a fetch")
    member = Member(session, group, topic)
    session.quiet(member.fetch_request(max_wait_ms=WAIT_MS), on=member.label)
    session.ask(describe_request(group), note="acquired")
    session.quiet(member.acknowledge_request((0, 1, [ACCEPT]), (2, 2, [RELEASE])), on=member.label)
    session.ask(describe_request(group), note="the first two are accepted")
    session.quiet(member.acknowledge_request((4, 4, [ACCEPT])), on=member.label)
    session.ask(describe_request(group), note="the last one too")
    session.produce(topic, batch([b"a"] * 3))
    session.ask(describe_request(group, (topic, [0])), note="more records")


@case(DESCRIBE)
def offsets_of_added_partitions(session: Session) -> None:
    topic = session.create_topic("t")
    group = share_group(session, topic, partitions=1)
    epoch = joined(session, group, "a", topic.name)
    add_partitions(session, topic, 2)
    share_state.coordinated(session, group, topic, 2)
    settled(session, group, "a", epoch)
    session.ask(describe_request(group), note="with the new one")


@case(DESCRIBE)
def offsets_of_deleted_topics(session: Session) -> None:
    topic, other = session.create_topic("t"), session.create_topic("u")
    group = share_group(session, topic, other, partitions=1)
    epoch = joined(session, group, "a", topic.name, other.name)
    session.delete_topic(topic)
    settled(session, group, "a", epoch)
    session.ask(describe_request(group), note="all")
    session.ask(describe_request(group, (topic, [0]), (other, [0])), note="by name")


@case(ALTER)
def alters(session: Session) -> None:
    topic = session.create_topic("t", partitions=2)
    unknown = session.name("unknown")
    session.produce(topic, batch([b"a"] * 5))
    group = emptied(session, topic)
    session.ask(alter_request(group, (topic, 0, 3), (topic, 1, 0)), note="both")
    show(session, group, "both are set")
    session.ask(alter_request(group, (topic, 0, 1)), note="back again")
    session.ask(alter_request(group, (topic, 0, 100)), note="behind the end")
    session.ask(alter_request(group, (topic, 1, -1)), note="-1")
    show(session, group, "as they are")
    session.ask(alter_request(group, (topic, 7, 1)), note="unknown partition")
    session.ask(alter_request(group, (unknown, 0, 1)), note="unknown topic")
    session.ask(alter_request(group, (unknown, 0, 1), (topic, 0, 2), (topic, 9, 1)), note="some are wrong")
    session.ask(alter_request(group), note="nothing")
    no_partitions = altering.AlterShareGroupOffsetsRequestTopic(topic.name, [])
    session.ask(altering.AlterShareGroupOffsetsRequest(group, [no_partitions]), note="no partitions")
    session.ask(alter_request("", (topic, 0, 1)), note="no group")
    session.ask(alter_request(group, (topic, 1, 4)), note="the last one")
    show(session, group, "in the end")


@case(ALTER)
def alters_to_negative_offsets(session: Session) -> None:
    topic = session.create_topic("t", partitions=2)
    group = emptied(session, topic)
    session.ask(alter_request(group, (topic, 0, -2)), note="-2")
    show(session, group, "after -2")


@case(ALTER)
def alters_negative_partitions(session: Session) -> None:
    topic = session.create_topic("t", partitions=2)
    group = emptied(session, topic)
    session.ask(alter_request(group, (topic, -1, 2)), note="partition -1")


@case(ALTER)
def alters_what_is_not_there(session: Session) -> None:
    topic = session.create_topic("t", partitions=2)
    group = share_group(session, topic, partitions=2)
    session.ask(alter_request(group), note="unknown group, nothing")
    describe(session, group, "of nothing there comes none")
    session.ask(alter_request(group, (session.name("unknown"), 0, 1)), note="unknown group and topic")
    describe(session, group, "of an unknown topic there comes none")
    session.ask(alter_request(group, (topic, 9, 1)), note="unknown group and partition")
    describe(session, group, "of an unknown partition")
    other = share_group(session, topic, suffix="other", partitions=2)
    session.ask(alter_request(other, (topic, 0, 2)), note="unknown group")
    show(session, other, "there is one")
    describe(session, other, "without members")


@case(ALTER)
def alters_with_members(session: Session) -> None:
    topic = session.create_topic("t", partitions=2)
    group = share_group(session, topic, partitions=2)
    joined(session, group, "a", topic.name)
    session.ask(alter_request(group, (topic, 0, 2)), note="with a member")
    session.ask(alter_request(group, (topic, 9, 2)), note="with a member, unknown partition")
    session.ask(alter_request(group), note="with a member, nothing")
    session.quiet(next_one(group, "a", -1))
    session.ask(alter_request(group, (topic, 0, 2)), note="it has left")
    session.ask(first(group, "a", topic.name), version=1, note="it joins again")
    describe(session, group, "the epoch that follows")
    show(session, group, "what it finds")


@case(DELETE)
def deletes(session: Session) -> None:
    topic, other = session.create_topic("t", partitions=2), session.create_topic("u")
    group = share_group(session, topic, partitions=2)
    unknown = session.name("unknown")
    session.ask(delete_request(group, topic), note="unknown group")
    session.ask(delete_request("", topic), note="no group")
    joined(session, group, "a", topic.name)
    session.ask(delete_request(group, topic), note="with a member")
    session.ask(delete_request(group), note="with a member, nothing")
    session.quiet(next_one(group, "a", -1))
    session.ask(delete_request(group, unknown), note="unknown topic")
    session.ask(delete_request(group, other), note="a topic that it did not read")
    session.ask(delete_request(group), note="nothing")
    show(session, group, "before")
    session.ask(delete_request(group, topic, other, unknown), note="all")
    show(session, group, "after")
    session.ask(share_state.summary_request(group, topic), version=1, note="the state")
    session.ask(delete_request(group, topic), note="again")
    describe(session, group, "the group")
    epoch = session.ask(first(group, "a", topic.name), version=1, note="a member joins").member_epoch
    settled(session, group, "a", epoch)
    describe(session, group, "with the member, assigned")
    show(session, group, "and again")


@case(DELETE, name="topic_twice")
def topic_twice_deleted(session: Session) -> None:
    topic, unknown = session.create_topic("t", partitions=2), session.name("unknown")
    group = emptied(session, topic)
    session.ask(delete_request(group, unknown, unknown), note="unknown topic twice")
    session.ask(delete_request(group, topic, topic), note="one topic twice")
    show(session, group, "after")


@case(DELETE)
def deletes_of_a_group_without_states(session: Session) -> None:
    topic, group = session.create_topic("t"), new_group(session)
    session.quiet(first(group, "a", session.name("missing")))
    session.quiet(next_one(group, "a", -1))
    session.ask(delete_request(group, topic), note="a topic")
    session.ask(delete_request(group, session.name("missing")), note="one that is not there")
    session.ask(delete_request(group), note="nothing")


@case("DeleteGroups")
def share_groups_deleted(session: Session) -> None:
    topic = session.create_topic("t", partitions=2)
    group, other = share_group(session, topic, partitions=2), new_group(session, "other")
    session.quiet(first(other, "a", session.name("missing")))
    joined(session, group, "a", topic.name)
    session.ask(DeleteGroupsRequest([group]), note="with a member")
    session.ask(DeleteGroupsRequest([group, other, session.name("unknown")]), note="several")
    session.quiet(next_one(group, "a", -1))
    session.quiet(next_one(other, "a", -1))
    show(session, group, "before")
    session.ask(DeleteGroupsRequest([group, other]), note="empty")
    session.ask(DeleteGroupsRequest([group]), note="gone")
    show(session, group, "after")
    session.ask(describe_request(group, (topic, [0, 1])), version=1, note="by name")
    session.ask(share_state.summary_request(group, topic), version=1, note="the state")
    describe(session, group, "the group")
    session.ask(next_one(group, "a", 1), version=1, note="heartbeat")
    session.ask(first(group, "a", topic.name), version=1, note="it begins anew")
    describe(session, group, "anew")


@case("DeleteGroups")
def share_groups_with_altered_offsets_deleted(session: Session) -> None:
    topic = session.create_topic("t", partitions=2)
    group = share_group(session, topic, partitions=2)
    session.quiet(alter_request(group, (topic, 0, 0)))
    session.ask(DeleteGroupsRequest([group]), note="one that had no members")
    show(session, group, "after")
    describe(session, group, "the group")
