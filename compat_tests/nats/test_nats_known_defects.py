"""Defects that were reported for other bridges between NATS and logs, and the behaviour of this one.

Tests of further defects are elsewhere:

- a record that can't be published stops its partition and is not skipped: barnabas/nats/egress/tests/test_publishing.py,
  test_a_message_that_is_too_large_stops_the_partition, test_refused_messages_do_not_count_as_published,
  test_a_full_stream_gets_all_records_later
- plain messages get a key, keep their headers and are acknowledged when they ask for it: test_nats_core.py,
  test_messages_are_records, test_a_stock_jetstream_publish_is_acknowledged,
  test_requests_without_the_ack_header_are_not_answered
- wildcards: nearly all tests bind one; patterns with `*` and `>` are compared with nats-server's matching in
  barnabas/nats/binding/tests/test_subjects.py
- publishers, streams and subscribers use an ordinary nats-server; there is no second log that needs special clients:
  test_nats_recipes.py, test_the_recipes_one_after_the_other
- a leader that is paused but alive: compat_tests/cluster/test_cluster_pause.py, test_a_paused_node_resumes
"""

from __future__ import annotations

import asyncio
import json
import resource
import time
from typing import Any

import nats
import nats.errors
import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka.partitioner.default import murmur2
from nats.aio.msg import Msg
from nats.js.errors import NotFoundError

from compat_tests.harness.broker import Broker
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.eventually import eventually, stays
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.nats_server import NatsServer, NatsServerFactory
from compat_tests.nats.bound_topics import await_subscribed, bind
from compat_tests.nats.streams import Streams, check_exactly, numbered, read_all
from compat_tests.nats.test_nats_egress import CONFLUENT, samples, stored, stored_count, stream_of
from compat_tests.nats.volume import Raw, tally_topic

pytestmark = pytest.mark.barnabas_only

MEGABYTE = 1_000_000
JETSTREAM = {"nats.mode": "jetstream"}
AT_LEAST_ONCE = {**JETSTREAM, "nats.delivery": "at-least-once"}
PER_SECOND, SECONDS = 20_000, 2


def publish(server: NatsServer, *messages: tuple[str, bytes]) -> None:
    raw = Raw(server)
    raw.socket.sendall(
        b"".join(b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(data), data) for subject, data in messages)
    )
    raw.flush()
    raw.close()


def publish_with(server: NatsServer, subject: str, block: bytes) -> None:
    """Publishes a message without a payload."""
    raw = Raw(server)
    raw.socket.sendall(b"HPUB %b %d %d\r\n%b\r\n" % (subject.encode(), len(block), len(block), block))
    raw.flush()
    raw.close()


def test_each_message_under_a_wildcard_is_keyed_and_placed_by_its_own_subject(
    server: NatsServer, broker: Broker
) -> None:
    """nats-kafka #108: the key is the configured pattern, so a wildcard fills one partition."""
    bind(broker, "keyed", {"nats.subjects": "keyed.>"}, partitions=8)
    subjects = [f"keyed.{number}.x" for number in range(200)]
    publish(server, *((subject, subject.encode()) for subject in subjects))
    found = read_all(broker, "keyed", 200)
    assert sorted(record.key().decode() for record in found) == sorted(subjects)
    for record in found:
        assert record.key() == record.value()
        assert record.partition() == (murmur2(record.key()) & 0x7FFFFFFF) % 8


def test_all_partitions_of_a_wildcard_binding_listen_on_the_same_subjects(
    server: NatsServer, broker: Broker
) -> None:
    """Liftbridge: partition 1 of a stream listens on another subject, which a wildcard does not match."""
    configs = {"nats.subjects": "spread.*.>", "nats.partitioner": "token:2"}
    bind(broker, "spread", configs, partitions=4)
    publish(server, *((f"spread.{number % 4}.a.b", b"%d" % number) for number in range(40)))
    found = read_all(broker, "spread", 40)
    assert sorted((record.partition(), int(record.value())) for record in found) == sorted(
        (number % 4, number) for number in range(40)
    )


