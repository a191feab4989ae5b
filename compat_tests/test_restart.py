"""Restarts of the broker, clean and by kill -9, between two sends (test_kill.py: while clients send)."""

from __future__ import annotations

import asyncio

import confluent_kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer

from compat_tests.harness.clients import CLIENTS, CODECS, PLAIN, Sample
from compat_tests.harness.committed import committed
from compat_tests.harness.confluent_admin import ConfigResource, ResourceType
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.members import LIBRARIES, await_balance
from compat_tests.harness.topics import create_topic

KEPT = {"retention.ms": "-1"}


def test_clients_continue_after_a_restart(fresh_broker: BrokerFactory) -> None:
    """One producer and one consumer object of each library, used before and after."""
    broker = fresh_broker()
    for name in ("python", "confluent", "aio"):
        create_topic(broker.bootstrap, name, configs=KEPT)
    python_producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    python_consumer = KafkaConsumer(
        "python",
        bootstrap_servers=broker.bootstrap,
        auto_offset_reset="earliest",
        group_id="python",
        consumer_timeout_ms=30_000,
        enable_auto_commit=False,
    )
    settings = {"bootstrap.servers": broker.bootstrap, "reconnect.backoff.max.ms": 500}
    confluent_producer = confluent_kafka.Producer({**settings, "enable.idempotence": True})
    confluent_consumer = confluent_kafka.Consumer(
        {**settings, "group.id": "confluent", "auto.offset.reset": "earliest"}
    )
    confluent_consumer.subscribe(["confluent"])

    def confluent_round(value: bytes) -> None:
        confluent_producer.produce("confluent", value)
        assert confluent_producer.flush(30) == 0
        message = eventually(lambda: confluent_consumer.poll(0.5))
        assert message is not None
        assert message.error() is None
        assert message.value() == value

    def python_round(value: bytes) -> None:
        python_producer.send("python", value).get(30)
        assert next(python_consumer).value == value

    async def scenario() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True)
        consumer = AIOKafkaConsumer("aio", bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
        await producer.start()
        await consumer.start()
        for value in (b"before", b"after"):
            await asyncio.wait_for(producer.send_and_wait("aio", value), 30)
            assert (await asyncio.wait_for(consumer.getone(), 30)).value == value
            if value == b"before":
                await asyncio.to_thread(python_round, value)
                await asyncio.to_thread(confluent_round, value)
                await asyncio.to_thread(broker.restart)
        await consumer.stop()
        await producer.stop()

    asyncio.run(scenario())
    python_round(b"after")
    confluent_round(b"after")
    python_producer.close()
    python_consumer.close()
    confluent_consumer.close()


def test_all_data_is_kept_over_restarts(fresh_broker: BrokerFactory) -> None:
    """Records of every codec, topics with ids and configs, and groups' offsets survive a stop and a kill -9."""
    broker = fresh_broker()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    samples = [Sample(b"k%d" % number, b"v" * 100, (("h", b"1"),)) for number in range(20)]
    for codec in CODECS:
        create_topic(broker.bootstrap, codec, configs={**KEPT, "max.message.bytes": "123456"})
        PLAIN.produce(broker.bootstrap, codec, samples, codec)
    offsets = [confluent_kafka.TopicPartition(codec, 0, 11, metadata="note") for codec in CODECS]
    group = confluent_kafka.ConsumerGroupTopicPartitions("group", offsets)

    def commit() -> (
        bool
    ):  # the coordinator may still be loading: the error is in each partition, and no exception is raised
        answer = admin.alter_consumer_group_offsets([group])["group"].result(30)
        return all(one.error is None for one in answer.topic_partitions)

    eventually(commit)

    def topic_ids() -> dict[str, str]:
        found = admin.describe_topics(confluent_kafka.TopicCollection(list(CODECS)))
        return {name: str(one.result(30).topic_id) for name, one in found.items()}

    ids = topic_ids()
    for kill in (False, True):
        broker.restart(kill=kill)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        assert topic_ids() == ids
        resource = ConfigResource(ResourceType.TOPIC, "gzip")
        assert admin.describe_configs([resource])[resource].result(30)["max.message.bytes"].value == "123456"
        for codec in CODECS:
            found = CLIENTS[0].consume(broker.bootstrap, codec, 20)
            assert [one.sample for one in found] == samples
        assert {(one.topic, one.offset, one.metadata) for one in committed(admin, "group")} == {
            (codec, 11, "note") for codec in CODECS
        }


def _places(found: list[confluent_kafka.TopicPartition]) -> list[tuple[str, int, int]]:
    return [(one.topic, one.partition, one.offset) for one in found]


def test_groups_live_through_a_kill(fresh_broker: BrokerFactory) -> None:
    """Members of each library rejoin by themselves and continue after their committed offsets."""
    broker = fresh_broker({"group.min.session.timeout.ms": "500"})
    members = []
    for library in LIBRARIES:
        create_topic(broker.bootstrap, library.library, partitions=2, configs=KEPT)
        members.append(library(broker.bootstrap, f"group-{library.library}", [library.library]))
    for member in members:
        await_balance([member], 2)
        PLAIN.produce(broker.bootstrap, member.library, [Sample(None, b"%d" % n) for n in range(10)])
    for member in members:
        member.await_values(lambda values: len(values) == 10)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for member in members:  # with automatic commits
        eventually(lambda member=member: (member.library, 0, 10) in _places(committed(admin, member.group)))
    broker.restart(kill=True)
    for member in members:
        PLAIN.produce(broker.bootstrap, member.library, [Sample(None, b"after")], partition=1)
    for member in members:
        member.await_values(lambda values: b"after" in values)
        member.leave()
        before = [value for value in member.values if value != b"after"]
        assert len(before) == 10, f"{member.library} read something twice that it had committed"
