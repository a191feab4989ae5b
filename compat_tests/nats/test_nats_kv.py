"""A key-value bucket and a compacted topic, kept equal: nats-py's KeyValue on one side, Kafka's clients on the
other."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import confluent_kafka
import nats
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from nats.js import JetStreamContext
from nats.js.errors import ServerError
from nats.js.kv import KeyValue

from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import CLIENTS, PLAIN, Sample
from compat_tests.harness.eventually import eventually, eventually_async
from compat_tests.harness.nats_server import NatsServer
from compat_tests.nats.bound_topics import bind

pytestmark = pytest.mark.barnabas_only

STORE_FAILED = 10049  # of nats-server: JSStreamStoreFailedF
BOUND = {"nats.mode": "kv", "nats.bucket": "stock", "cleanup.policy": "compact"}


def with_bucket(server: NatsServer, work: Callable[[KeyValue], Awaitable[Any]]) -> Any:
    """The result of `work` with the bucket, which is created with a history of 10."""

    async def run() -> Any:
        client = await nats.connect(server.url)
        jetstream = client.jetstream(timeout=30)
        try:
            bucket = await jetstream.key_value("stock")
        except nats.js.errors.BucketNotFoundError:
            bucket = await jetstream.create_key_value(bucket="stock", history=10)
        try:
            return await work(bucket)
        finally:
            await client.close()

    return asyncio.run(run())


def records(broker: Broker, count: int, partitions: int = 1) -> list[Any]:
    """`count` records of the topic; asserts that there are no more."""
    consumer = KafkaConsumer(
        bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    )
    consumer.assign([TopicPartition("stock", index) for index in range(partitions)])
    consumer.seek_to_beginning()
    found: list[Any] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        for several in consumer.poll(timeout_ms=100).values():
            found += several
    for several in consumer.poll(timeout_ms=300).values():
        found += several
    consumer.close()
    assert len(found) == count, [(each.key, each.value) for each in found]
    return found


def has(server: NatsServer, expected: dict[str, bytes]) -> None:
    """Waits until the bucket has these keys and values, and no others."""

    async def work(bucket: KeyValue) -> None:
        found: dict[str, bytes] = {}

        async def is_so() -> bool:
            found.clear()
            try:
                for key in await bucket.keys():
                    found[key] = (await bucket.get(key)).value or b""
            except (nats.js.errors.NoKeysError, nats.js.errors.KeyNotFoundError):
                pass
            return found == expected

        await eventually_async(is_so, message=lambda: found)

    with_bucket(server, work)


@pytest.mark.every_nats_server
def test_values_put_in_the_bucket_are_in_the_topic(server: NatsServer, broker: Broker) -> None:
    async def work(bucket: KeyValue) -> None:
        await bucket.put("apples", b"1")
        await bucket.put("pears.green", b"2")
        await bucket.put("apples", b"3")
        await bucket.delete("pears.green")
        await bucket.put("empty", b"")

    with_bucket(server, lambda bucket: bucket.put("before", b"0"))
    bind(broker, "stock", BOUND)
    with_bucket(server, work)
    records(broker, 6)  # before the purge, which deletes the history
    with_bucket(server, lambda bucket: bucket.purge("apples"))
    found = records(broker, 7)
    assert [(each.key, each.value) for each in found] == [
        (b"before", b"0"),
        (b"apples", b"1"),
        (b"pears.green", b"2"),
        (b"apples", b"3"),
        (b"pears.green", None),
        (b"empty", b""),
        (b"apples", None),
    ]
    assert [dict(each.headers)["nats.seq"] for each in found] == [b"%d" % number for number in range(1, 8)]


@pytest.mark.every_nats_server
def test_produced_records_are_in_the_bucket(server: NatsServer, broker: Broker) -> None:
    with_bucket(server, lambda bucket: bucket.status())
    bind(broker, "stock", BOUND, partitions=2)
    for client in CLIENTS:
        client.produce(
            broker.bootstrap,
            "stock",
            [
                Sample(b"a", client.name.encode()),
                Sample(b"gone", b"x"),
                Sample(b"b/c.d-e_f=", b"1"),
                Sample(b"gone", None),
            ],
        )
    has(server, {"a": CLIENTS[-1].name.encode(), "b/c.d-e_f=": b"1"})

    async def work(bucket: KeyValue) -> list[Any]:
        return [(each.operation, each.value) for each in await bucket.history("gone")]

    assert [(operation, value or b"") for operation, value in with_bucket(server, work)] == [
        (None, b"x"),
        ("DEL", b""),
    ] * len(CLIENTS)
    records(broker, 12, partitions=2)  # no record came back


@pytest.mark.every_nats_server
def test_writes_in_both_directions_at_once_are_neither_lost_nor_repeated(
    server: NatsServer, broker: Broker
) -> None:
    with_bucket(server, lambda bucket: bucket.status())
    bind(broker, "stock", BOUND)

    async def work(bucket: KeyValue) -> None:
        for number in range(200):
            await bucket.put(f"n{number}", b"nats")
            if number == 100:
                produced = [Sample(b"k%d" % each, b"kafka") for each in range(200)]
                await asyncio.get_running_loop().run_in_executor(
                    None, PLAIN.produce, broker.bootstrap, "stock", produced
                )

    with_bucket(server, work)
    expected = {f"n{number}": b"nats" for number in range(200)} | {
        f"k{number}": b"kafka" for number in range(200)
    }
    has(server, expected)
    broker.kill()
    broker.start()
    with_bucket(server, lambda bucket: bucket.put("last", b"1"))
    found = records(broker, 401)
    assert {each.key.decode(): each.value for each in found} == expected | {"last": b"1"}


def test_a_record_with_copied_headers_is_written_to_the_bucket(server: NatsServer, broker: Broker) -> None:
    """Headers copied from a record of the bucket do not mark the new record as the bucket's own."""
    with_bucket(server, lambda bucket: bucket.put("a", b"1"))
    bind(broker, "stock", BOUND)
    (read,) = records(broker, 1)
    PLAIN.produce(broker.bootstrap, "stock", [Sample(b"a", b"2", tuple(read.headers))])
    has(server, {"a": b"2"})