@pytest.mark.every_nats_server
@pytest.mark.parametrize("mode", ["core", "jetstream"])
def test_every_header_value_is_kept_in_its_order_with_its_case_and_bytes(
    server: NatsServer, broker: Broker, mode: str
) -> None:
    """nats-kafka: the first value of a name alone."""
    topic = f"headers-{mode}"
    if mode == "jetstream":
        with Streams(server) as streams:
            streams.add("HEADERS", f"{topic}.>")
    bind(broker, topic, {"nats.subjects": f"{topic}.>", "nats.mode": mode})
    pairs = [
        ("Color", b"red"),
        ("color", b"lower"),
        ("Color", b"blue"),
        ("Raw", bytes(range(256)).replace(b"\r", b"").replace(b"\n", b"")),
        ("Empty", b""),
        ("COLOR", b"  in blanks  "),
        ("Color", b"red"),
    ]
    block = b"".join(b"%b: %b\r\n" % (name.encode(), value) for name, value in pairs)
    publish_with(server, f"{topic}.a", b"NATS/1.0\r\n" + block + b"\r\n")
    (record,) = read_all(broker, topic, 1)
    assert [pair for pair in record.headers() if not pair[0].startswith("nats.")] == pairs


def test_a_message_without_a_key_has_a_null_key_and_an_empty_key_is_empty(
    server: NatsServer, broker: Broker
) -> None:
    """nats-kafka: an empty key for both."""
    bind(broker, "unkeyed", {"nats.subjects": "unkeyed.>", "nats.key": "none"})
    bind(broker, "by-header", {"nats.subjects": "unkeyed.>", "nats.key": "header:Key"})
    publish(server, ("unkeyed.a", b"plain"))
    publish_with(server, "unkeyed.b", b"NATS/1.0\r\nKey:\r\n\r\n")
    assert [record.key() for record in read_all(broker, "unkeyed", 2)] == [None, None]
    assert [record.key() for record in read_all(broker, "by-header", 2)] == [None, b""]


def test_egress_reconnects_by_itself_when_the_server_restarts(
    fresh_broker: BrokerFactory, nats_server: NatsServerFactory
) -> None:
    """nats-kafka #85: its Kafka to NATS direction never reconnects."""
    server = nats_server(jetstream=True)
    stream_of(server, "out")
    broker = fresh_broker({"nats.servers": server.url, "offsets.topic.num.partitions": "1"})
    bind(broker, "back", {"nats.publish.subject": "out", "nats.publish.jetstream": "true"})
    CONFLUENT.produce(broker.bootstrap, "back", samples(0, 100))
    eventually(lambda: stored_count(server) == 100)
    before = len(broker.log_text())
    server.kill()
    CONFLUENT.produce(broker.bootstrap, "back", samples(100, 100))
    eventually(lambda: "no connection to" in broker.log_text()[before:])
    server.start()
    eventually(lambda: stored_count(server) >= 200)
    CONFLUENT.produce(broker.bootstrap, "back", samples(200, 100))
    eventually(lambda: stored_count(server) >= 300)
    assert [data for _, data in stored(server)] == [b"%d" % number for number in range(300)]


