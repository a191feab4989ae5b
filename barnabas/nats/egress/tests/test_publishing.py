"""Records on subjects: nothing left out, nothing out of order, in core NATS and in streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer

from barnabas.nats.egress import group_positions
from barnabas.nats.egress.tests.egress_bench import EgressBench, Subscriber, in_jetstream, records, stored
from barnabas.wire.compression import Codec
from barnabas.wire.records import Record
from barnabas.wire.uuids import uuid_to_string
from compat_tests.harness.eventually import eventually, stays
from compat_tests.harness.nats_server import NatsServer

pytestmark = pytest.mark.sockets


@pytest.fixture
def server(nats_server: Callable[..., NatsServer]) -> NatsServer:
    return nats_server(jetstream=True)


@pytest.fixture
def bench(tmp_path: Path, server: NatsServer) -> Iterator[EgressBench]:
    one = EgressBench(tmp_path / "node", server)
    yield one
    one.close()


@pytest.fixture
def subscribe(server: NatsServer) -> Iterator[Callable[[str], Subscriber]]:
    made: list[Subscriber] = []

    def make(subject: str) -> Subscriber:
        made.append(Subscriber(server, subject))
        return made[-1]

    yield make
    for each in made:
        each.close()


def add_stream(server: NatsServer, name: str, *subjects: str, **options: Any) -> None:
    in_jetstream(server, lambda _, js: js.add_stream(name=name, subjects=list(subjects), **options))


def test_existing_and_new_records_are_published_in_order(
    bench: EgressBench, subscribe: Callable[[str], Subscriber]
) -> None:
    bench.create("orders")
    bench.append("orders", records(300))
    subscriber = subscribe("out.>")
    publisher = bench.publish("orders", {"nats.publish.subject": "out.{topic}.{partition}.{key}"})
    subscriber.wait_for(300)
    bench.append("orders", records(500, 300), codec=Codec.GZIP)
    found = subscriber.wait_for(800)
    assert [(subject, data) for subject, data, _ in found] == [
        (f"out.orders.0.k{number}", b"v%d" % number) for number in range(800)
    ]
    cluster, topic_id = bench.host.cluster_id, uuid_to_string(bench.partition("orders").topic_id)
    assert [headers for _, _, headers in found[:2]] == [
        {"Barnabas-Hops": f"{cluster}/orders", "Nats-Msg-Id": f"{topic_id}/0/{offset}"} for offset in (0, 1)
    ]
    assert publisher.state == "running"
    bench.until(lambda: publisher.publishers[0].committed == 800)
    assert bench.position("nats-orders", "orders").offset == 800  # type: ignore[union-attr]


def test_publishing_continues_at_the_groups_position(
    bench: EgressBench, subscribe: Callable[[str], Subscriber]
) -> None:
    bench.create("orders")
    bench.append("orders", records(10))
    subscriber = subscribe("out")
    configs = {"nats.publish.subject": "out", "nats.publish.group": "mine"}
    first = bench.publish("orders", configs)
    subscriber.wait_for(10)
    bench.until(lambda: first.publishers[0].confirmed == 10)
    bench.stop(first)
    bench.append("orders", records(5, 10))
    second = bench.publish("orders", configs)
    subscriber.wait_for(15)
    bench.until(lambda: second.publishers[0].confirmed == 15)
    bench.stop(second)
    assert [data for _, data, _ in subscriber.messages] == [b"v%d" % number for number in range(15)]
    assert bench.commit("mine", "orders", 12) == 0  # an admin resets the group while nothing runs
    bench.publish("orders", configs)
    subscriber.wait_for(18)
    assert [data for _, data, _ in subscriber.messages[15:]] == [b"v12", b"v13", b"v14"]


@pytest.mark.every_nats_server
def test_a_stream_gets_each_record_once_though_the_server_is_killed(
    bench: EgressBench, server: NatsServer
) -> None:
    add_stream(server, "S", "out.>")
    bench.create("orders", 2)
    publisher = bench.publish(
        "orders",
        {"nats.publish.subject": "out.{partition}", "nats.publish.jetstream": "true"},
        partitions=2,
    )
    for round_number in range(4):
        for partition in range(2):
            bench.append("orders", records(1000, 1000 * round_number), partition)
        if round_number in (1, 2):
            server.restart(kill=True)
    bench.until(lambda: all(each.confirmed == 4000 for each in publisher.publishers.values()), 30)
    found = stored(server, "S")
    for partition in range(2):
        mine = [data for subject, data, _ in found if subject == f"out.{partition}"]
        assert mine == [b"v%d" % number for number in range(4000)]
    assert publisher.stats.reconnects >= 1


def test_a_late_commit_of_a_former_leader_is_overwritten(
    bench: EgressBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_positions, "COMMIT_AGAIN_S", 2.5)
    bench.create("orders")
    bench.append("orders", records(20))
    publisher = bench.publish("orders", {"nats.publish.subject": "out.x"})
    bench.until(lambda: publisher.publishers[0].committed == 20)
    assert not bench.commit(publisher.group, "orders", 12)

    def offset() -> int | None:
        position = bench.position(publisher.group, "orders")
        return None if position is None else position.offset

    eventually(lambda: offset() == 20)
    assert not bench.commit(publisher.group, "orders", 12)  # this is a reset by an administrator
    stays(lambda: offset() == 12, 2)


@pytest.mark.every_nats_server
def test_without_a_stream_no_record_is_skipped(bench: EgressBench, server: NatsServer) -> None:
    bench.create("orders")
    bench.append("orders", records(20))
    publisher = bench.publish("orders", {"nats.publish.subject": "out.x", "nats.publish.jetstream": "true"})
    bench.until(lambda: publisher.publishers[0].problem)
    assert "no stream takes messages" in bench.on_loop(lambda: publisher.state)
    assert bench.on_loop(lambda: publisher.publishers[0].confirmed) == 0
    add_stream(server, "S", "out.>")
    bench.until(lambda: publisher.publishers[0].confirmed == 20)
    assert [data for _, data, _ in stored(server, "S")] == [b"v%d" % number for number in range(20)]


def test_a_record_without_a_subject_stops_the_partition_until_an_admin_moves_the_group(
    bench: EgressBench, subscribe: Callable[[str], Subscriber], caplog: pytest.LogCaptureFixture
) -> None:
    bench.create("orders")
    bench.append("orders", records(5, key=lambda number: None if number == 3 else b"k"))
    subscriber = subscribe("out.>")
    publisher = bench.publish("orders", {"nats.publish.subject": "out.{key}"})
    bench.until(lambda: publisher.publishers[0].problem)
    state = bench.on_loop(lambda: publisher.state)
    assert "orders-0 stands at offset 3: it has no key" in state
    command = "--group nats-orders --topic orders:0 --reset-offsets --to-offset 4 --execute"
    assert command in state
    assert caplog.text.count("orders-0 stands at") == 1
    assert "topic orders: blocked: orders-0 stands at" in caplog.text
    bench.until(lambda: publisher.publishers[0].committed == 3)
    assert len(subscriber.wait_for(3)) == 3
    assert bench.commit("nats-orders", "orders", 4) == 0
    found = subscriber.wait_for(4)
    assert found[-1][1] == b"v4"
    bench.until(lambda: publisher.state == "running")


def test_a_message_that_is_too_large_stops_the_partition(
    bench: EgressBench, subscribe: Callable[[str], Subscriber]
) -> None:
    bench.create("orders", configs={"max.message.bytes": "4000000"})
    bench.append("orders", [Record(0, 0, None, b"small"), Record(1, 0, None, bytes(1024 * 1024))])
    subscriber = subscribe("out")
    publisher = bench.publish("orders", {"nats.publish.subject": "out"})
    bench.until(lambda: publisher.publishers[0].problem)
    assert "raise max_payload" in bench.on_loop(lambda: publisher.state)
    assert [data for _, data, _ in subscriber.wait_for(1)] == [b"small"]


def test_refused_messages_do_not_count_as_published(
    tmp_path: Path, nats_server: Callable[..., NatsServer]
) -> None:
    users = 'users = [{user: a, password: b, permissions: {publish: {deny: ["out.secret"]}}}]'
    server = nats_server(config=f"authorization {{ {users} }}")
    bench = EgressBench(tmp_path, server)
    bench.url = server.url.replace("nats://", "nats://a:b@")
    try:
        bench.create("orders")
        bench.append("orders", records(3, key=lambda number: b"secret" if number == 1 else b"open"))
        publisher = bench.publish("orders", {"nats.publish.subject": "out.{key}"})
        bench.until(lambda: publisher.publishers[0].problem)
        assert "Permissions Violation" in bench.on_loop(lambda: publisher.state)
        assert bench.on_loop(lambda: publisher.publishers[0].confirmed) == 0
    finally:
        bench.close()


def test_tombstones_and_headers_are_published(
    bench: EgressBench, subscribe: Callable[[str], Subscriber]
) -> None:
    bench.create("orders")
    headers: list[tuple[str, bytes | None]] = [
        ("nats.subject", b"orders.x"),
        ("Plain", b"one"),
        ("not a name", b"a b"),
        ("Null", None),
        ("Nats-Msg-Id", b"theirs"),
        ("Barnabas-Hops", b"c/other"),
    ]
    bench.append("orders", [Record(0, 0, b"k", None, headers)])
    subscriber = subscribe("out")
    bench.publish("orders", {"nats.publish.subject": "out"})
    ((_, data, found),) = subscriber.wait_for(1)
    cluster, topic_id = bench.host.cluster_id, uuid_to_string(bench.partition("orders").topic_id)
    assert data == b""
    assert found == {
        "Plain": "one",
        "Kafka-Header": "Nats-Msg-Id=theirs",  # nats-py shows the last of a name
        "Kafka-Tombstone": "true",
        "Barnabas-Hops": f"c/other,{cluster}/orders",
        "Nats-Msg-Id": f"{topic_id}/0/0",
    }


def jetstream_to(subject: str) -> dict[str, str]:
    return {"nats.publish.subject": subject, "nats.publish.jetstream": "true"}


@pytest.mark.every_nats_server
def test_a_full_stream_gets_all_records_later(bench: EgressBench, server: NatsServer) -> None:
    add_stream(server, "S", "out", max_msgs=10, discard="new")
    bench.create("orders")
    bench.append("orders", records(25))
    publisher = bench.publish("orders", jetstream_to("out"))
    published: list[bytes] = []
    for end in (10, 20, 25):
        bench.until(lambda end=end: publisher.publishers[0].confirmed == end)  # type: ignore[misc]
        if end < 25:
            bench.until(lambda: "maximum messages exceeded" in publisher.state)
        published += [data for _, data, _ in stored(server, "S")]
        in_jetstream(server, lambda _, js: js.purge_stream("S"))
    assert published == [b"v%d" % number for number in range(25)]


def test_only_a_streams_answer_is_an_acknowledgement(bench: EgressBench, server: NatsServer) -> None:
    bench.create("orders")
    bench.append("orders", records(3))

    async def answer(client: Any, _jetstream: Any) -> str:
        async def respond(message: Any) -> None:
            await message.respond(b"thanks")

        await client.subscribe("out", cb=respond)
        await client.flush()  # lets PING overtake what waits:
        await client.flush()  # ... so once more
        publisher = bench.publish("orders", jetstream_to("out"))
        await asyncio.to_thread(bench.until, lambda: publisher.publishers[0].problem)
        assert bench.on_loop(lambda: publisher.publishers[0].confirmed) == 0
        return bench.on_loop(lambda: publisher.state)

    assert "the answer is not that of a stream: b'thanks'" in in_jetstream(server, answer)


def test_silence_is_no_acknowledgement(
    bench: EgressBench,
    subscribe: Callable[[str], Subscriber],
    monkeypatch: pytest.MonkeyPatch,
    server: NatsServer,
) -> None:
    monkeypatch.setattr("barnabas.nats.egress.partition_publisher.ACK_TIMEOUT_S", 0.5)
    bench.create("orders")
    bench.append("orders", records(3))
    listener = subscribe("out")  # a subscriber, so there is no 503
    publisher = bench.publish("orders", jetstream_to("out"))
    bench.until(lambda: publisher.publishers[0].problem)
    assert "no acknowledgement of orders-0, offset 0" in bench.on_loop(lambda: publisher.state)
    assert bench.on_loop(lambda: publisher.publishers[0].confirmed) == 0
    listener.wait_for(6)  # and again
    add_stream(server, "S", "out")
    bench.until(lambda: publisher.publishers[0].confirmed == 3)
    assert [data for _, data, _ in stored(server, "S")] == [b"v0", b"v1", b"v2"]


def test_a_group_with_members_is_reported(bench: EgressBench, subscribe: Callable[[str], Subscriber]) -> None:
    bench.create("orders")
    consumer = KafkaConsumer(
        "orders", bootstrap_servers=f"127.0.0.1:{bench.node.port}", group_id="nats-orders"
    )

    def is_assigned() -> bool:
        consumer.poll(2000)  # less may end between SyncGroup and its answer, which kafka-python then forgets
        return bool(consumer.assignment())

    eventually(is_assigned)
    publisher = bench.publish("orders", {"nats.publish.subject": "out"})
    bench.until(lambda: "has members of its own" in publisher.state)
    consumer.close()
    bench.until(lambda: publisher.state == "running")


def test_records_removed_by_retention_are_logged(
    bench: EgressBench, subscribe: Callable[[str], Subscriber]
) -> None:
    bench.create("orders")
    bench.append("orders", records(10))
    assert bench.commit("nats-orders", "orders", 2) == 0
    bench.on_loop(lambda: bench.partition("orders").log.increment_log_start_offset(6))
    subscriber = subscribe("out")
    publisher = bench.publish("orders", {"nats.publish.subject": "out"})
    assert [data for _, data, _ in subscriber.wait_for(4)] == [b"v6", b"v7", b"v8", b"v9"]
    assert publisher.stats.lost_estimate == 4


def test_a_position_behind_the_end_is_moved_to_the_end(
    bench: EgressBench, subscribe: Callable[[str], Subscriber]
) -> None:
    bench.create("orders")
    bench.append("orders", records(3))
    assert bench.commit("nats-orders", "orders", 1000) == 0
    subscriber = subscribe("out")
    bench.publish("orders", {"nats.publish.subject": "out"})
    bench.until(lambda: bench.bindings[0].publishers[0].is_begun)
    bench.append("orders", records(2, 3))
    assert [data for _, data, _ in subscriber.wait_for(2)] == [b"v3", b"v4"]
