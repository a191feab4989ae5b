"""Each fault of a test broker, and how real clients react: one public example for each.

The broker runs in this process, whatever `--broker` says.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError

from barnabas.testing import Broker
from barnabas.wire.record_batch import read_header
from compat_tests.harness.eventually import TIMEOUT_S, eventually
from compat_tests.harness.java_tools import JavaTools

pytestmark = pytest.mark.barnabas_only


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def broker(shared: Broker) -> Iterator[Broker]:
    shared.reset()
    yield shared
    shared.faults.reset()


def values(broker: Broker, topic: str) -> list[bytes | None]:
    return [record.value for record in broker.records(topic)]


def kafka_python(broker: Broker, **settings: Any) -> KafkaProducer:
    settings = {"retry_backoff_ms": 10, "enable_idempotence": False, **settings}
    return KafkaProducer(bootstrap_servers=broker.bootstrap_servers, **settings)


def confluent(broker: Broker, **settings: Any) -> confluent_kafka.Producer:
    fixed = {"bootstrap.servers": broker.bootstrap_servers, "retry.backoff.ms": 10, "log_level": 0}
    return confluent_kafka.Producer({**fixed, **settings})


def send(producer: confluent_kafka.Producer, topic: str, value: bytes) -> list[Any]:
    """The errors of the delivery reports: [error]."""
    errors: list[Any] = []
    producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    return errors


# -- error


def test_a_retriable_error_is_retried_with_new_metadata(broker: Broker) -> None:
    broker.create_topic("t", 1)
    rule = broker.on("Produce", topic="t", times=2).error("NOT_LEADER_OR_FOLLOWER")
    assert send(confluent(broker), "t", b"v") == [None]
    assert rule.hits == 2
    assert len(broker.requests.of("Produce")) == 3
    assert values(broker, "t") == [b"v"]


def test_a_final_error_reaches_the_caller(broker: Broker) -> None:
    broker.create_topic("t", 1)
    broker.on("Produce", topic="t").error("MESSAGE_TOO_LARGE")
    producer = kafka_python(broker)
    with pytest.raises(KafkaError, match=r"MessageSizeTooLarge"):
        producer.send("t", b"v").get(TIMEOUT_S)
    producer.close()
    assert values(broker, "t") == []


def test_one_partition_of_a_request_fails(broker: Broker) -> None:
    broker.create_topic("t", 2)
    rule = broker.on("Produce", topic="t", partition=1, times=1).error("KAFKA_STORAGE_ERROR")
    producer = confluent(broker, **{"linger.ms": 50})
    errors: list[Any] = []
    for partition in (0, 1):
        producer.produce("t", b"v", partition=partition, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    assert (errors, rule.hits) == ([None, None], 1)
    assert len(values(broker, "t")) == 2


def test_without_idempotence_a_lost_acknowledgement_makes_a_duplicate(broker: Broker) -> None:
    broker.create_topic("t", 1)
    broker.on("Produce", times=1).error("REQUEST_TIMED_OUT", served=True)
    producer = kafka_python(broker)
    producer.send("t", b"v").get(TIMEOUT_S)
    producer.close()
    assert values(broker, "t") == [b"v", b"v"]


def test_with_idempotence_it_does_not(broker: Broker) -> None:
    broker.create_topic("t", 1)
    broker.on("Produce", times=1).close(served=True)
    assert send(confluent(broker, **{"enable.idempotence": True}), "t", b"v") == [None]
    assert len(broker.requests.of("Produce")) == 2
    assert values(broker, "t") == [b"v"]


def test_an_idempotent_producer_writes_once_and_in_order_with_any_fault(broker: Broker) -> None:
    broker.create_topic("t", 1)
    broker.on("Produce", probability=0.05).close(served=True)
    broker.on("Produce", probability=0.05).close()
    broker.on("Produce", probability=0.05).truncate(9)
    broker.on("Produce", probability=0.05).error("REQUEST_TIMED_OUT", served=True)
    broker.on("Produce", probability=0.05).delay(0.01)
    broker.on("Produce", probability=0.05).delay(0.01, served=True)
    settings = {"enable.idempotence": True, "batch.num.messages": 1, "reconnect.backoff.ms": 5}
    producer = confluent(broker, **settings, **{"reconnect.backoff.max.ms": 20})
    sent = [str(number).encode() for number in range(150)]
    for value in sent:
        producer.produce("t", value)
    assert producer.flush(TIMEOUT_S) == 0
    assert values(broker, "t") == sent
    assert sum(rule.hits for rule in broker.faults.rules) > 10


# -- close, truncate, drop, delay, hold


@pytest.mark.parametrize("fault", ["close", "truncate"])
def test_clients_reconnect_after_a_broken_connection(broker: Broker, fault: str) -> None:
    broker.create_topic("t", 1)
    rule = broker.on("Metadata", nth=1)
    rule.close() if fault == "close" else rule.truncate(9)
    producer = kafka_python(broker)
    assert producer.send("t", b"v").get(TIMEOUT_S).offset == 0
    producer.close()
    assert rule.hits == 1


def test_a_request_without_an_answer_times_out_and_is_repeated(broker: Broker) -> None:
    broker.create_topic("t", 1)
    broker.on("Produce", times=1).drop_answer(served=False)
    producer = confluent(
        broker, **{"socket.timeout.ms": 1000, "request.timeout.ms": 900, "enable.idempotence": True}
    )
    assert send(producer, "t", b"v") == [None]
    asked = broker.requests.of("Produce")
    assert len(asked) > 1  # more than two on a machine so busy that the second answer is late as well
    assert asked[0].outcome == "dropped"
    assert values(broker, "t") == [b"v"]


def test_clients_wait_for_a_delayed_answer(broker: Broker) -> None:
    broker.create_topic("t", 1)
    broker.on("Produce").delay(0.3)

    async def work() -> None:
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            begun = time.monotonic()
            await producer.send_and_wait("t", b"v")
            assert time.monotonic() - begun >= 0.3

    asyncio.run(work())


def test_a_held_request_waits_for_its_release(broker: Broker) -> None:
    broker.create_topic("t", 1)
    rule = broker.on("Produce").hold()
    producer = kafka_python(broker)
    sent = producer.send("t", b"v")
    rule.wait_held()
    assert not sent.is_done
    rule.release()
    assert sent.get(TIMEOUT_S).offset == 0
    producer.close()


# -- functions


def test_a_function_answers(broker: Broker) -> None:
    def fixed_id(call: Any) -> Any:
        answer = call.new_answer()
        answer.producer_id, answer.producer_epoch = 4711, 3
        return answer

    broker.create_topic("t", 1)
    broker.on("InitProducerId").answer(fixed_id)
    assert send(confluent(broker, **{"enable.idempotence": True}), "t", b"v") == [None]
    (produced,) = broker.requests.of("Produce")
    batch = read_header(produced.request.topic_data[0].partition_data[0].records)
    assert (batch.producer_id, batch.producer_epoch) == (4711, 3)


def test_a_function_changes_what_the_broker_answers(broker: Broker) -> None:
    def throttled(_call: Any, answer: Any) -> Any:
        answer.throttle_time_ms = 300
        return answer

    broker.create_topic("t", 1)
    broker.on("Produce", times=1).rewrite(throttled)
    events: list[Any] = []
    producer = confluent(broker, throttle_cb=events.append)
    assert send(producer, "t", b"v") == [None]
    producer.poll(1)
    assert [event.throttle_time for event in events] == [0.3]


def test_clients_measure_the_latency_of_a_link(broker: Broker) -> None:
    broker.create_topic("t", 1)
    producer = kafka_python(broker)
    producer.send("t", b"v").get(TIMEOUT_S)
    with broker.faults.latency(0.2):
        begun = time.monotonic()
        producer.send("t", b"v").get(TIMEOUT_S)
        assert time.monotonic() - begun >= 0.2
    producer.close()


# -- consumers


def test_a_consumer_resets_an_offset_that_is_out_of_range(broker: Broker) -> None:
    broker.seed("t", ["a", "b"])
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest")
    partition = TopicPartition("t", 0)
    consumer.assign([partition])
    assert [record.value for record in take(consumer, 2)] == [b"a", b"b"]
    broker.on("Fetch", topic="t", times=1).error("OFFSET_OUT_OF_RANGE")
    assert [record.value for record in take(consumer, 2)] == [b"a", b"b"]
    consumer.close()


def take(consumer: KafkaConsumer, count: int) -> list[Any]:
    found: list[Any] = []

    def enough() -> bool:
        found.extend(record for records in consumer.poll(100).values() for record in records)
        return len(found) >= count

    eventually(enough)
    return found


class Member:
    """A consumer in the group `g` that reads the topic `t` from its beginning."""

    def __init__(self, broker: Broker) -> None:
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "heartbeat.interval.ms": 100,
                "retry.backoff.ms": 10,
                "log_level": 0,
            }
        )
        self.consumer.subscribe(["t"])
        self.read: list[bytes | None] = []

    def has_read(self, count: int) -> bool:
        message = self.consumer.poll(0.05)
        if message is not None and message.error() is None:
            self.read.append(message.value())
        return len(self.read) >= count


def member_ids(broker: Broker) -> list[str]:
    group = broker.group("g")
    return [] if group is None else [each.member_id for each in group.members]


def test_a_consumer_waits_for_a_loading_coordinator(broker: Broker) -> None:
    broker.seed("t", ["a"])
    rule = broker.on("OffsetFetch", group="g", times=2).error("COORDINATOR_LOAD_IN_PROGRESS")
    member = Member(broker)
    eventually(lambda: member.has_read(1))
    assert rule.hits == 2
    member.consumer.close()


def test_a_member_that_expires_joins_again(broker: Broker) -> None:
    broker.seed("t", ["a"])
    member = Member(broker)
    eventually(lambda: member.has_read(1))
    first = member_ids(broker)
    broker.expire_member("g", first[0])
    broker.seed("t", ["b"])
    eventually(lambda: member.has_read(2))
    assert member.read[-1] == b"b"
    assert member_ids(broker) != first
    member.consumer.close()


def test_a_session_ends_without_sleeping(broker: Broker) -> None:
    """The consumer uses the machine's time; on the broker's clock a minute passes without a heartbeat."""
    broker.seed("t", ["a"])
    member = Member(broker)
    eventually(lambda: member.has_read(1))
    first = member_ids(broker)

    def joined_again() -> bool:
        if member_ids(broker) == first:  # a heartbeat may come in the middle
            broker.clock.advance(60)
        member.has_read(0)
        now = member_ids(broker)
        return bool(now) and now != first

    eventually(joined_again)
    member.consumer.close()


def test_clients_follow_a_leader_that_moves() -> None:
    with Broker(nodes=2) as broker:
        broker.create_topic("t", 1, replication_factor=2)

        async def work() -> None:
            async with (
                AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, retry_backoff_ms=10) as producer,
                AIOKafkaConsumer(
                    "t", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
                ) as consumer,
            ):
                for number in range(3):
                    await producer.send_and_wait("t", str(number).encode())
                    assert (await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).value == str(
                        number
                    ).encode()
                    moving = threading.Thread(target=broker.move_leader, args=("t",))
                    moving.start()
                    await asyncio.to_thread(moving.join)

        asyncio.run(work())
        assert broker.partition("t").leader_epoch == 3


def test_too_few_replicas_in_sync() -> None:
    with Broker(nodes=2) as broker:
        broker.create_topic("t", 1, replication_factor=2)
        broker.shrink_isr("t", 0, [broker.partition("t").leader])
        producer = kafka_python(broker, delivery_timeout_ms=1000, request_timeout_ms=900, linger_ms=0)
        with pytest.raises(KafkaError):
            producer.send("t", b"v").get(TIMEOUT_S)
        producer.close()
        broker.restore_isr()
        eventually(lambda: len(broker.partition("t").isr) == 2)
        producer = kafka_python(broker)
        producer.send("t", b"w").get(TIMEOUT_S)
        producer.close()
        assert values(broker, "t")[-1] == b"w"


# -- an older release


def test_clients_use_the_versions_of_2_8() -> None:
    with Broker(as_version="2.8") as broker:
        assert send(confluent(broker), "t", b"v") == [None]
        consumer = KafkaConsumer(
            "t", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
        )
        assert [record.value for record in take(consumer, 1)] == [b"v"]
        consumer.close()
        assert max(each.version for each in broker.requests.of("Fetch")) <= 12
        assert max(each.version for each in broker.requests.of("Metadata")) <= 11


def test_a_producer_without_answers_times_out(broker: Broker) -> None:
    producer = kafka_python(broker, max_block_ms=500, request_timeout_ms=400)
    broker.on("Metadata").drop_answer()
    with pytest.raises(KafkaTimeoutError):
        producer.send("t", b"v")
    producer.close(timeout=0)


# -- the Java client


def test_the_java_producer_retries_without_duplicates(broker: Broker, java_tools: JavaTools) -> None:
    broker.create_topic("t", 1)
    first = broker.on("Produce", topic="t", times=1).error("NOT_LEADER_OR_FOLLOWER")
    second = broker.on("Produce", topic="t", times=1).close(served=True)
    java_tools.run(
        "kafka-console-producer",
        *("--bootstrap-server", broker.bootstrap_servers, "--topic", "t"),
        stdin="v\n",
    )
    assert (first.hits, second.hits) == (1, 1)
    assert len(broker.requests.of("Produce")) == 3
    assert values(broker, "t") == [b"v"]


def test_the_java_consumer_waits_for_a_loading_coordinator(broker: Broker, java_tools: JavaTools) -> None:
    broker.seed("t", ["a"])
    loading = broker.on("JoinGroup", times=2).error("COORDINATOR_LOAD_IN_PROGRESS")
    done = java_tools.run(
        "kafka-console-consumer",
        *("--bootstrap-server", broker.bootstrap_servers, "--topic", "t", "--group", "g", "--from-beginning"),
        *("--max-messages", "1", "--timeout-ms", "60000"),
    )
    assert done.stdout.split() == ["a"]
    assert loading.hits == 2
