"""The broker goes away and comes back: cleanly between two sends, and by kill -9 under load."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer

from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import CLIENTS, CODECS, Sample
from compat_tests.harness.confluent_admin import ConfigResource, ResourceType
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.members import LIBRARIES, await_balance
from compat_tests.harness.topics import create_topic, eventually

KEPT = {"retention.ms": "-1"}


def test_clients_live_through_a_restart(fresh_broker: BrokerFactory) -> None:
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
        consumer_timeout_ms=20_000,
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
        assert confluent_producer.flush(20) == 0
        message = eventually(lambda: confluent_consumer.poll(0.5), 25)
        assert message is not None
        assert message.error() is None
        assert message.value() == value

    def python_round(value: bytes) -> None:
        python_producer.send("python", value).get(20)
        assert next(python_consumer).value == value

    async def scenario() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True)
        consumer = AIOKafkaConsumer("aio", bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
        await producer.start()
        await consumer.start()
        for value in (b"before", b"after"):
            await asyncio.wait_for(producer.send_and_wait("aio", value), 20)
            assert (await asyncio.wait_for(consumer.getone(), 20)).value == value
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


def test_everything_is_there_after_restarts(fresh_broker: BrokerFactory) -> None:
    """Records of every codec, topics with their ids and configs, and groups' offsets: stop, then kill -9."""
    broker = fresh_broker()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    samples = [Sample(b"k%d" % number, b"v" * 100, (("h", b"1"),)) for number in range(20)]
    for codec in CODECS:
        create_topic(broker.bootstrap, codec, configs={**KEPT, "max.message.bytes": "123456"})
        CLIENTS[2].produce(broker.bootstrap, codec, samples, codec)
    offsets = [confluent_kafka.TopicPartition(codec, 0, 11, metadata="note") for codec in CODECS]
    group = confluent_kafka.ConsumerGroupTopicPartitions("group", offsets)
    admin.alter_consumer_group_offsets([group])["group"].result(15)

    def topic_ids() -> dict[str, str]:
        found = admin.describe_topics(confluent_kafka.TopicCollection(list(CODECS)))
        return {name: str(one.result(15).topic_id) for name, one in found.items()}

    ids = topic_ids()
    for kill in (False, True):
        broker.restart(kill=kill)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        assert topic_ids() == ids
        resource = ConfigResource(ResourceType.TOPIC, "gzip")
        assert admin.describe_configs([resource])[resource].result(15)["max.message.bytes"].value == "123456"
        for codec in CODECS:
            found = CLIENTS[0].consume(broker.bootstrap, codec, 20)
            assert [one.sample for one in found] == samples
        committed = eventually(lambda admin=admin: _committed(admin, "group"))
        assert {(one.topic, one.offset, one.metadata) for one in committed} == {
            (codec, 11, "note") for codec in CODECS
        }


def _committed(admin: AdminClient, group: str) -> list[confluent_kafka.TopicPartition]:
    asked = confluent_kafka.ConsumerGroupTopicPartitions(group)
    return list(admin.list_consumer_group_offsets([asked])[group].result(15).topic_partitions or ())


def test_groups_live_through_a_kill(fresh_broker: BrokerFactory) -> None:
    """Members of each library rejoin by themselves and go on behind what they committed."""
    broker = fresh_broker({"group.min.session.timeout.ms": "500"})
    members = []
    for library in LIBRARIES:
        create_topic(broker.bootstrap, library.library, partitions=2, configs=KEPT)
        members.append(library(broker.bootstrap, f"group-{library.library}", [library.library]))
    for member in members:
        await_balance([member], 2)
        CLIENTS[2].produce(broker.bootstrap, member.library, [Sample(None, b"%d" % n) for n in range(10)])
    for member in members:
        member.await_values(lambda values: len(values) == 10)
    time.sleep(0.6)  # three intervals of their automatic commit
    broker.restart(kill=True)
    for member in members:
        CLIENTS[2].produce(broker.bootstrap, member.library, [Sample(None, b"after")], partition=1)
    for member in members:
        member.await_values(lambda values: b"after" in values, 40)
        member.leave()
        assert len(member.values) == 11, f"{member.library} read something twice"


