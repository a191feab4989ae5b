"""Consumer groups (KIP-848) with real members: of confluent-kafka and Java, beside classic ones, over restarts."""

from __future__ import annotations

import json

import pytest
from confluent_kafka.admin import AdminClient

from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import PLAIN, Sample
from compat_tests.harness.confluent_admin import NewPartitions
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import BrokerFactory, UniqueName
from compat_tests.harness.java_tools import JavaTools
from compat_tests.harness.members import (
    AioKafkaMember,
    ConfluentMember,
    ConsumerProtocolMember,
    KafkaPythonMember,
    Member,
    await_balance,
)
from compat_tests.harness.topics import create_topic

# Heartbeats of members come often, so that they hear of changes soon.
SETTINGS = {
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.assignment.interval.ms": "0",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
}


@pytest.fixture(scope="module")
def quick(module_broker: BrokerFactory) -> Broker:
    return module_broker(SETTINGS)


def _values(prefix: str, count: int) -> list[Sample]:
    return [Sample(None, b"%s-%d" % (prefix.encode(), number)) for number in range(count)]


def _leave(*members: Member) -> None:
    for member in members:
        member.leave()


def test_members_join_share_and_leave(quick: Broker, unique: UniqueName) -> None:
    name, group = create_topic(quick.bootstrap, unique("topic"), 4), unique("group")
    first = ConsumerProtocolMember(quick.bootstrap, group, [name])
    await_balance([first], 4)
    second = ConsumerProtocolMember(quick.bootstrap, group, [name])
    await_balance([first, second], 4)
    for partition in range(4):
        PLAIN.produce(quick.bootstrap, name, _values(f"p{partition}", 10), partition=partition)
    eventually(lambda: len(first.values) + len(second.values) == 40)
    assert len(first.values) == len(second.values) == 20
    second.leave()
    await_balance([first], 4)
    PLAIN.produce(quick.bootstrap, name, _values("after", 5), partition=3)
    first.await_values(lambda values: {one.value for one in _values("after", 5)} <= set(values))
    first.leave()
    assert len(first.values) + len(second.values) == 45, "every record once: leaving commits"


def test_a_static_member_returns_without_a_rebalance(quick: Broker, unique: UniqueName) -> None:
    name, group = create_topic(quick.bootstrap, unique("topic"), 4), unique("group")
    stays = ConsumerProtocolMember(quick.bootstrap, group, [name], instance_id="stays")
    returns = ConsumerProtocolMember(quick.bootstrap, group, [name], instance_id="returns")
    await_balance([stays, returns], 4)
    rebalances, held = stays.rebalances, returns.assigned
    returns.leave()
    again = ConsumerProtocolMember(quick.bootstrap, group, [name], instance_id="returns")
    await_balance([stays, again], 4)
    assert again.assigned == held
    assert stays.rebalances == rebalances
    _leave(again, stays)


def test_topics_that_an_expression_matches_later(quick: Broker, unique: UniqueName) -> None:
    prefix, group = unique("matched"), unique("group")
    create_topic(quick.bootstrap, f"{prefix}-a", 2)
    member = ConsumerProtocolMember(quick.bootstrap, group, [f"^{prefix}-.*"])
    await_balance([member], 2)
    create_topic(quick.bootstrap, f"{prefix}-b", 1)
    admin = AdminClient({"bootstrap.servers": quick.bootstrap})
    admin.create_partitions([NewPartitions(f"{prefix}-a", 3)])[f"{prefix}-a"].result(30)
    await_balance([member], 4)  # a resolved expression is looked at again after 10 s
    member.leave()


