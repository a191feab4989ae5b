"""Share groups (KIP-932): ShareGroupHeartbeat and ShareGroupDescribe.

A partition is assigned once the share coordinator has initialized it, some time after the heartbeat that named its topic: `settled` sends
heartbeats until then. Which of several members gets which partition depends on the order of hash maps: `describe_counts` counts them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from barnabas.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from barnabas.wire.messages.share_group_describe import DescribedGroup, ShareGroupDescribeRequest
from barnabas.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from compat_tests.conform.case import case
from compat_tests.conform.cases import share_state
from compat_tests.conform.cases.consumer_groups import new_group
from compat_tests.conform.cases.groups import join_request
from compat_tests.conform.cases.share_fetch import configure
from compat_tests.conform.session import Session, Topic
from compat_tests.harness.eventually import eventually

HEARTBEAT = "ShareGroupHeartbeat"
DESCRIBE = "ShareGroupDescribe"
MAX_SIZE = 5  # group.share.max.size, in brokers.py


def first(group: str, member: str, *topics: str, **options: Any) -> ShareGroupHeartbeatRequest:
    given: dict[str, Any] = {"subscribed_topic_names": list(topics), **options}
    return ShareGroupHeartbeatRequest(group, member, 0, **given)


def next_one(group: str, member: str, epoch: int, **options: Any) -> ShareGroupHeartbeatRequest:
    return ShareGroupHeartbeatRequest(group, member, epoch, **options)


def share_group(session: Session, *topics: Topic, suffix: str = "g", partitions: int = 4) -> str:
    """The name of a group whose coordinators serve, also those of these topics' partitions."""
    group = new_group(session, suffix)
    for topic in topics:
        share_state.coordinated(session, group, topic, partitions)
    return group


def settled(session: Session, group: str, member: str, epoch: int) -> int:
    """Heartbeats until one of them changes the member's assignment; returns its epoch then."""

    def is_changed() -> bool:
        nonlocal epoch
        answer = session.quiet(next_one(group, member, epoch))
        assert not answer.error_code, answer
        epoch = answer.member_epoch
        return answer.assignment is not None

    eventually(is_changed, 60)
    return epoch


def joined(session: Session, group: str, member: str, *topics: str) -> int:
    """A member with an assignment, without a record of it; returns its epoch."""
    epoch = session.quiet(first(group, member, *topics)).member_epoch
    return settled(session, group, member, epoch)


def described(session: Session, group: str) -> DescribedGroup:
    """With names in order: Kafka's are in that of a hash set."""
    found: DescribedGroup = session.quiet(ShareGroupDescribeRequest([group])).groups[0]
    for member in found.members:
        member.subscribed_topic_names.sort()
    return found


def describe(session: Session, group: str, note: str) -> None:
    session.record(note, session.names.tree(described(session, group)))


def describe_counts(session: Session, group: str, note: str) -> None:
    """How many partitions each member has, and how many members each partition has, sorted; by topic if the members read different
    ones, as each topic is assigned alone then."""
    found = described(session, group)
    is_one_subscription = len({tuple(member.subscribed_topic_names) for member in found.members}) <= 1
    sizes: dict[str, list[int]] = {}
    members_of: dict[str, Counter[tuple[str, int]]] = {}
    for member in found.members:
        of_member: Counter[str] = Counter()
        for topic in member.assignment.topic_partitions:
            name = "all" if is_one_subscription else session.names.text(topic.topic_name)
            of_member[name] += len(topic.partitions)
            partitions = ((topic.topic_name, index) for index in topic.partitions)
            members_of.setdefault(name, Counter()).update(partitions)
        for name, count in of_member.items():
            sizes.setdefault(name, []).append(count)
        member.assignment.topic_partitions = []
    outcome = {
        "group": session.names.tree(found),
        "partitions of members": {name: sorted(counts) for name, counts in sizes.items()},
        "members of partitions": {name: sorted(counts.values()) for name, counts in members_of.items()},
    }
    session.record(note, outcome)


@case(HEARTBEAT)
def one_member(session: Session) -> None:
    topic = session.create_topic("t", partitions=4)
    group = share_group(session, topic)
    epoch = session.ask(first(group, "one", topic.name), note="join").member_epoch
    epoch = settled(session, group, "one", epoch)
    describe(session, group, "assigned")
    session.ask(next_one(group, "one", epoch), note="nothing new")
    full = next_one(group, "one", epoch, subscribed_topic_names=[topic.name])
    session.ask(full, note="full request")
    session.ask(next_one(group, "one", epoch, rack_id="r"), note="a rack")
    describe(session, group, "with a rack")
    session.ask(first(group, "one", topic.name), note="joins again")
    describe(session, group, "joined again")
    session.ask(next_one(group, "one", -1), note="leaves")
    describe(session, group, "empty")
    session.ask(next_one(group, "one", epoch), note="after it left")
    session.ask(next_one(group, "one", -1), note="leaves again")
    session.ask(first(group, "two", topic.name), note="another joins the empty group")
    describe(session, group, "with another")


