"""Administration through kafka-python's and confluent-kafka's admin clients."""

from __future__ import annotations

import time
from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka.structs import OffsetAndMetadata, TopicPartition

from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import CLIENTS, PLAIN, Sample
from compat_tests.harness.confluent_admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import TopicFactory, UniqueName
from compat_tests.harness.members import ConfluentMember, await_balance

ERRORS = confluent_kafka.KafkaError


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def python_admin(broker: Broker) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield client
    client.close()


def _code(raised: pytest.ExceptionInfo[KafkaException]) -> int:
    return int(raised.value.args[0].code())


def test_create_describe_delete_topic(admin: AdminClient, unique: UniqueName) -> None:
    name = unique("topic")
    new = NewTopic(name, num_partitions=3, replication_factor=1, config={"retention.ms": "1234567"})
    admin.create_topics([new])[name].result(30)
    described = admin.describe_topics(confluent_kafka.TopicCollection([name]))[name].result(30)
    assert len(described.partitions) == 3
    assert described.topic_id is not None
    assert [len(one.isr) for one in described.partitions] == [1, 1, 1]
    with pytest.raises(KafkaException) as raised:
        admin.create_topics([new])[name].result(30)
    assert _code(raised) == ERRORS.TOPIC_ALREADY_EXISTS
    admin.delete_topics([name])[name].result(30)
    eventually(lambda: name not in admin.list_topics(timeout=30).topics)
    with pytest.raises(KafkaException) as raised:
        admin.delete_topics([name])[name].result(30)
    assert _code(raised) == ERRORS.UNKNOWN_TOPIC_OR_PART


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (NewTopic("no/slash", 1, 1), ERRORS.TOPIC_EXCEPTION),
        (NewTopic("x" * 250, 1, 1), ERRORS.TOPIC_EXCEPTION),
        (NewTopic(".", 1, 1), ERRORS.TOPIC_EXCEPTION),
        (NewTopic("too-many-replicas", 1, 3), ERRORS.INVALID_REPLICATION_FACTOR),
        (NewTopic("bad-config", 1, 1, config={"retention.ms": "soon"}), ERRORS.INVALID_CONFIG),
        (NewTopic("unknown-config", 1, 1, config={"no.such.config": "1"}), ERRORS.INVALID_CONFIG),
    ],
    ids=lambda one: one.topic[:12] if isinstance(one, NewTopic) else None,
)
def test_create_topic_refused(admin: AdminClient, bad: NewTopic, code: int) -> None:
    with pytest.raises(KafkaException) as raised:
        admin.create_topics([bad])[bad.topic].result(30)
    assert _code(raised) == code


def test_names_that_collide_are_refused(admin: AdminClient, unique: UniqueName) -> None:
    name = unique("col.lision")
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    other = name.replace(".", "_")
    with pytest.raises(KafkaException) as raised:
        admin.create_topics([NewTopic(other, 1, 1)])[other].result(30)
    assert _code(raised) == ERRORS.TOPIC_EXCEPTION


def test_create_topic_validate_only(admin: AdminClient, unique: UniqueName) -> None:
    name = unique("topic")
    admin.create_topics([NewTopic(name, 1, 1)], validate_only=True)[name].result(30)
    assert name not in admin.list_topics(timeout=30).topics


def test_deleted_topic_comes_back_empty(admin: AdminClient, broker: Broker, topic: TopicFactory) -> None:
    name = topic()
    PLAIN.produce(broker.bootstrap, name, [Sample(b"k", b"old")] * 3)
    first = admin.describe_topics(confluent_kafka.TopicCollection([name]))[name].result(30).topic_id
    admin.delete_topics([name])[name].result(30)
    eventually(lambda: name not in admin.list_topics(timeout=30).topics)
    admin.create_topics([NewTopic(name, 1, 1, config={"retention.ms": "-1"})])[name].result(30)
    eventually(lambda: name in admin.list_topics(timeout=30).topics)
    assert PLAIN.produce(broker.bootstrap, name, [Sample(b"k", b"new")]) == [0]
    second = admin.describe_topics(confluent_kafka.TopicCollection([name]))[name].result(30).topic_id
    assert str(first) != str(second)
    assert [one.sample.value for one in CLIENTS[0].consume(broker.bootstrap, name, 1)] == [b"new"]


def test_create_partitions(admin: AdminClient, topic: TopicFactory) -> None:
    name = topic(partitions=2)
    admin.create_partitions([NewPartitions(name, 5)])[name].result(30)
    eventually(lambda: len(admin.list_topics(name, timeout=30).topics[name].partitions) == 5)
    for count in (5, 1):
        with pytest.raises(KafkaException) as raised:
            admin.create_partitions([NewPartitions(name, count)])[name].result(30)
        assert _code(raised) == ERRORS.INVALID_PARTITIONS