def test_members_change_to_the_new_protocol_and_back(quick: Broker, unique: UniqueName) -> None:
    """One by one, while records come: none is missed. Of librdkafka only range and roundrobin can be upgraded: its sticky assignor puts
    user data into assignments."""
    name, group = create_topic(quick.bootstrap, unique("topic"), 4), unique("group")
    sent: set[bytes] = set()
    every: list[Member] = []

    def join(kind: type[Member]) -> Member:
        member = kind(quick.bootstrap, group, [name])
        every.append(member)
        return member

    def send(label: str) -> None:
        for partition in range(4):
            values = _values(f"{label}-{partition}", 5)
            PLAIN.produce(quick.bootstrap, name, values, partition=partition)
            sent.update(each.value or b"" for each in values)

    def read() -> bool:
        for member in every:
            if member.failure is not None:
                raise member.failure
        return sent <= {value for member in every for value in member.values}

    old = [join(ConfluentMember), join(KafkaPythonMember)]
    await_balance(old, 4)
    send("classic")
    new = [join(ConsumerProtocolMember)]
    send("upgrading")
    await_balance([*old, *new], 4)
    old[0].leave()
    new.append(join(ConsumerProtocolMember))
    send("mixed")
    await_balance([old[1], *new], 4)
    old[1].leave()
    await_balance(new, 4)
    send("new")
    eventually(read)
    old = [join(AioKafkaMember)]
    await_balance([*old, *new], 4)
    send("downgrading")
    new[0].leave()
    await_balance([*old, new[1]], 4)
    new[1].leave()
    await_balance(old, 4)
    send("classic again")
    eventually(read)
    _leave(*old)


def test_members_continue_after_the_broker_was_killed(
    fresh_broker: BrokerFactory, unique: UniqueName
) -> None:
    broker = fresh_broker(SETTINGS)
    name, group = create_topic(broker.bootstrap, unique("topic"), 4), unique("group")
    members = [ConsumerProtocolMember(broker.bootstrap, group, [name]) for _ in range(2)]
    await_balance(members, 4)
    PLAIN.produce(broker.bootstrap, name, _values("before", 20), partition=0)
    eventually(lambda: sum(len(member.values) for member in members) >= 20)
    broker.restart(kill=True)
    for partition in range(4):
        PLAIN.produce(broker.bootstrap, name, _values(f"after-{partition}", 5), partition=partition)
    wanted = {each.value for partition in range(4) for each in _values(f"after-{partition}", 5)}
    eventually(lambda: wanted <= {value for member in members for value in member.values})
    await_balance(members, 4)
    _leave(*members)


@pytest.mark.jvm
def test_java_members_and_tools(quick: Broker, unique: UniqueName, java_tools: JavaTools) -> None:
    name, group = create_topic(quick.bootstrap, unique("topic"), 4), unique("group")
    server = ("--bootstrap-server", quick.bootstrap)
    arguments = (*server, "--topic", name, "--group-id", group, "--group-protocol", "consumer")
    members = [java_tools.start("kafka-verifiable-consumer", *arguments) for _ in range(2)]

    def owned(output: str) -> set[int]:
        partitions: set[int] = set()
        for line in output.splitlines():
            event = json.loads(line) if line.startswith("{") else {}
            named = {one["partition"] for one in event.get("partitions", []) if "partition" in one}
            if event.get("name") == "partitions_assigned":
                partitions |= named
            elif event.get("name") == "partitions_revoked":
                partitions -= named
        return partitions

    def consumed(output: str) -> int:
        lines = [line for line in output.splitlines() if '"name":"records_consumed"' in line]
        return sum(json.loads(line)["count"] for line in lines)

    eventually(lambda: sorted(map(len, (owned(each.stdout) for each in members))) == [2, 2])
    java_tools.run("kafka-verifiable-producer", *server, "--topic", name, "--max-messages", "100")
    eventually(lambda: sum(consumed(member.stdout) for member in members) == 100)

    def described(*options: str) -> list[dict[str, str]]:
        printed = java_tools.run(
            "kafka-consumer-groups", *server, "--describe", "--group", group, *options
        ).stdout
        columns, *lines = [line.split() for line in printed.strip().splitlines()]
        return [dict(zip(columns, line, strict=False)) for line in lines]

    (state,) = described("--state")
    assert "Stable" in state.values()
    assert "uniform" in state.values()
    rows = described("--members", "--verbose")
    assert [row["#PARTITIONS"] for row in rows] == ["2", "2"]
    assert len({row["CURRENT-EPOCH"] for row in rows} | {row["TARGET-EPOCH"] for row in rows}) == 1
    listed = java_tools.run("kafka-groups", *server, "--list").stdout
    assert [line.split()[1:] for line in listed.splitlines() if line.startswith(group)] == [
        ["Consumer", "consumer"]
    ]
    for member in members:
        member.stop()
        member.wait()
    (state,) = described("--state")
    assert "Empty" in state.values()
    java_tools.run("kafka-consumer-groups", *server, "--delete", "--group", group)
    assert group not in java_tools.run("kafka-consumer-groups", *server, "--list").stdout
