"""Consumer groups with real members: joining, leaving, crashing, static, cooperative, resuming."""

from __future__ import annotations

import time

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import PLAIN, Sample
from compat_tests.harness.confluent_admin import NewPartitions
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import TopicFactory, UniqueName
from compat_tests.harness.members import LIBRARIES, SESSION_TIMEOUT_MS, ConfluentMember, Member, await_balance

by_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda one: one.library)


def _values(prefix: str, count: int) -> list[Sample]:
    return [Sample(None, b"%s-%d" % (prefix.encode(), number)) for number in range(count)]


@by_library
def test_members_join_share_and_leave(
    broker: Broker, topic: TopicFactory, unique: UniqueName, library: type[Member]
) -> None:
    name, group = topic(partitions=4), unique("group")
    first = library(broker.bootstrap, group, [name])
    await_balance([first], 4)
    second = library(broker.bootstrap, group, [name])
    await_balance([first, second], 4)
    for partition in range(4):
        PLAIN.produce(broker.bootstrap, name, _values(f"p{partition}", 10), partition=partition)
    eventually(lambda: len(first.values) + len(second.values) == 40)
    assert len(first.values) == len(second.values) == 20
    second.leave()
    await_balance([first], 4)
    PLAIN.produce(broker.bootstrap, name, _values("after", 5), partition=3)
    first.await_values(lambda values: {one.value for one in _values("after", 5)} <= set(values))
    first.leave()
    assert len(first.values) + len(second.values) == 45, "every record once: leaving commits"


def test_libraries_share_one_group(broker: Broker, topic: TopicFactory, unique: UniqueName) -> None:
    name, group = topic(partitions=6), unique("group")
    members = [library(broker.bootstrap, group, [name]) for library in LIBRARIES]
    await_balance(members, 6)
    for member in members:
        member.leave()


@pytest.mark.parametrize("library", [LIBRARIES[0], LIBRARIES[2]], ids=lambda one: one.library)
def test_members_share_the_partitions_after_cooperative_rebalances(
    broker: Broker, topic: TopicFactory, unique: UniqueName, library: type[Member]
) -> None:
    name, group = topic(partitions=4), unique("group")
    first = library(broker.bootstrap, group, [name], cooperative=True)
    await_balance([first], 4)
    second = library(broker.bootstrap, group, [name], cooperative=True)
    await_balance([first, second], 4)
    third = library(broker.bootstrap, group, [name], cooperative=True)
    await_balance([first, second, third], 4)
    for member in (first, second, third):
        member.leave()


@by_library
def test_a_static_member_returns_without_a_rebalance(
    broker: Broker, topic: TopicFactory, unique: UniqueName, library: type[Member]
) -> None:
    name, group = topic(partitions=4), unique("group")
    session_ms = 30_000  # long enough for the member to return, on a busy machine as well
    stays = ConfluentMember(
        broker.bootstrap, group, [name], instance_id="stays", session_timeout_ms=session_ms
    )
    returns = library(broker.bootstrap, group, [name], instance_id="returns", session_timeout_ms=session_ms)
    await_balance([stays, returns], 4)
    rebalances = stays.rebalances
    held = returns.assigned
    returns.leave()  # static members send no LeaveGroup: the group waits for the session timeout
    again = library(broker.bootstrap, group, [name], instance_id="returns", session_timeout_ms=session_ms)
    await_balance([stays, again], 4)
    assert again.assigned == held
    assert stays.rebalances == rebalances
    again.leave()
    stays.leave()


def test_a_member_that_vanishes_loses_its_partitions(
    broker: Broker, topic: TopicFactory, unique: UniqueName
) -> None:
    name, group = topic(partitions=2), unique("group")
    # a static member stops without LeaveGroup, like one that has crashed
    stays = ConfluentMember(broker.bootstrap, group, [name], instance_id="stays")
    vanishes = ConfluentMember(broker.bootstrap, group, [name], instance_id="vanishes")
    await_balance([stays, vanishes], 2)
    started = time.monotonic()
    vanishes.leave()
    await_balance([stays], 2)
    taken = time.monotonic() - started
    assert taken > SESSION_TIMEOUT_MS / 1000 - 2, "removed before its session timed out"
    stays.leave()


@by_library
def test_a_new_member_resumes_at_the_committed_offset(
    broker: Broker, topic: TopicFactory, unique: UniqueName, library: type[Member]
) -> None:
    name, group = topic(), unique("group")
    PLAIN.produce(broker.bootstrap, name, _values("first", 20))
    member = library(broker.bootstrap, group, [name])
    member.await_values(lambda values: len(values) == 20)
    member.leave()
    PLAIN.produce(broker.bootstrap, name, _values("second", 7))
    for other in LIBRARIES:
        if other is not library:
            break
    again = other(broker.bootstrap, group, [name])
    again.await_values(lambda values: len(values) == 7)
    again.leave()
    assert again.values == [one.value for one in _values("second", 7)]


@by_library
def test_partitions_added_later_are_shared_too(
    broker: Broker, topic: TopicFactory, unique: UniqueName, library: type[Member]
) -> None:
    name, group = topic(partitions=1), unique("group")
    member = library(broker.bootstrap, group, [name])
    await_balance([member], 1)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_partitions([NewPartitions(name, 3)])[name].result(30)
    await_balance([member], 3)
    member.leave()


def test_commit_and_committed_with_metadata(broker: Broker, topic: TopicFactory, unique: UniqueName) -> None:
    name, group = topic(partitions=2), unique("group")
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer(settings)
    consumer.commit(
        offsets=[confluent_kafka.TopicPartition(name, 0, 42, metadata="a note")], asynchronous=False
    )
    found = consumer.committed(
        [confluent_kafka.TopicPartition(name, 0), confluent_kafka.TopicPartition(name, 1)], timeout=10
    )
    consumer.close()
    assert [one.offset for one in found] == [42, confluent_kafka.OFFSET_INVALID]
    assert found[0].metadata == "a note"