def test_directions(server: NatsServer, broker: Broker) -> None:
    with_bucket(server, lambda bucket: bucket.put("a", b"1"))
    bind(broker, "stock", {**BOUND, "nats.direction": "in"})
    records(broker, 1)
    PLAIN.produce(broker.bootstrap, "stock", [Sample(b"b", b"2")])
    bind(broker, "stock", {"nats.direction": "out"})
    has(server, {"a": b"1", "b": b"2"})
    with_bucket(server, lambda bucket: bucket.put("c", b"3"))
    records(broker, 2)
    bind(broker, "stock", {"nats.direction": "both"})
    records(broker, 3)


def last_values(broker: Broker, partitions: int = 1) -> dict[str, bytes]:
    """Last value per key in the topic, read to its end."""
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, enable_auto_commit=False)
    all_of_it = [TopicPartition("stock", index) for index in range(partitions)]
    consumer.assign(all_of_it)
    consumer.seek_to_beginning()
    ends = consumer.end_offsets(all_of_it)
    found: dict[str, bytes] = {}
    while any(consumer.position(each) < ends[each] for each in all_of_it):
        for several in consumer.poll(timeout_ms=100).values():
            for record in several:
                if record.value is None:
                    found.pop(record.key.decode(), None)
                else:
                    found[record.key.decode()] = record.value
    consumer.close()
    return found


@pytest.mark.parametrize("kills", [False, True])
def test_writers_on_both_sides_end_with_the_same_values(
    server: NatsServer, broker: Broker, kills: bool
) -> None:
    """They write the same keys at the same time; the last value of the bucket is the last value of the topic."""
    with_bucket(server, lambda bucket: bucket.put("k0", b"first"))
    bind(broker, "stock", BOUND)
    records(broker, 1)
    chance = random.Random(3)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})

    async def work(bucket: KeyValue) -> None:
        for number in range(600):
            key = f"k{number // 2}"  # some keys have a value by then, others do not
            producer.produce("stock", chance.choice([b"kafka-%d" % number, None]), key, 0)
            producer.poll(0)
            await asyncio.sleep(chance.choice([0, 0, 0.001, 0.002]))  # either side may be first
            if chance.random() < 0.3:
                await bucket.delete(key)
            else:
                await bucket.put(key, b"nats-%d" % number)

    with_bucket(server, work)
    assert producer.flush(30) == 0
    if kills:
        broker.kill()
        with_bucket(server, lambda bucket: bucket.put("k1", b"meanwhile"))
        broker.start()
        PLAIN.produce(broker.bootstrap, "stock", [Sample(b"k2", b"after"), Sample(b"k3", b"after")])
    with_bucket(server, lambda bucket: bucket.put("end", b"1"))
    eventually(lambda: last_values(broker).get("end"))
    PLAIN.produce(broker.bootstrap, "stock", [Sample(b"end", b"2")])
    has(server, {**last_values(broker), "end": b"2"})
    has(server, last_values(broker))


def _produce(broker: Broker, values: dict[str, bytes]) -> None:
    """Produces each key to the partition that the binding would choose."""
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    for key, value in values.items():
        producer.send("stock", key=key.encode(), value=value).get(timeout=60)
    producer.close()