class Load:
    """A producer that numbers its records, remembers which were acknowledged, and runs until stopped."""

    def __init__(
        self, broker: Broker, topic: str, make: Callable[[Broker, str, Load], Callable[[int], None]]
    ):
        self.acknowledged: list[int] = []
        self.failed: list[str] = []
        self.sent = 0
        self._send = make(broker, topic, self)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            for _ in range(20):
                self._send(self.sent)
                self.sent += 1
            time.sleep(0.005)
        self._send(-1)  # flush

    def finish(self) -> None:
        """Stop sending and wait until the outstanding records are acknowledged or have failed."""
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def _confluent(idempotent: bool) -> Callable[[Broker, str, Load], Callable[[int], None]]:
    def make(broker: Broker, topic: str, load: Load) -> Callable[[int], None]:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": idempotent,
                "acks": "all",
                "log_level": 0,
                "reconnect.backoff.max.ms": 300,
                "retry.backoff.max.ms": 300,
                "compression.type": "lz4" if idempotent else "none",
            }
        )

        def delivered(number: int, error: object) -> None:
            if error is None:
                load.acknowledged.append(number)
            else:
                load.failed.append(str(error))

        def send(number: int) -> None:
            if number < 0:
                assert producer.flush(50) == 0
                return
            producer.produce(
                topic,
                b"%d" % number,
                on_delivery=lambda error, _: delivered(number, error),
            )
            producer.poll(0)

        return send

    return make


def _kafka_python(broker: Broker, topic: str, load: Load) -> Callable[[int], None]:
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap, acks="all", reconnect_backoff_max_ms=300, retry_backoff_ms=50
    )

    def send(number: int) -> None:
        if number < 0:
            producer.flush(50)
            producer.close()
            return
        future = producer.send(topic, b"%d" % number)
        future.add_callback(lambda _: load.acknowledged.append(number))
        future.add_errback(lambda error: load.failed.append(str(error)))

    return send


PRODUCERS = {
    "confluent-idempotent": _confluent(True),
    "confluent-plain": _confluent(False),
    "kafka-python-idempotent": _kafka_python,
}


@pytest.mark.timeout(150)
def test_kill_under_load_loses_nothing_acknowledged(fresh_broker: BrokerFactory) -> None:
    """Three rounds of kill -9 while three producers write; idempotent ones also leave no duplicate."""
    broker = fresh_broker()
    for name in PRODUCERS:
        create_topic(broker.bootstrap, name, configs={"segment.bytes": "1048576"})
    loads = {name: Load(broker, name, make) for name, make in PRODUCERS.items()}
    for _ in range(3):
        before = {name: len(load.acknowledged) for name, load in loads.items()}
        eventually(
            lambda before=before: all(
                len(load.acknowledged) > before[name] + 200 for name, load in loads.items()
            ),
            40,
        )
        broker.restart(kill=True)
    for load in loads.values():
        load.finish()
    for name, load in loads.items():
        assert len(load.acknowledged) > 600
        values = _read_all(broker, name)
        lost = set(load.acknowledged) - set(values)
        assert not lost, f"{name}: {len(lost)} acknowledged records lost, the first {min(lost)}"
        if name.endswith("idempotent"):
            assert len(values) == len(set(values)), f"{name}: duplicates"
            assert values == sorted(values), f"{name}: out of order"
            assert not load.failed, load.failed[:3]


def _read_all(broker: Broker, topic: str) -> list[int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    where = confluent_kafka.TopicPartition(topic, 0, 0)
    _, end = consumer.get_watermark_offsets(where, timeout=20)
    consumer.assign([where])
    values: list[int] = []
    position = 0
    deadline = time.monotonic() + 40
    while position < end and time.monotonic() < deadline:
        for message in consumer.consume(10_000, 0.5):
            assert message.error() is None, message.error()
            values.append(int(message.value() or b"-1"))
            position = (message.offset() or 0) + 1
    consumer.close()
    assert position == end
    return values
