"""Share groups (KIP-932) with real members: KafkaShareConsumer of Java, ShareConsumer of confluent-kafka, Kafka's tools."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import AcknowledgeType, Message, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient

from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import PLAIN, Sample
from compat_tests.harness.confluent_admin import NewPartitions
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import BrokerFactory, UniqueName
from compat_tests.harness.java_shares import (
    ACCEPT,
    REJECT,
    RELEASE,
    RENEW,
    Delivery,
    ShareClients,
    ShareMember,
    await_no_lag,
)
from compat_tests.harness.java_tools import JavaTools
from compat_tests.harness.loads import PARTITIONS as LOAD_PARTITIONS
from compat_tests.harness.share_work import ShareWork
from compat_tests.harness.topics import create_topic
from compat_tests.harness.transactional_clients import ConfluentProducer

pytestmark = pytest.mark.jvm

ROUNDS = int(os.environ.get("BARNABAS_CHAOS_ROUNDS", "1"))
LOCK_MS = 1_000
# Heartbeats come often, so that members hear of changes soon, and locks can be short.
SETTINGS = {
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.heartbeat.interval.ms": "200",
    "group.share.min.session.timeout.ms": "1000",
    "group.share.session.timeout.ms": "6000",
    "group.share.assignment.interval.ms": "0",
    "group.share.min.record.lock.duration.ms": str(LOCK_MS),
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",  # a topic that is deleted stays so
    "offsets.topic.num.partitions": "5",
    "share.coordinator.state.topic.num.partitions": "5",
}


@pytest.fixture(scope="module")
def shares() -> Iterator[ShareClients]:
    """The JVM of the share consumers, one for the module."""
    clients = ShareClients()
    yield clients
    clients.close()


@pytest.fixture(scope="module")
def quick(module_broker: BrokerFactory) -> Broker:
    return module_broker(SETTINGS)


class Shared:
    """A topic, and a group that begins with its first record."""

    def __init__(
        self, broker: Broker, shares: ShareClients, unique: UniqueName, partitions: int = 1, **configs: str
    ) -> None:
        self.bootstrap, self._shares = broker.bootstrap, shares
        self.topic = create_topic(broker.bootstrap, unique("topic"), partitions, {"retention.ms": "-1"})
        self.group = unique("group")
        self.configure("share.auto.offset.reset=earliest")

    def configure(self, *configs: str) -> None:
        self._shares.configure(self.bootstrap, self.group, dict(each.split("=") for each in configs))

    def produce(self, *values: str, partition: int = 0) -> None:
        """One batch."""
        samples = [Sample(None, value.encode()) for value in values]
        PLAIN.produce(self.bootstrap, self.topic, samples, partition=partition)

    def member(self, **configs: str) -> ShareMember:
        return self._shares.member(self.bootstrap, self.group, self.topic, **configs)

    def await_no_lag(self, partitions: int = 1) -> None:
        await_no_lag(self._shares, self.bootstrap, self.group, partitions)


@pytest.fixture
def shared(quick: Broker, shares: ShareClients, unique: UniqueName) -> Shared:
    return Shared(quick, shares, unique)


def numbered(count: int, first: int = 0) -> list[str]:
    return [f"v{number}" for number in range(first, first + count)]


def counts(deliveries: list[Delivery]) -> list[tuple[int, int]]:
    """(offset, delivery count) of each."""
    return [(each.offset, each.delivery) for each in deliveries]


def read(member: ShareMember, count: int) -> list[str]:
    """The next values that a member with implicit acknowledgement gets."""
    values: list[str] = []
    while len(values) < count:
        held = member.poll()
        assert held, f"{count} wanted, there are {values}"
        values += [each.value for each in held]
    return values


# -- KafkaShareConsumer


def test_records_are_accepted_released_and_rejected(shared: Shared) -> None:
    shared.produce(*numbered(6))
    member = shared.member()
    assert counts(member.poll()) == [(offset, 1) for offset in range(6)]
    assert member.lock_ms() == 30_000
    member.acknowledge(ACCEPT, 0, 1)
    member.acknowledge(RELEASE, 2, 3)
    member.acknowledge(REJECT, 4, 5)
    assert member.commit() == {0: "ok"}
    again = member.poll()
    assert again == [Delivery(0, 2, 2, "v2"), Delivery(0, 3, 2, "v3")]
    member.finish(ACCEPT, again)
    member.close()
    assert member.acknowledged() == [(0, offset, "ok") for offset in (0, 1, 2, 2, 3, 3, 4, 5)]
    shared.await_no_lag()


def test_without_acknowledgements_the_next_poll_accepts(shared: Shared) -> None:
    shared.produce(*numbered(3))
    member = shared.member(share_acknowledgement_mode="implicit")
    assert counts(member.poll()) == [(0, 1), (1, 1), (2, 1)]
    assert member.poll(0.1) == []
    shared.await_no_lag()
    shared.produce("last")
    assert counts(member.poll()) == [(3, 1)]
    member.close()  # accepts nothing
    other = shared.member(share_acknowledgement_mode="implicit")
    assert counts(other.poll()) == [(3, 2)]
    assert other.commit() == {0: "ok"}
    other.close()
    shared.await_no_lag()


def test_a_member_that_leaves_releases_what_it_has_not_acknowledged(shared: Shared) -> None:
    shared.produce(*numbered(4))
    leaves = shared.member()
    assert len(leaves.poll()) == 4
    leaves.acknowledge(ACCEPT, 0)
    leaves.close()
    stays_on = shared.member()
    left = stays_on.poll()
    assert counts(left) == [(1, 2), (2, 2), (3, 2)]
    stays_on.finish(ACCEPT, left)
    stays_on.close()
    shared.await_no_lag()


def test_a_lock_that_expires_gives_the_record_to_another_member(shared: Shared) -> None:
    shared.configure(f"share.record.lock.duration.ms={LOCK_MS}")
    shared.produce(*numbered(2))
    slow, other = shared.member(), shared.member()
    slow_has = slow.poll()
    assert counts(slow_has) == [(0, 1), (1, 1)]
    assert slow.lock_ms() == LOCK_MS
    began = time.monotonic()
    other_has = other.poll()
    assert counts(other_has) == [(0, 2), (1, 2)]
    assert time.monotonic() - began > 0.5 * LOCK_MS / 1000
    slow.acknowledge(ACCEPT, 0, 1)
    assert slow.commit() == {0: "InvalidRecordStateException"}
    other.finish(ACCEPT, other_has)
    slow.close()
    other.close()
    shared.await_no_lag()


def test_renewed_locks_hold(shared: Shared) -> None:
    shared.configure(f"share.record.lock.duration.ms={LOCK_MS}")
    shared.produce(*numbered(2))
    holder = shared.member()
    held = holder.poll()
    other = shared.member()
    for _ in range(3):
        assert other.poll(0.6 * LOCK_MS / 1000) == []
        holder.acknowledge(RENEW, 0, 1)
        assert holder.commit() == {0: "ok"}
        assert holder.poll(1) == held  # the client hands renewed records out again
    holder.acknowledge(ACCEPT, 0)
    holder.acknowledge(RELEASE, 1)
    assert holder.commit() == {0: "ok"}
    shared.configure("share.renew.acknowledge.enable=false")
    holder.close()
    last = other.poll()
    assert counts(last) == [(1, 2)]
    other.acknowledge(RENEW, 1)
    assert other.commit() == {0: "InvalidRecordStateException"}
    other.close()


def test_acquire_modes(shared: Shared) -> None:
    shared.produce(*numbered(50))
    by_batch = shared.member(max_poll_records="10")
    assert len(by_batch.poll()) == 50, "whole batches of the log"
    by_batch.close()
    by_record = shared.member(max_poll_records="10", share_acquire_mode="record_limit")
    for first in range(0, 50, 10):
        held = by_record.poll()
        assert counts(held) == [(offset, 2) for offset in range(first, first + 10)]
        by_record.finish(ACCEPT, held)
    by_record.close()
    shared.await_no_lag()


def test_record_that_fails_again_and_again_is_archived_alone(shared: Shared) -> None:
    """From the third of five deliveries on the batch comes in parts, so that its other records are not archived with it."""
    shared.produce(*numbered(8))
    member = shared.member()
    handed_out = []
    for _ in range(13):
        held = member.poll()
        handed_out.append(([each.offset for each in held], {each.delivery for each in held}))
        fails = len(held) > 1 or held[0].offset == 5
        member.finish(RELEASE if fails else ACCEPT, held)
    assert member.poll(0.3) == []
    every = list(range(8))
    assert handed_out == [
        *((every, {1}), (every, {2}), (every, {3})),
        ([0, 1, 2, 3], {4}),
        *(([offset], {5}) for offset in (0, 1, 2, 3)),
        ([4, 5, 6, 7], {4}),
        *(([offset], {5}) for offset in (4, 5, 6, 7)),
    ]
    member.close()
    shared.await_no_lag()


def test_read_committed_leaves_out_aborted_transactions(
    quick: Broker, shares: ShareClients, unique: UniqueName
) -> None:
    committed, every = (Shared(quick, shares, unique) for _ in range(2))
    every.topic = committed.topic
    committed.configure("share.isolation.level=read_committed")
    producer = ConfluentProducer(quick.bootstrap, unique("transactional-id"))
    producer.initialize()
    for number, ending in enumerate(("commit", "abort", "commit")):
        producer.begin()
        producer.send(committed.topic, [(0, f"{ending}-{number}-{each}") for each in range(3)])
        getattr(producer, ending)()
    producer.begin()
    producer.send(committed.topic, [(0, "open")])
    found = {}
    for group, wanted in ((committed, 6), (every, 10)):
        member = group.member()
        values: list[str] = []
        while len(values) < wanted:
            held = member.poll()
            assert held, values
            values += [each.value for each in held]
            member.finish(ACCEPT, held)
        assert member.poll(0.3) == []
        found[wanted] = values, member
    assert found[6][0] == [f"commit-{number}-{each}" for number in (0, 2) for each in range(3)]
    assert found[10][0][3:6] == [f"abort-1-{each}" for each in range(3)]
    producer.abort()
    assert found[6][1].poll(0.3) == []
    for _, member in found.values():
        member.close()


def test_two_members_share_one_partition(shared: Shared) -> None:
    members = [shared.member(max_poll_records="5", share_acquire_mode="record_limit") for _ in range(2)]
    for number in range(10):
        shared.produce(*numbered(10, 10 * number))
    got: list[list[int]] = [[], []]
    while sum(map(len, got)) < 100:
        holds = [member.poll(0.2) for member in members]
        for member, held, all_of_it in zip(members, holds, got, strict=True):
            if held:
                assert {each.delivery for each in held} == {1}
                all_of_it += [each.offset for each in held]
                member.finish(ACCEPT, held)
    assert sorted(itertools.chain(*got)) == list(range(100)), "each record once"
    assert all(got), "both get some"
    for member in members:
        member.close()
    shared.await_no_lag()


def test_where_a_group_begins(quick: Broker, shares: ShareClients, unique: UniqueName) -> None:
    producer = Producer({"bootstrap.servers": quick.bootstrap})
    now_ms = int(time.time() * 1000)
    groups = []
    for reset, expected in (
        ("earliest", ["5h", "3h", "1h", "new"]),
        ("by_duration:PT2H", ["1h", "new"]),
        ("by_duration:P1D", ["5h", "3h", "1h", "new"]),
        ("by_duration:PT1M", ["new"]),
        ("latest", ["new"]),
    ):
        group = Shared(quick, shares, unique)
        for hours in (5, 3, 1):  # a batch each
            producer.produce(group.topic, f"{hours}h", timestamp=now_ms - hours * 3_600_000)
            producer.flush(30)
        group.configure(f"share.auto.offset.reset={reset}")
        member = group.member(share_acknowledgement_mode="implicit")
        groups.append((group, member, expected, [each.value for each in member.poll(1)]))
    for group, member, expected, values in groups:
        producer.produce(group.topic, "new")
        producer.flush(30)
        assert [*values, *read(member, len(expected) - len(values))] == expected
        member.close()


@pytest.mark.parametrize(
    "reset",
    # Kafka 4.3.1 begins at the end of an added partition and so loses what was produced first (KAFKA-20742).
    ["earliest", pytest.param("latest", marks=pytest.mark.barnabas_only)],
)
def test_partitions_that_are_added_are_read_from_their_start(shared: Shared, reset: str) -> None:
    shared.produce("before")
    member = shared.member(share_acknowledgement_mode="implicit")
    assert [each.value for each in member.poll()] == ["before"]
    shared.configure(f"share.auto.offset.reset={reset}")
    admin = AdminClient({"bootstrap.servers": shared.bootstrap})
    admin.create_partitions([NewPartitions(shared.topic, 3)])[shared.topic].result(30)
    producer = Producer({"bootstrap.servers": shared.bootstrap})
    for partition in (1, 2):
        producer.produce(shared.topic, f"in-{partition}", partition=partition)
    producer.flush(30)
    assert sorted(read(member, 2)) == ["in-1", "in-2"]
    member.poll(0.1)
    member.close()
    shared.await_no_lag(3)


def test_topic_that_is_deleted_and_made_again_is_read_anew(shared: Shared) -> None:
    shared.produce(*numbered(3))
    member = shared.member(share_acknowledgement_mode="implicit")
    assert len(member.poll()) == 3
    admin = AdminClient({"bootstrap.servers": shared.bootstrap})
    admin.delete_topics([shared.topic])[shared.topic].result(30)
    eventually(lambda: shared.topic not in admin.list_topics(timeout=30).topics)
    assert member.poll(0.5) == []
    create_topic(shared.bootstrap, shared.topic, 1)
    shared.produce("again")
    assert member.poll() == [Delivery(0, 0, 1, "again")]
    member.poll(0.1)
    member.close()
    shared.await_no_lag()


# -- ShareConsumer of confluent-kafka


class ConfluentShareMember:
    """Explicit acknowledgement."""

    def __init__(self, shared: Shared, mode: str = "explicit") -> None:
        self.consumer = ShareConsumer(
            {
                "bootstrap.servers": shared.bootstrap,
                "group.id": shared.group,
                "share.acknowledgement.mode": mode,
            }
        )
        self.consumer.subscribe([shared.topic])

    def poll(self, timeout: float = 30) -> list[Message]:
        """The records of the first poll that has any."""
        deadline = time.monotonic() + timeout
        while True:
            found = [each for each in self.consumer.poll(0.1) if each.error() is None]
            if found or time.monotonic() > deadline:
                return found

    def commit(self) -> None:
        assert set(self.consumer.commit_sync(30).values()) <= {None}


def described(messages: list[Message]) -> list[tuple[int | None, int | None]]:
    """(offset, delivery count) of each."""
    return [(each.offset(), each.delivery_count()) for each in messages]


def test_confluent_accepts_releases_and_rejects(shared: Shared) -> None:
    shared.produce(*numbered(6))
    member = ConfluentShareMember(shared)
    held = member.poll()
    assert described(held) == [(offset, 1) for offset in range(6)]
    kinds = (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT)
    for message in held:
        member.consumer.acknowledge(message, kinds[(message.offset() or 0) // 2])
    member.commit()
    again = member.poll()
    assert described(again) == [(2, 2), (3, 2)]
    for message in again:
        member.consumer.acknowledge(message)
    member.commit()
    member.consumer.close()
    shared.await_no_lag()


def test_confluent_and_java_members_share_one_partition(shared: Shared) -> None:
    shared.configure(f"share.record.lock.duration.ms={LOCK_MS}")
    confluent = ConfluentShareMember(shared, "implicit")
    java = shared.member(share_acknowledgement_mode="implicit")
    got: list[list[int]] = [[], []]
    number = 0
    while not all(map(len, got)) or sum(map(len, got)) < 10 * number:
        assert number < 100, "one member gets nothing"
        shared.produce(*numbered(10, 10 * number))
        number += 1
        got[0] += [each.offset() or 0 for each in confluent.poll(0.2)]
        got[1] += [each.offset for each in java.poll(0.2)]
    confluent.commit()
    java.commit()
    assert sorted(itertools.chain(*got)) == list(range(10 * number)), "each record once"
    confluent.consumer.close()
    java.close()
    shared.await_no_lag()


# -- Kafka's tools


def rows(output: str) -> list[list[str]]:
    """The words of each line of a table."""
    return [line.split() for line in output.splitlines() if line.strip()]


def test_console_and_verifiable_consumers(shared: Shared, java_tools: JavaTools) -> None:
    server = ("--bootstrap-server", shared.bootstrap)
    shared.produce(*numbered(6))

    def consume(*options: str) -> list[list[str]]:
        printed = ("print.delivery=true", "print.offset=true")
        result = java_tools.run(
            "kafka-console-share-consumer",
            *(*server, "--topic", shared.topic, "--group", shared.group, *options),
            *(word for each in printed for word in ("--formatter-property", each)),
        )
        return rows(result.stdout)

    def printed(first: int, last: int, count: int) -> list[list[str]]:
        return [[f"Offset:{each}", f"Delivery:{count}", f"v{each}"] for each in range(first, last + 1)]

    assert consume("--release", "--max-messages", "3") == printed(0, 2, 1)
    assert consume("--reject", "--max-messages", "2") == printed(0, 1, 2)
    assert consume("--max-messages", "1") == printed(2, 2, 3)
    # a value that its deserializer does not accept is rejected by the client
    long = ("--value-deserializer", "org.apache.kafka.common.serialization.LongDeserializer")
    (begun,) = consume("--reject-message-on-error", "--timeout-ms", "2000", *long)
    assert begun == ["Offset:3", "Delivery:4", "Offset:4", "Delivery:4", "Offset:5", "Delivery:4"]
    shared.await_no_lag()
    arguments = ("--topic", shared.topic, "--group-id", shared.group, "--acknowledgement-mode", "sync")
    verifiable = java_tools.start("kafka-verifiable-share-consumer", *server, *arguments)
    verifiable.wait_for(lambda output: "startup_complete" in output)
    shared.produce(*numbered(4, 6))

    def acknowledged(output: str) -> list[int]:
        """How many records each time, by the whole lines of the output: the last one may be half there."""
        events = [json.loads(line) for line in output.splitlines(keepends=True) if line.endswith("\n")]
        done = [each for each in events if each["name"] == "offsets_acknowledged"]
        assert all(each["success"] for each in done)
        return [each["count"] for each in done]

    assert acknowledged(verifiable.wait_for(lambda output: bool(acknowledged(output)))) == [4]
    verifiable.stop()
    verifiable.wait()
    shared.await_no_lag()


def test_groups_are_listed_described_reset_and_deleted(shared: Shared, java_tools: JavaTools) -> None:
    group, topic = shared.group, shared.topic

    def run(tool: str, *options: str, status: int = 0) -> str:
        return java_tools.run(tool, "--bootstrap-server", shared.bootstrap, *options, status=status).output

    def describe(*options: str) -> list[list[str]]:
        return rows(run("kafka-share-groups", "--describe", "--group", group, *options))

    def reset(*options: str) -> list[list[str]]:
        found = rows(run("kafka-share-groups", "--reset-offsets", "--group", group, *options))
        return [row for row in found if row[0] == group]

    entity = ("--entity-type", "groups", "--entity-name", group)
    run("kafka-configs", "--alter", *entity, "--add-config", "share.delivery.count.limit=3")
    below = ("--alter", *entity, "--add-config", "share.record.lock.duration.ms=1")
    assert f"Value must be at least {LOCK_MS}" in run("kafka-configs", *below, status=1)
    configs = run("kafka-configs", "--describe", *entity)
    assert "DYNAMIC_GROUP_CONFIG:share.delivery.count.limit=3" in configs
    assert "DEFAULT_CONFIG:group.share.delivery.count.limit=5" in configs

    shared.produce(*numbered(6))
    member = shared.member()
    held = member.poll()
    member.acknowledge(ACCEPT, 0, 1)
    member.acknowledge(RELEASE, 2, 3, 4, 5)
    assert member.commit() == {0: "ok"}
    member.finish(ACCEPT, member.poll()[:2])
    assert len(held) == 6
    assert [group, "Share", "share"] in rows(run("kafka-groups", "--list", "--share"))
    assert group in run("kafka-share-groups", "--list").split()
    assert [group, "Stable"] in rows(run("kafka-share-groups", "--list", "--state"))
    assert [group] not in [row[:1] for row in rows(run("kafka-share-groups", "--list", "--state", "empty"))]
    assert describe("--offsets") == [
        ["GROUP", "TOPIC", "PARTITION", "START-OFFSET", "LAG"],
        [group, topic, "0", "2", "2"],
    ]
    assert describe("--offsets", "--verbose")[1] == [group, topic, "0", "0", "2", "2"]
    assert describe("--state")[1] == [group, shared.bootstrap, "(1)", "Stable", "1"]
    verbose = describe("--state", "--verbose")
    assert verbose[0][-3:] == ["GROUP-EPOCH", "ASSIGNMENT-EPOCH", "#MEMBERS"]
    epoch = verbose[1][-2]
    (described_member,) = describe("--members", "--verbose")[1:]
    assert described_member[2].endswith("127.0.0.1")
    assert described_member[4:] == ["1", epoch, f"{topic}:0"]
    refused = ("--group", group, "--topic", topic)
    assert "is not empty" in run(
        "kafka-share-groups", "--reset-offsets", *refused, "--to-earliest", "--execute", status=1
    )
    assert "not empty" in run("kafka-share-groups", "--delete-offsets", *refused)
    assert "is not EMPTY" in run("kafka-share-groups", "--delete", "--group", group)
    member.close()

    assert [group, "Empty"] in rows(run("kafka-share-groups", "--list", "--state"))
    assert "has no active members" in run("kafka-share-groups", "--describe", "--group", group, "--members")
    assert reset("--topic", f"{topic}:0", "--to-latest", "--dry-run") == [[group, topic, "0", "6"]]
    assert describe("--offsets")[1][-1] == "2"
    assert reset("--topic", f"{topic}:0", "--to-latest", "--execute") == [[group, topic, "0", "6"]]
    assert describe("--offsets")[1][-2:] == ["6", "0"]
    old = ("--to-datetime", "2020-01-01T00:00:00.000")
    assert reset("--all-topics", *old, "--execute") == [[group, topic, "0", "0"]]
    member = shared.member()
    assert counts(member.poll()) == [(offset, 1) for offset in range(6)]
    member.close()
    assert rows(run("kafka-share-groups", "--delete-offsets", *refused))[-1] == [topic, "Successful"]
    assert "has no offset information" in run("kafka-share-groups", "--describe", "--group", group)
    run("kafka-share-groups", "--delete", "--group", group)
    assert group not in run("kafka-share-groups", "--list").split()


# -- crashes


@pytest.mark.timeout(120 + 30 * ROUNDS)
def test_broker_that_is_killed_loses_no_record_and_no_acknowledgement(
    fresh_broker: BrokerFactory, shares: ShareClients, unique: UniqueName, tmp_path: Path
) -> None:
    broker = fresh_broker(SETTINGS)
    topic = create_topic(broker.bootstrap, unique("topic"), LOAD_PARTITIONS, {"retention.ms": "-1"})
    work = ShareWork(shares, broker, topic, unique("group"), tmp_path)
    try:
        for _ in range(ROUNDS):
            work.await_progress()
            broker.restart(kill=True)
        work.await_progress()
        eventually(lambda: work.load.sent > 500)
        assert work.verify() > 500
    finally:
        work.abandon()