@case(HEARTBEAT)
def refused(session: Session) -> None:
    group = new_group(session)
    session.ask(first("", "one", "t"), note="no group")
    session.ask(first(group, "", "t"), note="no member")
    session.ask(first(group, "m" * 37, "t"), note="a long member id")
    session.ask(first("", "m" * 37), note="a long member id and no group")
    session.ask(first(group, "one", "t", rack_id=""), note="empty rack")
    session.ask(first(group, "one", subscribed_topic_names=None), note="no subscription")
    session.ask(first(group, "one"), note="empty list of names")
    session.ask(first(group, "one", rack_id=""), note="empty list of names and empty rack")
    session.ask(next_one(group, "one", -2), note="-2")
    session.ask(next_one(group, "one", -3, subscribed_topic_names=["t"]), note="-3")
    session.ask(next_one(group, "one", -1, rack_id=""), note="leaves, empty rack")
    session.ask(next_one(group, "", -1), note="leaves, no member id")
    session.ask(next_one("", "one", -1), note="leaves, no group")
    session.ask(next_one(group, "one", 1), note="no such group")
    session.ask(next_one(group, "one", -1), note="no such group, leaves")
    describe(session, group, "there is still none")
    session.ask(first(group, "m" * 36, "t", "t", rack_id="r"), note="the longest member id, a name twice")
    session.ask(next_one(group, "two", 1), note="unknown member")
    session.ask(next_one(group, "two", -1), note="unknown member leaves")
    session.ask(first(group, "two", "", "a b", ".", "t" * 300), note="names that no topic can have")
    session.ask(first(group, "three", "__consumer_offsets"), note="an internal topic")
    describe_counts(session, group, "with members of topics that are not there")


@case(HEARTBEAT)
def names_of_groups(session: Session) -> None:
    topic = session.create_topic("t")
    for note, suffix in (("with colons", "a:b:0"), ("with a space", " "), ("long", "g" * 1000)):
        group = share_group(session, topic, suffix=suffix, partitions=1)
        epoch = session.ask(first(group, "one", topic.name), note=note).member_epoch
        settled(session, group, "one", epoch)
        describe(session, group, f"{note}, assigned")


@case(HEARTBEAT)
def epochs(session: Session) -> None:
    topic, other = session.create_topic("t", partitions=4), session.create_topic("u")
    group = share_group(session, topic)
    share_state.coordinated(session, group, other)
    one = session.ask(first(group, "a", topic.name), note="a joins").member_epoch
    two = settled(session, group, "a", one)
    session.ask(next_one(group, "a", two + 1), note="a greater epoch")
    session.ask(next_one(group, "a", one), note="the epoch before")
    session.ask(next_one(group, "a", one, subscribed_topic_names=[topic.name]), note="in a full request")
    session.ask(next_one(group, "a", one - 1), note="the one before it, which is 0")
    session.ask(next_one(group, "a", 0, subscribed_topic_names=[topic.name]), note="0, with names")
    three = session.ask(
        next_one(group, "a", two, subscribed_topic_names=[topic.name, other.name]), note="another topic"
    ).member_epoch
    four = settled(session, group, "a", three)
    describe(session, group, "with both topics")
    session.ask(next_one(group, "a", two), note="two epochs before")
    session.ask(next_one(group, "a", 1), note="the first one")
    session.ask(next_one(group, "a", three), note="the epoch before")
    session.ask(next_one(group, "a", four, subscribed_topic_names=[]), note="no topics any more")
    session.ask(next_one(group, "a", four), note="the epoch before")
    session.ask(next_one(group, "a", three), note="two before")
    session.ask(first(group, "a", other.name), note="joins again with another topic")
    describe(session, group, "joined again")
    session.ask(next_one(group, "a", 99), note="a greater epoch")
    session.ask(next_one(group, "b", 99), note="unknown member")
    session.ask(next_one(group, "a", -1, subscribed_topic_names=[topic.name]), note="leaves, with names")