@pytest.mark.parametrize("meanwhile", ["running", "stopped", "killed"])
@pytest.mark.parametrize("direction", ["both", "in"])
def test_a_recreated_bucket_leaves_tombstones_for_keys_it_does_not_have(
    server: NatsServer, broker: Broker, direction: str, meanwhile: str
) -> None:
    async def fill(bucket: KeyValue) -> None:
        for number in range(30):
            await bucket.put(f"k{number}", b"old")
        await bucket.delete("k0")

    with_bucket(server, fill)
    bind(broker, "stock", {**BOUND, "nats.direction": direction}, partitions=3)
    records(broker, 31, 3)
    produced = {"p1": b"kafka", "p2": b"kafka"}
    _produce(broker, produced)
    old = {f"k{number}": b"old" for number in range(1, 30)}
    if direction == "both":
        has(server, old | produced)
    assert last_values(broker, 3) == old | produced
    if meanwhile == "stopped":
        broker.stop()
    elif meanwhile == "killed":
        broker.kill()

    async def recreate() -> None:
        client = await nats.connect(server.url)
        jetstream = client.jetstream(timeout=30)
        await jetstream.delete_key_value("stock")
        bucket = await _created(jetstream)
        await bucket.put("k7", b"new")
        await bucket.put("k99", b"new")
        await client.close()

    asyncio.run(recreate())
    if meanwhile != "running":
        broker.start()
    expected = {"k7": b"new", "k99": b"new"}
    if direction == "in":
        expected |= produced  # were never in the bucket
    possible = [expected]
    if meanwhile == "killed":
        possible.append(expected | produced)  # the position was not committed, so they are published again
    expected = eventually(
        lambda: next((each for each in possible if last_values(broker, 3) == each), {}),
        message=lambda: last_values(broker, 3),
    )
    _produce(broker, {"k8": b"again"})
    if direction == "both":
        has(server, expected | {"k8": b"again"})
    assert last_values(broker, 3) == expected | {"k8": b"again"}
    with_bucket(server, lambda bucket: bucket.put("k9", b"again"))
    eventually(lambda: last_values(broker, 3) == expected | {"k8": b"again", "k9": b"again"})


async def _created(jetstream: JetStreamContext) -> KeyValue:
    """The new bucket, as soon as nats-server has removed the deleted one's files, which it does after its answer."""

    async def create() -> KeyValue | None:
        try:
            return await jetstream.create_key_value(bucket="stock", history=10)
        except ServerError as error:
            if error.err_code != STORE_FAILED:
                raise
            return None

    created = await eventually_async(create)
    assert created is not None
    return created


def test_expired_values_do_not_block_the_binding(server: NatsServer, broker: Broker) -> None:
    async def make() -> None:
        client = await nats.connect(server.url)
        await client.jetstream(timeout=30).create_key_value(bucket="stock", ttl=4)
        await client.close()

    asyncio.run(make())
    bind(broker, "stock", BOUND)
    with_bucket(server, lambda bucket: bucket.put("a", b"1"))
    records(broker, 1)
    PLAIN.produce(broker.bootstrap, "stock", [Sample(b"a", b"2")])
    has(server, {"a": b"2"})
    eventually(lambda: _is_empty(server))
    PLAIN.produce(broker.bootstrap, "stock", [Sample(b"a", b"3")])
    has(server, {"a": b"3"})


def _is_empty(server: NatsServer) -> bool:
    async def work(bucket: KeyValue) -> bool:
        try:
            return not await bucket.keys()
        except nats.js.errors.NoKeysError:
            return True

    return bool(with_bucket(server, work))


def test_a_key_that_is_invalid_in_a_bucket_stops_the_partition_and_is_logged(
    server: NatsServer, broker: Broker, capfd: pytest.CaptureFixture[str]
) -> None:
    with_bucket(server, lambda bucket: bucket.status())
    bind(broker, "stock", BOUND)
    PLAIN.produce(
        broker.bootstrap, "stock", [Sample(b"good", b"1"), Sample(b"two words", b"2"), Sample(b"then", b"3")]
    )
    has(server, {"good": b"1"})
    eventually(lambda: "stands at offset 1: a bucket can't have the key" in broker.log_text())
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "nats-stock"})
    consumer.commit(offsets=[confluent_kafka.TopicPartition("stock", 0, 2)], asynchronous=False)
    consumer.close()
    has(server, {"good": b"1", "then": b"3"})


def test_a_bucket_that_is_created_after_its_binding(server: NatsServer, broker: Broker) -> None:
    bind(broker, "stock", BOUND)
    PLAIN.produce(broker.bootstrap, "stock", [Sample(b"a", b"1")])
    eventually(lambda: "there is no bucket stock: make it (nats kv add stock)" in broker.log_text())
    with_bucket(server, lambda bucket: bucket.put("b", b"2"))
    has(server, {"a": b"1", "b": b"2"})
    records(broker, 2)


def test_expired_values_are_tombstones(server: NatsServer, broker: Broker) -> None:
    """If the server writes delete markers, as it does for a bucket with limit_marker_ttl."""
    if server.version < (2, 11):
        pytest.skip("delete markers of expired values are new in nats-server 2.11")

    async def put() -> None:
        client = await nats.connect(server.url)
        bucket = await client.jetstream(timeout=30).create_key_value(
            bucket="stock", ttl=1, limit_marker_ttl=60
        )
        await bucket.put("a", b"1")
        await client.close()

    asyncio.run(put())
    bind(broker, "stock", BOUND)
    value, tombstone = records(broker, 2)
    assert (value.key, value.value) == (b"a", b"1")
    assert (tombstone.key, tombstone.value) == (b"a", None)
    assert dict(tombstone.headers)["Nats-Marker-Reason"] == b"MaxAge"
