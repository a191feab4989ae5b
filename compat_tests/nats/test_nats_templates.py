"""Topics created from subjects, messages that can't be stored, and several bindings of the same subjects."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import nats
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from nats.aio.client import Client as NatsClient

from compat_tests.harness.broker import Broker
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.confluent_admin import ConfigResource, ResourceType
from compat_tests.harness.eventually import eventually_async
from compat_tests.harness.leader_moves import move_leader
from compat_tests.harness.nats_server import NatsServer
from compat_tests.nats.bound_topics import await_running, bind
from compat_tests.nats.publishers import Sent, SteadyPublisher, publish
from compat_tests.nats.received import by_topic, check, records

pytestmark = pytest.mark.barnabas_only

ROUNDS = int(os.environ.get("BARNABAS_CHAOS_ROUNDS", "1"))


def of_topics(sent: Sent, topic: Callable[[str], str]) -> dict[str, Sent]:
    found: dict[str, Sent] = {}
    for subject, values in sent.items():
        found.setdefault(topic(subject), {})[subject] = values
    return found


def check_all(bootstrap: str, expected: dict[str, Sent], partitions: int) -> None:
    """Asserts that each of these topics has the expected messages."""
    count = sum(len(values) for sent in expected.values() for values in sent.values())
    found = by_topic(bootstrap, dict.fromkeys(expected, partitions), count)
    for topic, sent in expected.items():
        check(found[topic], sent)


def configs_of(admin: AdminClient, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    return {
        name: entry.value for name, entry in admin.describe_configs([resource])[resource].result(30).items()
    }


def test_subjects_create_topics(server: NatsServer, broker: Broker) -> None:
    bind(
        broker,
        "made",
        {"nats.subjects": "m.>", "nats.topic.template": "{1}.{2}", "retention.ms": "777000"},
        partitions=3,
    )
    publisher = SteadyPublisher(server, lambda number: f"m.t{number % 6}.{number % 5}", alike="m.al_ike.x")
    publisher.await_more(2000)
    sent = publisher.finish()
    expected = of_topics(sent, lambda subject: ".".join(subject.split(".")[:2]).replace("_", "__5F"))
    check_all(broker.bootstrap, {"made": {}, **expected}, 3)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    listed = admin.list_topics(timeout=30).topics
    assert {name for name in listed if name.startswith("m.")} == {
        *(f"m.t{n}" for n in range(6)),
        "m.al__5Fike",
    }
    assert len(listed["m.t0"].partitions) == 3
    configs = configs_of(admin, "m.t0")
    assert (configs["retention.ms"], configs["nats.template.of"], configs["nats.subjects"]) == (
        "777000",
        "made",
        "",
    )


def test_deleted_topics_are_recreated_and_known_after_a_restart(server: NatsServer, broker: Broker) -> None:
    bind(broker, "made", {"nats.subjects": "m.>", "nats.topic.template": "{2}", "nats.acks": "reply"})

    async def ask(client: NatsClient, subject: str, identity: str) -> Any:
        answer = await client.request(subject, b"x", timeout=30, headers={"Nats-Msg-Id": identity})
        acknowledgement = json.loads(answer.data)
        return acknowledgement["stream"], acknowledgement["seq"], acknowledgement.get("duplicate", False)

    async def first(client: NatsClient) -> None:
        assert await ask(client, "m.one", "a") == ("one", 1, False)
        assert await ask(client, "m.one", "b") == ("one", 2, False)
        assert await ask(client, "m.two", "a") == ("two", 1, False)

    publish(server, first)
    broker.stop()
    broker.start()

    async def second(client: NatsClient) -> None:
        answer = await eventually_async(
            lambda: ask(client, "m.one", "b"),
            retry_on=(nats.errors.NoRespondersError, nats.errors.TimeoutError),
        )
        assert answer == ("one", 2, True)
        assert await ask(client, "m.one", "c") == ("one", 3, False)

    publish(server, second)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["one"])["one"].result(30)

    async def third(client: NatsClient) -> None:
        assert await ask(client, "m.one", "b") == ("one", 1, False)
        assert await ask(client, "m.two", "a") == ("two", 1, True)

    publish(server, third)


def test_no_more_topics_than_allowed(server: NatsServer, broker: Broker) -> None:
    """Messages for further topics are dead letters, as are messages for an existing topic that does not belong to the
    template."""
    bind(broker, "payments", {})
    bind(
        broker,
        "made",
        {
            "nats.subjects": ">",
            "nats.topic.template": "{1}",
            "nats.topic.max": "5",
            "nats.dead.letter.topic": "dead",
            "nats.acks": "reply",
        },
    )
    answers: list[Any] = []

    async def work(client: NatsClient) -> None:
        for number in range(300):
            await client.publish(f"t{number % 30}.x", b"%d" % number)
        await client.flush()
        for subject in ("payments", "made", "t99"):
            answer = await client.request(subject, b"injected", timeout=30)
            answers.append(json.loads(answer.data))

    publish(server, work)
    descriptions = [answer["error"]["description"] for answer in answers]
    assert descriptions[0].startswith("TOPIC_ALREADY_EXISTS: topic payments is not one of the template's")
    assert descriptions[1].startswith("INVALID_TOPIC_EXCEPTION")
    assert descriptions[2].startswith("POLICY_VIOLATION: topic t99 would be one more than nats.topic.max=5")
    assert all(description.endswith("it is in topic dead") for description in descriptions)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    made = {name for name in admin.list_topics(timeout=30).topics if name.startswith("t")}
    assert len(made) == 5
    for topic, found in by_topic(broker.bootstrap, dict.fromkeys(made, 1), 50).items():
        assert found == {f"{topic}.x": [b"%d" % number for number in range(int(topic[1:]), 300, 30)]}
    dead = records(broker.bootstrap, "dead", 1, 253)
    assert len(dead) == 253
    first = next(record for record in dead if record.value != b"injected")
    headers = dict(first.headers)
    assert headers["nats.topic"] == b"made"
    assert headers["nats.error"].startswith((b"POLICY_VIOLATION: ", b"INVALID_CONFIG: "))
    assert first.key == headers["nats.subject"]
    assert records(broker.bootstrap, "payments", 1, 0) == []
    with pytest.raises(KafkaException, match=r"has 5 topics, and nats\.topic\.max=5"):
        bind(broker, "payments", {"nats.template.of": "made"})
    bind(broker, "made", {"nats.topic.max": "6"})
    bind(broker, "payments", {"nats.template.of": "made"})

    async def more(client: NatsClient) -> None:
        answer = await client.request("payments", b"asked for", timeout=30)
        assert json.loads(answer.data)["stream"] == "payments"

    publish(server, more)


def test_messages_that_a_partition_refuses(server: NatsServer, broker: Broker) -> None:
    bind(broker, "small", {"max.message.bytes": "2000"})
    bind(
        broker,
        "taken",
        {
            "nats.subjects": "p.>",
            "max.message.bytes": "1000",
            "nats.dead.letter.topic": "small",
            "nats.acks": "reply",
        },
        partitions=2,
    )
    answers: list[Any] = []

    async def work(client: NatsClient) -> None:
        for subject, payload, headers in (
            ("p.far", b"1", {"Kafka-Partition": "7", "Color": "blue"}),
            ("p.none", b"2", {"Kafka-Partition": "x"}),
            ("p.large", b"3" * 1100, {"Color": "red"}),
            ("p.huge", b"4" * 5000, {"Color": "green"}),
            ("p.fine", b"5", {"Kafka-Partition": "1"}),
        ):
            answer = await client.request(subject, payload, timeout=30, headers=headers)
            answers.append(json.loads(answer.data).get("error", {}).get("description", ""))
        await client.publish("p.fine", b"6", headers={"Kafka-Partition": "0"})

    publish(server, work)
    assert [answer.split(":")[0] for answer in answers] == [
        "INVALID_REQUEST",
        "INVALID_REQUEST",
        "MESSAGE_TOO_LARGE",
        "MESSAGE_TOO_LARGE",
        "",
    ]
    assert [record.value for record in records(broker.bootstrap, "taken", 2, 2)] == [b"6", b"5"]
    dead = {record.key: record for record in records(broker.bootstrap, "small", 1, 4)}
    headers = dict(dead[b"p.far"].headers)
    assert headers["Kafka-Partition"] == b"7"
    assert headers["Color"] == b"blue"
    assert headers["nats.topic"] == b"taken"
    assert headers["nats.error"] == b"INVALID_REQUEST: Kafka-Partition is 7, the topic has 2 partitions"
    assert dead[b"p.large"].value == b"3" * 1100
    assert dict(dead[b"p.large"].headers)["Color"] == b"red"
    assert dead[b"p.huge"].value == b"4" * 1000
    assert dict(dead[b"p.huge"].headers)["nats.size"] == b"5000"

    bind(broker, "taken", {"nats.dead.letter.topic": ""})

    async def again(client: NatsClient) -> None:
        answer = await client.request("p.far", b"1", timeout=30, headers={"Kafka-Partition": "7"})
        assert json.loads(answer.data)["error"]["description"].endswith("2 partitions")

    publish(server, again)
    records(broker.bootstrap, "small", 1, 4)


def test_bindings_that_overlap(server: NatsServer, broker: Broker) -> None:
    bindings = {
        "all": "o.>",
        "some": "o.*.0,o.1.*,o.3.3",
        "same": "o.>,o.1.>,*.1.1",
        "one": "o.3.3",
        "without": "o.>",
    }
    for topic, subjects in bindings.items():
        bind(broker, topic, {"nats.subjects": subjects}, partitions=2)
    bind(broker, "without", {"nats.exclude": "o.1.>"})
    bind(broker, "templated", {"nats.subjects": "o.>", "nats.topic.template": "{1}-{2}"})
    publisher = SteadyPublisher(server, lambda number: f"o.{number % 4}.{number % 5}", alike="o.1.0")
    publisher.await_more(2000)
    sent = publisher.finish()
    tests: dict[str, Callable[[list[str]], bool]] = {
        "all": lambda _: True,
        "some": lambda tokens: tokens[2] == "0" or tokens[1] == "1" or tokens[1:] == ["3", "3"],
        "same": lambda _: True,
        "one": lambda tokens: tokens[1:] == ["3", "3"],
        "without": lambda tokens: tokens[1] != "1",
    }
    expected = {
        topic: {subject: values for subject, values in sent.items() if is_taken(subject.split("."))}
        for topic, is_taken in tests.items()
    }
    check_all(broker.bootstrap, expected, 2)
    made = of_topics(sent, lambda subject: "-".join(subject.split(".")[:2]))
    check_all(broker.bootstrap, {"templated": {}, **made}, 1)


@pytest.mark.timeout(300 + 120 * ROUNDS)
def test_topics_are_created_while_leaders_move_and_die(server: NatsServer, cluster: Cluster) -> None:
    bind(
        cluster,
        "made",
        {"nats.subjects": "m.>", "nats.topic.template": "{1}.{2}", "min.insync.replicas": "2"},
        partitions=3,  # each broker leads one
        replicas=3,
    )
    cluster.wait_until_whole()
    await_running(cluster, "made")
    topics = 4 if ROUNDS == 1 else 20
    publisher = SteadyPublisher(
        server, lambda number: f"m.{number // 400 % topics}.{number % 11}", alike="m.0.alike"
    )
    publisher.await_more(400 * topics + 400)
    for number in range(6 * ROUNDS):
        topic = f"m.{number % topics}"
        move_leader(cluster, topic, number % 2, random.sample(sorted(cluster.nodes), 3))
        publisher.await_more(random.randrange(50, 400))
    for _ in range(ROUNDS):
        victim = cluster.leader(f"m.{random.randrange(topics)}", random.randrange(2))
        cluster.kill(victim)
        publisher.await_more(4000)
        cluster.start(victim)
        cluster.wait_until_whole()
        publisher.await_more(1000)
    sent = publisher.finish()
    check_all(cluster.bootstrap, of_topics(sent, lambda subject: ".".join(subject.split(".")[:2])), 3)


def test_brokers_agree_on_the_topics_of_a_template(server: NatsServer, cluster: Cluster) -> None:
    """Publishers with different subjects request more topics than allowed, all at once: each message is in one of the
    created topics, or a dead letter, once."""
    bind(cluster, "dead", {}, partitions=2, replicas=3)
    bind(
        cluster,
        "made",
        {
            "nats.subjects": "m.>",
            "nats.topic.template": "{1}-{2}",
            "nats.topic.max": "7",
            "nats.dead.letter.topic": "dead",
        },
        partitions=3,
        replicas=2,
    )
    cluster.wait_until_whole()
    await_running(cluster, "made")
    publishers = [
        SteadyPublisher(server, partial(subject_of, which), per_second=1500, name=f"p{which}")
        for which in range(3)
    ]
    for publisher in publishers:
        publisher.await_more(800)
    sent: Sent = {}
    for publisher in publishers:
        for subject, values in publisher.finish().items():
            sent.setdefault(subject, []).extend(values)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    made = sorted(name for name in admin.list_topics(timeout=30).topics if name.startswith("m-"))
    assert len(made) == 7
    count = sum(map(len, sent.values()))
    found = by_topic(cluster.bootstrap, {"dead": 2, "made": 3, **dict.fromkeys(made, 3)}, count)
    together: Sent = {}
    for topic, theirs in found.items():
        for subject, values in theirs.items():
            assert subject not in together, (subject, topic)
            together[subject] = values
    check(
        {subject: sorted(values) for subject, values in together.items()},
        {subject: sorted(values) for subject, values in sent.items()},
    )


def subject_of(which: int, number: int) -> str:
    """Each publisher begins with other subjects."""
    return f"m.{(number + 5 * which) % 15}.x"