@case(HEARTBEAT)
def subscriptions(session: Session) -> None:
    topic, other = session.create_topic("t", partitions=2), session.create_topic("u")
    group = share_group(session, topic, partitions=2)
    share_state.coordinated(session, group, other)
    missing = session.name("missing")
    epoch = session.ask(first(group, "a", topic.name, missing), note="one is missing").member_epoch
    epoch = settled(session, group, "a", epoch)

    def then(note: str, **options: Any) -> None:
        nonlocal epoch
        epoch = session.ask(next_one(group, "a", epoch, **options), note=note).member_epoch

    describe(session, group, "one is missing: assigned")
    then("the other way round", subscribed_topic_names=[missing, topic.name])
    then("another", subscribed_topic_names=[topic.name, other.name])
    epoch = settled(session, group, "a", epoch)
    describe(session, group, "two")
    then("one less", subscribed_topic_names=[other.name])
    describe(session, group, "one is given up")
    then("back again", subscribed_topic_names=[topic.name, other.name])
    describe(session, group, "back again: described")
    then("none", subscribed_topic_names=[])
    describe(session, group, "none: described")
    then("only the missing one", subscribed_topic_names=[missing])
    describe(session, group, "only the missing one: described")


@case(HEARTBEAT)
def topics_that_change(session: Session) -> None:
    group, name = new_group(session), session.name("t")
    epoch = session.ask(first(group, "a", name), note="before there is the topic").member_epoch
    describe(session, group, "no topic")
    topic = session.create_topic("t", partitions=2)
    share_state.coordinated(session, group, topic, 2)
    epoch = settled(session, group, "a", epoch)
    describe(session, group, "the topic is there")
    session.delete_topic(topic)
    epoch = settled(session, group, "a", epoch)
    describe(session, group, "the topic is gone")
    session.ask(next_one(group, "a", epoch), note="heartbeat without the topic")
    again = session.create_topic("t", partitions=3)
    share_state.coordinated(session, group, again, 3)
    epoch = settled(session, group, "a", epoch)
    describe(session, group, "there is another of that name")
    session.ask(next_one(group, "a", epoch, subscribed_topic_names=[name]), note="full request")


def add_partitions(session: Session, topic: Topic, count: int) -> None:
    wanted = CreatePartitionsTopic(topic.name, count, None)
    answer = session.quiet(CreatePartitionsRequest([wanted], 10_000, False)).results[0]
    assert not answer.error_code, answer
    session.wait_until(topic.name, count, present=True)


@case(HEARTBEAT)
def partitions_are_added(session: Session) -> None:
    topic = session.create_topic("t", partitions=2)
    group = share_group(session, topic, partitions=2)
    epoch = joined(session, group, "a", topic.name)
    add_partitions(session, topic, 4)
    share_state.coordinated(session, group, topic, 4)
    epoch = settled(session, group, "a", epoch)
    describe(session, group, "four partitions")
    session.ask(next_one(group, "a", epoch), note="heartbeat")


@case(HEARTBEAT)
def members_share_partitions(session: Session) -> None:
    topic = session.create_topic("t", partitions=4)
    group = share_group(session, topic)
    epochs = {"a": joined(session, group, "a", topic.name)}
    for member in ("b", "c", "d", "e"):
        epochs[member] = session.quiet(first(group, member, topic.name)).member_epoch
        describe_counts(session, group, f"{member} has joined")
        for each, epoch in epochs.items():
            epochs[each] = session.quiet(next_one(group, each, epoch)).member_epoch
        describe_counts(session, group, f"{member} has joined, and all know it")
    session.record("epochs", dict(epochs))
    for member in ("a", "c", "e"):
        session.ask(next_one(group, member, -1), note=f"{member} leaves")
        del epochs[member]
        for each, epoch in epochs.items():
            epochs[each] = session.quiet(next_one(group, each, epoch)).member_epoch
        describe_counts(session, group, f"{member} has left, and all know it")


@case(HEARTBEAT)
def more_members_than_partitions(session: Session) -> None:
    topic = session.create_topic("t", partitions=2)
    group = share_group(session, topic, partitions=2)
    epochs = {"a": joined(session, group, "a", topic.name)}
    for member in ("b", "c", "d", "e"):
        epochs[member] = session.quiet(first(group, member, topic.name)).member_epoch
        for each, epoch in epochs.items():
            epochs[each] = session.quiet(next_one(group, each, epoch)).member_epoch
        describe_counts(session, group, f"with {member}")
    session.ask(first(group, "f", topic.name), note="one too many")
    session.ask(next_one(group, "f", 1), note="one too many, not joining")
    session.ask(first(group, "a", topic.name[:-1], topic.name), note="a member joins the full group again")
    session.ask(next_one(group, "b", -1), note="one leaves")
    session.quiet(first(group, "f", topic.name))
    describe_counts(session, group, "there was room")


