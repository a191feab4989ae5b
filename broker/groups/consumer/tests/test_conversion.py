"""Classic groups that become consumer groups, and back, while their members stay: under all policies."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.broker.groups.consumer import classic_members, embedded_protocol
from barnabas.broker.groups.consumer.tests.members import (
    SESSION_MS,
    ConsumerMember,
    Groups,
    Partition,
    all_partitions,
    topic_id,
)
from barnabas.broker.groups.group import ClassicGroup
from barnabas.broker.groups.member import PROTOCOL_OVERHEAD_BYTES
from barnabas.broker.groups.settings import GroupSettings
from barnabas.broker.groups.tests.conftest import GROUP
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.consumer_protocol import (
    CONSUMER_PROTOCOL_SUBSCRIPTION,
    ConsumerProtocolSubscription,
    TopicPartition,
)

POLICIES = ("bidirectional", "upgrade", "downgrade", "disabled")


def subscription(topic: str, owned: set[Partition]) -> bytes:
    partitions = [TopicPartition(topic, sorted(index for _, index in owned))] if owned else []
    message = ConsumerProtocolSubscription([topic], None, partitions)
    parts = CONSUMER_PROTOCOL_SUBSCRIPTION.encode(1, message)
    return b"\0\1" + b"".join(parts)  # type: ignore[arg-type]  # all bytes


class ClassicConsumer:
    """A member of the classic protocol with a cooperative assignor: it joins again when a heartbeat says so, and keeps what it has
    meanwhile."""

    def __init__(self, groups: Groups, topic: str, instance: str | None = None) -> None:
        self.groups = groups
        self.topic = topic
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.owned: set[Partition] = set()
        self.joining: Any = None

    def join(self) -> None:
        self.joining = self.groups.join(
            self.member_id,
            instance=self.instance,
            protocols=[("cooperative-sticky", subscription(self.topic, self.owned))],
            rebalance_ms=60_000,
            session_ms=45_000,
        )
        self.go_on()

    def go_on(self) -> None:
        """Follow the answer to JoinGroup, if there is one."""
        if self.joining is None or self.joining.waiting:
            return
        answer, self.joining = self.joining, None
        if answer.error == E.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self.join()
        elif answer.error in (E.UNKNOWN_MEMBER_ID, E.REBALANCE_IN_PROGRESS):
            self.join()
        else:
            assert answer.error == E.NONE
            self.member_id, self.generation = answer.member_id, answer.generation_id
            self.sync({each.member_id: None for each in answer.members})

    def sync(self, members: dict[str, None]) -> None:
        given = {}
        if members:  # it leads a classic group
            for number, member_id in enumerate(members):
                mine = self.share(sorted(all_partitions(self.groups, self.topic)), number, len(members))
                given[member_id] = embedded_protocol.encoded_assignment(
                    self.groups.image, {topic_id(self.topic): [index for _, index in mine]}, 1
                )
        self.syncing = self.groups.sync(
            self.member_id,
            self.generation,
            given,
            instance=self.instance,
            protocol_name="cooperative-sticky",
        )
        self.take()

    def share(self, everything: list[Partition], number: int, count: int) -> list[Partition]:
        """What the leader gives to one of the members."""
        return everything[number::count]

    def take(self) -> None:
        if self.syncing is None or self.syncing.waiting:
            return
        answer, self.syncing = self.syncing, None
        if answer.error == E.REBALANCE_IN_PROGRESS:
            self.join()
            return
        assert answer.error == E.NONE
        assigned = embedded_protocol.assignment(answer.assignment)
        after = {
            (topic_id(each.topic), index)
            for each in assigned.assigned_partitions
            for index in each.partitions
        }
        has_given_up = not self.owned <= after
        self.owned = after
        if has_given_up:
            self.join()  # as cooperative consumers do

    def heartbeat(self) -> None:
        self.go_on()
        self.take()
        if self.joining is not None:
            return
        error = self.groups.heartbeat(self.member_id, self.generation, self.instance)
        if error in (E.REBALANCE_IN_PROGRESS, E.ILLEGAL_GENERATION):
            self.join()
        else:
            assert error == E.NONE, error

    syncing: Any = None


def bring_level(groups: Groups, *members: ClassicConsumer | ConsumerMember) -> None:
    """Heartbeats until each partition has one owner, which no round changes."""
    everything = sorted(all_partitions(groups, "orders"))
    for _ in range(12):
        groups.clock.pass_ms(100)
        before = [set(member.owned) for member in members]
        for member in members:
            member.heartbeat()
            owned = [partition for each in members for partition in each.owned]
            assert len(owned) == len(set(owned)), "a partition has two owners"
        after = [member.owned for member in members]
        if before == after and sorted(partition for each in after for partition in each) == everything:
            return
    raise AssertionError([sorted(member.owned) for member in members])


def classic_pair(groups: Groups) -> tuple[ClassicConsumer, ClassicConsumer]:
    groups.create_topic("orders", 6)
    a, b = ClassicConsumer(groups, "orders"), ClassicConsumer(groups, "orders")
    a.join()
    b.join()
    bring_level(groups, a, b)
    return a, b


def test_members_change_their_protocol_one_by_one_and_back() -> None:
    groups = Groups()
    a, b = classic_pair(groups)
    c, d = ConsumerMember(groups, "c", "orders"), ConsumerMember(groups, "d", "orders")
    c.heartbeat()
    assert groups.consumer_group.classic_count == 2
    bring_level(groups, a, b, c)
    groups.leave(a.member_id)
    d.heartbeat()
    bring_level(groups, b, c, d)
    groups.leave(b.member_id)
    bring_level(groups, c, d)
    assert groups.consumer_group.classic_count == 0
    e = ClassicConsumer(groups, "orders")
    e.join()
    bring_level(groups, c, d, e)
    c.leave()
    bring_level(groups, d, e)
    d.leave()
    assert isinstance(groups.shard.groups[GROUP], ClassicGroup)
    bring_level(groups, e)
    groups.reload()
    assert groups.group.members.keys() == {e.member_id}


@pytest.mark.parametrize("policy", POLICIES)
def test_each_policy(policy: str) -> None:
    groups = Groups(GroupSettings(group_consumer_migration_policy=policy))
    a, b = classic_pair(groups)
    c = ConsumerMember(groups, "c", "orders")
    answer = groups.heartbeat_of(c.request())
    if policy not in ("bidirectional", "upgrade"):
        assert answer.error == E.GROUP_ID_NOT_FOUND
        bring_level(groups, a, b)
        return
    bring_level(groups, a, b, c)
    c.leave()
    is_classic = isinstance(groups.shard.groups[GROUP], ClassicGroup)
    assert is_classic == (policy == "bidirectional")
    bring_level(groups, a, b)


@pytest.mark.parametrize("policy", POLICIES)
def test_classic_members_of_a_consumer_group(policy: str) -> None:
    groups = Groups(GroupSettings(group_consumer_migration_policy=policy))
    groups.create_topic("orders", 6)
    a = ConsumerMember(groups, "a", "orders")
    a.heartbeat()
    b = ClassicConsumer(groups, "orders")
    if policy == "disabled":
        protocols = [("cooperative-sticky", subscription("orders", set()))]
        assert groups.join("m", protocols=protocols).error == E.INCONSISTENT_GROUP_PROTOCOL
        return
    b.join()
    bring_level(groups, a, b)
    a.leave()
    is_classic = isinstance(groups.shard.groups[GROUP], ClassicGroup)
    assert is_classic == (policy in ("bidirectional", "downgrade"))
    bring_level(groups, b)


def test_the_last_member_of_the_new_protocol_falls_silent() -> None:
    groups = Groups()
    a, b = classic_pair(groups)
    c = ConsumerMember(groups, "c", "orders")
    bring_level(groups, a, b, c)
    for _ in range(SESSION_MS // 5000 + 1):
        groups.clock.pass_ms(5000)
        a.heartbeat()
        b.heartbeat()
    assert isinstance(groups.shard.groups[GROUP], ClassicGroup)
    bring_level(groups, a, b)


def test_a_classic_member_that_does_not_join_again_is_removed() -> None:
    groups = Groups()
    a, b = classic_pair(groups)
    c = ConsumerMember(groups, "c", "orders")
    c.heartbeat()
    assert groups.heartbeat(a.member_id, a.generation) == E.REBALANCE_IN_PROGRESS
    for _ in range(13):
        groups.clock.pass_ms(5000)
        groups.heartbeat(a.member_id, a.generation)
        b.heartbeat()
        c.heartbeat()
    assert a.member_id not in groups.consumer_group.members
    bring_level(groups, b, c)


def test_a_subscription_that_cannot_be_read_keeps_the_group_classic() -> None:
    groups = Groups()
    groups.create_topic("orders", 2)
    groups.stable(protocols=[("range", b"\0")])
    answer = groups.heartbeat_of(ConsumerMember(groups, "c", "orders").request())
    assert answer.error == E.GROUP_ID_NOT_FOUND
    assert groups.group.members


class Broadcast(ClassicConsumer):
    """Its assignor gives every member everything."""

    def share(self, everything: list[Partition], _number: int, _count: int) -> list[Partition]:
        return everything


def test_members_that_share_partitions_stay_in_a_classic_group() -> None:
    groups = Groups()
    groups.create_topic("orders", 6)
    members = [Broadcast(groups, "orders"), Broadcast(groups, "orders")]
    for member in members:
        member.join()
    for member in members * 3:
        groups.clock.pass_ms(100)
        member.heartbeat()
    assert [len(member.owned) for member in members] == [6, 6]
    answer = groups.heartbeat_of(ConsumerMember(groups, "c", "orders").request())
    assert answer.error == E.GROUP_ID_NOT_FOUND
    assert isinstance(groups.shard.groups[GROUP], ClassicGroup)


def test_subscriptions_that_are_too_long_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Groups()
    groups.create_topic("orders", 2)
    groups.stable(2, protocols=[("range", subscription("orders", set()) + bytes(600_000))])
    read: list[bytes] = []
    monkeypatch.setattr(embedded_protocol, "subscription", read.append)
    answer = groups.heartbeat_of(ConsumerMember(groups, "c", "orders").request())
    assert answer.error == E.GROUP_ID_NOT_FOUND
    assert not read
    assert len(groups.group.members) == 2


def test_an_upgrade_that_cannot_be_written_changes_nothing() -> None:
    groups = Groups()
    a, b = classic_pair(groups)
    groups.log.error = E.NOT_ENOUGH_REPLICAS
    answer = groups.heartbeat_of(ConsumerMember(groups, "c", "orders").request())
    assert answer.error == E.COORDINATOR_NOT_AVAILABLE
    groups.log.error = E.NONE
    bring_level(groups, a, b)
    assert isinstance(groups.shard.groups[GROUP], ClassicGroup)


def test_a_pending_upgrade_that_fails_leaves_the_classic_group() -> None:
    groups = Groups()
    a, b = classic_pair(groups)
    groups.log.hold = True
    answer = groups.heartbeat_of(ConsumerMember(groups, "c", "orders").request())
    groups.log.settle(E.NOT_LEADER_OR_FOLLOWER)
    assert answer.error == E.NOT_COORDINATOR
    assert isinstance(groups.shard.groups[GROUP], ClassicGroup)
    groups.log.hold = False
    groups.reload()
    assert sorted(groups.group.members) == sorted([a.member_id, b.member_id])


def test_the_protocols_of_a_classic_member_are_counted_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Groups()
    groups.create_topic("orders", 6)
    ConsumerMember(groups, "a", "orders").heartbeat()
    few = [("range", subscription("orders", set()))]
    counted = groups.consumer_group.described_bytes
    assert not groups.join(protocols=few, version=3).error
    one = groups.consumer_group.described_bytes - counted
    assert not groups.join(protocols=few + [("a", b"")] * 1000, version=3).error
    assert groups.consumer_group.described_bytes - counted - 2 * one >= 1000 * PROTOCOL_OVERHEAD_BYTES
    groups.check_counted()
    monkeypatch.delattr(classic_members, "_check_protocols")
    refused = groups.join(protocols=few + [("a", b"")] * 100_000, version=3)
    assert refused.error == E.GROUP_MAX_SIZE_REACHED


@pytest.mark.parametrize(
    ("append", "answer"), [(E.NONE, E.NONE), (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR)]
)
def test_what_a_classic_member_is_given_is_committed(append: E, answer: E) -> None:
    groups = Groups()
    groups.create_topic("orders", 6)
    a, b = ConsumerMember(groups, "a", "orders"), ClassicConsumer(groups, "orders")
    a.heartbeat()
    groups.log.hold = True
    b.join()
    assert b.joining is not None, "its records are not committed"
    groups.log.settle(append)
    assert b.joining.error == answer
    if answer:
        assert sorted(groups.consumer_group.members) == ["a"]
        b.join()
        groups.log.settle()
    revoking = groups.heartbeat_of(a.request())
    assert revoking.waiting
    b.go_on()
    assert b.syncing is not None, "what came before may still fail"
    groups.log.settle(append)
    assert b.syncing.error == answer


def test_an_empty_group_stays_when_a_join_is_refused() -> None:
    groups = Groups()
    groups.create_topic("orders", 1)
    member = ConsumerMember(groups, "a", "orders")
    member.heartbeat()
    member.leave()
    assert groups.join("nobody", protocols=[("range", b"m")]).error == E.UNKNOWN_MEMBER_ID
    assert groups.consumer_group.is_empty