def test_twenty_thousand_messages_a_second_cause_no_slow_consumer(server: NatsServer, broker: Broker) -> None:
    """nats-kafka #33: a slow consumer at 10,000 a second."""
    bind(broker, "fast", {"nats.subjects": "fast.*"}, partitions=4)
    before = broker.log_text()
    raw = Raw(server)
    begin = time.monotonic()
    total = PER_SECOND * SECONDS
    for first in range(0, total, 200):
        pieces = []
        for number in range(first, first + 200):
            payload = b"0 %d %0200d" % (number // 100, 0)
            pieces.append(b"PUB fast.%d %d\r\n%b\r\n" % (number % 100, len(payload), payload))
        time.sleep(max(0.0, begin + first / PER_SECOND - time.monotonic()))  # the rate
        raw.socket.sendall(b"".join(pieces))
    raw.flush()
    seconds = time.monotonic() - begin
    raw.close()
    tally = tally_topic(broker.bootstrap, "fast", 4, total)
    assert (tally.count, tally.wrong) == (total, [])
    assert "Slow Consumer" not in server.log_text()
    assert "may be missing" not in broker.log_text()[len(before) :]
    if seconds > 2 * SECONDS:
        pytest.skip(
            f"no message is missing, but the machine was too busy to publish them in less than {seconds:.1f} s"
        )


def test_memory_stays_bounded_while_a_log_refuses_appends(
    fresh_broker: BrokerFactory, nats_server: NatsServerFactory
) -> None:
    """Liftbridge #44: memory grows without a limit. The server has large limits here, so that it sends all messages
    to the broker."""
    server = nats_server(config='write_deadline: "60s"\nmax_pending: 1GB\n')
    broker = fresh_broker({"nats.servers": server.url, "log.index.size.max.bytes": "4096"})
    bind(broker, "full", {"nats.subjects": "full", "nats.buffer.bytes": str(4 * MEGABYTE)})
    await_subscribed(server.url, "full")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "end"})

    def end_offset() -> int:
        return consumer.get_watermark_offsets(TopicPartition("full", 0), timeout=30)[1]

    publish(server, *[("full", bytes(100_000))] * 20)
    eventually(lambda: end_offset() == 20)
    sizes = [broker.resident_bytes()]

    def measure() -> bool:
        sizes.append(broker.resident_bytes())
        return True

    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (4 << 20, resource.RLIM_INFINITY))
    publish(server, *[("full", bytes(100_000))] * 1500)
    eventually(lambda: "nothing is read from NATS until fewer wait" in broker.log_text())
    stays(measure, 1)
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    eventually(lambda: measure() and end_offset() >= 1520)
    consumer.close()
    assert max(sizes) - sizes[0] < 50 * MEGABYTE  # of 150
    assert "may be missing" not in broker.log_text()


@pytest.mark.every_nats_server
@pytest.mark.parametrize(
    "configs", [JETSTREAM, {**AT_LEAST_ONCE, "nats.durable": "many"}], ids=["exactly", "at-least"]
)
def test_one_stream_binding_takes_many_filter_subjects(
    server: NatsServer, broker: Broker, configs: dict[str, str]
) -> None:
    """Redpanda Connect #3013: only one filter subject."""
    topic = f"many-{len(configs)}"
    chosen = [f"{topic}.{number}.x" for number in range(0, 100, 2)]
    published = [(f"{topic}.{number % 100}.x", b"%d" % number) for number in range(1000)]
    with Streams(server) as streams:
        streams.add(topic, f"{topic}.>")
        bind(broker, topic, {**configs, "nats.subjects": ",".join(chosen)})
        streams.publish(published)
        found = read_all(broker, topic, 500)
        assert streams.run(streams.jetstream.stream_info(topic)).state.consumer_count == 1
    assert [(dict(each.headers())["nats.subject"].decode(), each.value()) for each in found] == [
        each for each in published if each[0] in chosen
    ]