@case(HEARTBEAT)
def different_subscriptions(session: Session) -> None:
    one, two = session.create_topic("t", partitions=4), session.create_topic("u", partitions=2)
    group = share_group(session, one)
    share_state.coordinated(session, group, two, 2)
    epochs = {"a": joined(session, group, "a", one.name)}
    epochs["b"] = joined(session, group, "b", two.name)
    epochs["c"] = session.quiet(first(group, "c", one.name, two.name)).member_epoch
    for each, epoch in epochs.items():
        epochs[each] = session.quiet(next_one(group, each, epoch)).member_epoch
    describe_counts(session, group, "three members")
    request = next_one(group, "c", epochs["c"], subscribed_topic_names=[two.name])
    epochs["c"] = session.quiet(request).member_epoch
    describe_counts(session, group, "c gives one up")
    for each, epoch in epochs.items():
        epochs[each] = session.quiet(next_one(group, each, epoch)).member_epoch
    describe_counts(session, group, "c has given one up")


@case(HEARTBEAT)
def sizes_of_assignments(session: Session) -> None:
    """Members that come and go, and topics too: how many partitions each has then."""
    topics = [session.create_topic(f"t{count}", partitions=count) for count in (1, 3, 7)]
    names = [topic.name for topic in topics]
    group = new_group(session)
    for topic, count in zip(topics, (1, 3, 7), strict=True):
        share_state.coordinated(session, group, topic, count)
    epochs = {"a": joined(session, group, "a", *names)}

    def all_know(note: str) -> None:
        for each, epoch in epochs.items():
            epochs[each] = session.quiet(next_one(group, each, epoch)).member_epoch
        describe_counts(session, group, note)

    def subscribe(member: str, *subscribed: str) -> None:
        request = next_one(group, member, epochs.get(member, 0), subscribed_topic_names=list(subscribed))
        epochs[member] = session.quiet(request).member_epoch
        all_know(f"{member}: {[names.index(name) for name in subscribed]}")

    def leave(member: str) -> None:
        session.quiet(next_one(group, member, -1))
        del epochs[member]
        all_know(f"{member} has left")

    for member in ("b", "c", "d"):
        subscribe(member, *names)
    leave("b")
    subscribe("e", names[2])
    subscribe("c", names[0], names[2])
    leave("a")
    subscribe("b", *names)
    subscribe("d", names[1])
    subscribe("a", names[1], names[2])
    subscribe("e", *names)
    leave("c")
    leave("d")
    subscribe("e", names[0])
    subscribe("a", *names)


@case(HEARTBEAT)
def assignment_interval(session: Session) -> None:
    topic = session.create_topic("t", partitions=2)
    group = share_group(session, topic, partitions=2)
    epochs = {"a": joined(session, group, "a", topic.name)}
    configure(session, group, "share.assignment.interval.ms", "15000")
    epochs["b"] = session.ask(first(group, "b", topic.name), note="b joins too soon").member_epoch
    describe_counts(session, group, "b waits")
    session.ask(next_one(group, "a", epochs["a"]), note="a, too soon")
    session.ask(next_one(group, "b", epochs["b"]), note="b, too soon")
    session.ask(first(group, "b", topic.name), note="b joins again, too soon")
    session.ask(next_one(group, "b", -1), note="b leaves")
    describe_counts(session, group, "b has left")
    session.ask(first(group, "b", topic.name), note="b joins too soon again")
    configure(session, group, "share.assignment.interval.ms", "1000")

    def is_assigned() -> bool:
        for each, epoch in epochs.items():
            epochs[each] = session.quiet(next_one(group, each, epoch)).member_epoch
        found = described(session, group)
        return found.assignment_epoch == found.group_epoch

    eventually(is_assigned)
    for each, epoch in epochs.items():
        epochs[each] = session.quiet(next_one(group, each, epoch)).member_epoch
    describe_counts(session, group, "b has something")


@case(HEARTBEAT)
def sessions_that_expire(session: Session) -> None:
    topic = session.create_topic("t", partitions=2)
    group = share_group(session, topic, partitions=2)
    configure(session, group, "share.heartbeat.interval.ms", "50")
    configure(session, group, "share.session.timeout.ms", "1000")
    session.ask(first(group, "a", topic.name), note="join")
    eventually(lambda: described(session, group).group_state == "Empty")
    describe(session, group, "a is gone")
    session.ask(next_one(group, "a", 1), note="a, after its session")


@case(DESCRIBE)
def shown(session: Session) -> None:
    group, classic = new_group(session), new_group(session, "classic")
    missing = session.name("missing")
    session.ask(ShareGroupDescribeRequest([]), note="nothing")
    session.ask(ShareGroupDescribeRequest([group, ""]), note="missing and empty")
    session.quiet(first(group, "a", missing))
    session.ask(ShareGroupDescribeRequest([group], True), note="with operations")
    session.ask(ShareGroupDescribeRequest([group, group]), note="twice")
    session.quiet(join_request(classic), version=3, on="member")
    session.ask(ShareGroupDescribeRequest([classic, group], True), note="classic, and one that is")