def test_configs_incrementally(admin: AdminClient, topic: TopicFactory) -> None:
    name = topic(configs={"cleanup.policy": "delete"})

    def config() -> dict[str, ConfigEntry]:
        resource = ConfigResource(ResourceType.TOPIC, name)
        return dict(admin.describe_configs([resource])[resource].result(30))

    def alter(operation: AlterConfigOpType, key: str, value: str) -> None:
        entry = ConfigEntry(key, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(30)

    assert config()["max.message.bytes"].is_default
    alter(AlterConfigOpType.SET, "max.message.bytes", "5000")
    eventually(lambda: config()["max.message.bytes"].value == "5000")
    assert config()["max.message.bytes"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    alter(AlterConfigOpType.APPEND, "cleanup.policy", "compact")
    eventually(lambda: config()["cleanup.policy"].value == "delete,compact")
    alter(AlterConfigOpType.SUBTRACT, "cleanup.policy", "delete")
    eventually(lambda: config()["cleanup.policy"].value == "compact")
    alter(AlterConfigOpType.DELETE, "max.message.bytes", "")
    eventually(lambda: config()["max.message.bytes"].value == "1048588")
    with pytest.raises(KafkaException) as raised:
        alter(AlterConfigOpType.SET, "max.message.bytes", "-5")
    assert _code(raised) == ERRORS.INVALID_CONFIG


def test_broker_configs(admin: AdminClient) -> None:
    broker_id = next(iter(admin.list_topics(timeout=30).brokers))
    resource = ConfigResource(ResourceType.BROKER, str(broker_id))
    configs = admin.describe_configs([resource])[resource].result(30)
    assert configs["log.segment.bytes"].value == "1073741824"
    assert configs["node.id"].is_read_only


def test_delete_records(admin: AdminClient, broker: Broker, topic: TopicFactory) -> None:
    name = topic()
    PLAIN.produce(broker.bootstrap, name, [Sample(None, b"%d" % n) for n in range(10)])
    where = confluent_kafka.TopicPartition(name, 0, 4)
    result = admin.delete_records([where])[where].result(30)
    assert result.low_watermark == 4
    assert CLIENTS[0].consume(broker.bootstrap, name, 1, offset=4)[0].offset == 4
    latest = confluent_kafka.TopicPartition(name, 0, -1)
    assert admin.delete_records([latest])[latest].result(30).low_watermark == 10
    beyond = confluent_kafka.TopicPartition(name, 0, 11)
    with pytest.raises(KafkaException) as raised:
        admin.delete_records([beyond])[beyond].result(30)
    assert _code(raised) == ERRORS.OFFSET_OUT_OF_RANGE


def test_list_offsets(admin: AdminClient, broker: Broker, topic: TopicFactory) -> None:
    name = topic(configs={"retention.ms": "-1"})
    times = [1000, 2000, 5000, 4000]
    for stamp in times:
        PLAIN.produce(broker.bootstrap, name, [Sample(None, b"v", timestamp=stamp)])
    where = confluent_kafka.TopicPartition(name, 0)

    def offset(spec: OffsetSpec) -> tuple[int, int]:
        found = admin.list_offsets({where: spec})[where].result(30)
        return found.offset, found.timestamp

    assert offset(OffsetSpec.earliest())[0] == 0
    assert offset(OffsetSpec.latest())[0] == 4
    assert offset(OffsetSpec.max_timestamp()) == (2, 5000)
    assert offset(OffsetSpec.for_timestamp(1500)) == (1, 2000)
    assert offset(OffsetSpec.for_timestamp(2000)) == (1, 2000)
    assert offset(OffsetSpec.for_timestamp(3000)) == (2, 5000)
    assert offset(OffsetSpec.for_timestamp(5001))[0] == -1


def test_timestamp_lookup_inside_a_compressed_batch(
    admin: AdminClient, broker: Broker, topic: TopicFactory
) -> None:
    name = topic(configs={"retention.ms": "-1"})
    samples = [Sample(None, b"v", timestamp=10_000 + number) for number in range(50)]
    PLAIN.produce(broker.bootstrap, name, samples, "zstd")
    where = confluent_kafka.TopicPartition(name, 0)
    found = admin.list_offsets({where: OffsetSpec.for_timestamp(10_033)})[where].result(30)
    assert (found.offset, found.timestamp) == (33, 10_033)


def test_groups_through_confluent(
    admin: AdminClient, broker: Broker, topic: TopicFactory, unique: UniqueName
) -> None:
    name, group = topic(partitions=2), unique("group")
    member = ConfluentMember(broker.bootstrap, group, [name])
    await_balance([member], 2)
    listed = {one.group_id: one for one in admin.list_consumer_groups().result(30).valid}
    assert listed[group].state == confluent_kafka.ConsumerGroupState.STABLE
    described = admin.describe_consumer_groups([group])[group].result(30)
    assert described.state == confluent_kafka.ConsumerGroupState.STABLE
    assert described.partition_assignor == "range"
    [one] = described.members
    assert {(part.topic, part.partition) for part in one.assignment.topic_partitions} == {
        (name, 0),
        (name, 1),
    }
    with pytest.raises(KafkaException) as raised:
        admin.delete_consumer_groups([group])[group].result(30)
    assert _code(raised) == ERRORS.NON_EMPTY_GROUP
    member.leave()
    wanted = confluent_kafka.ConsumerGroupTopicPartitions(
        group, [confluent_kafka.TopicPartition(name, 0, 7), confluent_kafka.TopicPartition(name, 1, 9)]
    )
    eventually(
        lambda: (
            admin.describe_consumer_groups([group])[group].result(30).state
            == confluent_kafka.ConsumerGroupState.EMPTY
        )
    )
    admin.alter_consumer_group_offsets([wanted])[group].result(30)
    asked = confluent_kafka.ConsumerGroupTopicPartitions(group)
    offsets = admin.list_consumer_group_offsets([asked])[group].result(30).topic_partitions
    assert {(one.partition, one.offset) for one in offsets} == {(0, 7), (1, 9)}
    admin.delete_consumer_groups([group])[group].result(30)
    with pytest.raises(KafkaException) as raised:
        admin.delete_consumer_groups([group])[group].result(30)
    assert _code(raised) == ERRORS.GROUP_ID_NOT_FOUND


def test_groups_through_kafka_python(
    python_admin: KafkaAdminClient, broker: Broker, topic: TopicFactory, unique: UniqueName
) -> None:
    name, group = topic(partitions=2), unique("group")
    zero, one = TopicPartition(name, 0), TopicPartition(name, 1)
    python_admin.alter_group_offsets(
        group, {zero: OffsetAndMetadata(3, "three", -1), one: OffsetAndMetadata(5, "", -1)}
    )
    assert group in [found["group_id"] for found in python_admin.list_groups()]
    offsets = python_admin.list_group_offsets(group)[group]
    assert {where: found.offset for where, found in offsets.items()} == {zero: 3, one: 5}
    assert offsets[zero].metadata == "three"
    python_admin.delete_group_offsets(group, [zero])
    left = python_admin.list_group_offsets(group)[group]
    assert {where: found.offset for where, found in left.items()} == {one: 5}
    python_admin.delete_groups([group])
    assert group not in [found["group_id"] for found in python_admin.list_groups()]


def test_cluster_through_kafka_python(
    python_admin: KafkaAdminClient, broker: Broker, topic: TopicFactory
) -> None:
    name = topic(partitions=2)
    PLAIN.produce(broker.bootstrap, name, [Sample(None, b"v" * 1000)])
    cluster = python_admin.describe_cluster()
    assert [(one["host"], one["port"]) for one in cluster["brokers"]] == [(broker.host, broker.port)]
    sizes = {
        (found["name"], partition["partition_index"]): partition["partition_size"]
        for one in python_admin.describe_log_dirs()
        for directory in one["log_dirs"]
        for found in directory["topics"]
        for partition in found["partitions"]
    }
    assert sizes[(name, 0)] > 1000
    assert sizes[(name, 1)] == 0


def test_many_partitions_in_one_topic(admin: AdminClient, broker: Broker, topic: TopicFactory) -> None:
    started = time.monotonic()
    name = topic(partitions=200)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
    for partition in range(200):
        producer.produce(name, b"%d" % partition, partition=partition)
    assert producer.flush(30) == 0
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    consumer.assign([confluent_kafka.TopicPartition(name, partition, 0) for partition in range(200)])
    seen: set[int] = set()
    while len(seen) < 200 and time.monotonic() - started < 60:
        for message in consumer.consume(200, 1):
            assert message.error() is None
            assert message.value() == b"%d" % (message.partition() or 0)
            seen.add(message.partition() or 0)
    consumer.close()
    assert len(seen) == 200
    admin.delete_topics([name])[name].result(30)