@pytest.mark.parametrize("configs", [JETSTREAM, AT_LEAST_ONCE], ids=["exactly", "at-least"])
def test_a_fetch_requests_many_messages(server: NatsServer, broker: Broker, configs: dict[str, str]) -> None:
    """Redpanda Connect #4160: one message per fetch."""
    topic = f"fetched-{len(configs)}"
    published = [(f"{topic}.x", data) for _, data in numbered(0, 5000)]
    pulls: list[dict[str, Any]] = []

    async def note(message: Msg) -> None:
        pulls.append(json.loads(message.data))

    with Streams(server) as streams:
        streams.add(topic, f"{topic}.>")
        streams.publish(published)
        streams.run(streams.client.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.{topic}.>", cb=note))
        streams.run(streams.client.flush())
        bind(broker, topic, {**configs, "nats.subjects": f"{topic}.>"})
        check_exactly(read_all(broker, topic, 5000), published)
    assert 0 < len(pulls) < 100
    assert all(pull["batch"] > 1 for pull in pulls)


def ack_floor(streams: Streams, stream: str) -> int:
    try:
        info = streams.run(streams.jetstream.consumer_info(stream, "taker"))
    except NotFoundError:  # the consumer does not exist yet
        return 0
    return int(info.ack_floor.stream_seq)


def test_a_stream_s_messages_are_acknowledged_when_enough_replicas_have_them(
    server: NatsServer, cluster: Cluster
) -> None:
    """nats-kafka: acknowledges when only the leader has the messages. With one of two replicas down nothing is
    acknowledged, neither before the leader has noticed nor afterwards."""
    configs = {"nats.subjects": "safe.>", "nats.durable": "taker", "min.insync.replicas": "2"}
    with Streams(server) as streams:
        streams.add("SAFE", "safe.>")
        bind(cluster, "safe", {**AT_LEAST_ONCE, **configs}, replicas=2)
        published = [(f"safe.{number % 5}", b"%d" % number) for number in range(200)]
        streams.publish(published[:100])
        eventually(lambda: ack_floor(streams, "SAFE") == 100)
        leader = cluster.leader("safe")
        (follower,) = set(cluster.partition("safe", 0).replicas) - {leader}
        cluster.kill(follower)
        streams.publish(published[100:])
        eventually(lambda: cluster.partition("safe", 0).isr == (leader,))
        stays(lambda: ack_floor(streams, "SAFE") == 100, 1)
        cluster.start(follower)
        eventually(lambda: ack_floor(streams, "SAFE") == 200)
        values = [each.value() for each in read_all(cluster, "safe", 200, distinct=True)]
    assert list(dict.fromkeys(values)) == [value for _, value in published]


@pytest.mark.parametrize("mode", ["core", "jetstream"])
def test_messages_of_several_megabytes_leave_all_replicas_in_sync(
    server: NatsServer, cluster: Cluster, mode: str
) -> None:
    """Liftbridge #305: replicas leave the ISR because of messages of more than 1 MB. Here every acknowledged or
    consumed message is in the logs of three replicas in sync (min.insync.replicas)."""
    topic = f"large-{mode}"
    configs = {"nats.subjects": topic, "nats.mode": mode, "max.message.bytes": str(4 * MEGABYTE)}
    values = [bytes([number]) * (3 * MEGABYTE) for number in range(5)]
    with Streams(server) as streams:
        if mode == "jetstream":
            streams.add("LARGE", topic)
        bind(cluster, topic, {**configs, "min.insync.replicas": "3"}, replicas=3)
        await_subscribed(server.url, topic)
        for value in values:
            if mode == "jetstream":
                streams.publish([(topic, value)])
            else:
                asked = {"Kafka-Ack": "all"}
                answer = streams.run(streams.client.request(topic, value, timeout=30, headers=asked))
                assert "error" not in json.loads(answer.data)
            assert cluster.partition(topic, 0).whole
    found = read_all(cluster, topic, len(values))
    assert [record.value() for record in found] == values
    assert cluster.partition(topic, 0).whole


def test_a_leader_that_dies_is_replaced_within_seconds(server: NatsServer, cluster: Cluster) -> None:
    """Liftbridge: 15 s until it detects the failure. Here acknowledgements continue long before that."""
    bind(cluster, "led", {"nats.subjects": "led.>", "min.insync.replicas": "2"}, replicas=3)
    cluster.wait_until_whole()
    victim = cluster.leader("led")

    async def acknowledged(client: Any) -> None:
        while True:
            try:
                answer = await client.request("led.x", b"x", timeout=0.2, headers={"Kafka-Ack": "all"})
            except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
                continue
            if "error" not in json.loads(answer.data):
                return

    async def run() -> None:
        client = await nats.connect(server.url)
        await asyncio.wait_for(acknowledged(client), 60)
        cluster.kill(victim)
        await asyncio.wait_for(acknowledged(client), 60)
        await client.close()

    asyncio.run(run())
    assert cluster.leader("led") != victim
