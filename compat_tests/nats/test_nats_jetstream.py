"""Messages that a stream holds, in a topic exactly once and in their order, whatever goes down meanwhile."""

from __future__ import annotations

import threading
import time

import pytest

from compat_tests.harness.broker import Broker
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.nats_server import NatsServer, NatsServerFactory
from compat_tests.nats.bound_topics import bind
from compat_tests.nats.streams import Streams, check_exactly, numbered, read_all

pytestmark = pytest.mark.barnabas_only


@pytest.fixture
def server(nats_server: NatsServerFactory) -> NatsServer:
    return nats_server(jetstream=True)


@pytest.fixture
def broker(fresh_broker: BrokerFactory, server: NatsServer) -> Broker:
    return fresh_broker({"nats.servers": server.url, "offsets.topic.num.partitions": "1"})


def test_what_a_stream_holds_and_what_comes_is_in_the_topic(broker: Broker, server: NatsServer) -> None:
    before, after = numbered(0, 3000), numbered(3000, 2000)
    with Streams(server) as streams:
        streams.add("ORDERS", "orders.>")
        streams.publish(before)
        bind(broker, "orders", {"nats.subjects": "orders.>", "nats.mode": "jetstream"}, partitions=4)
        streams.publish(after)
        stored = streams.stored_times("ORDERS", [1, 5000])
    found = read_all(broker, "orders", 5000)
    check_exactly(found, before + after)
    assert {message.partition() for message in found} == {0, 1, 2, 3}
    for message in found:
        headers = dict(message.headers())
        assert message.key() == headers["nats.subject"]
        assert headers["nats.stream"] == b"ORDERS"
        assert message.timestamp()[1] == int(headers["nats.timestamp"]) // 1_000_000
    times = {int(dict(m.headers())["nats.seq"]): int(dict(m.headers())["nats.timestamp"]) for m in found}
    assert [times[1], times[5000]] == stored


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_a_server_that_goes_and_comes_back(broker: Broker, server: NatsServer, kill: bool) -> None:
    published = numbered(0, 2000)
    with Streams(server) as streams:
        streams.add("ORDERS", "orders.>")
    bind(broker, "orders", {"nats.subjects": "orders.>", "nats.mode": "jetstream"}, partitions=2)
    with Streams(server) as streams:
        streams.publish(published)
    for _ in range(3):
        server.restart(kill=kill)
        more = numbered(len(published), 2000)
        with Streams(server) as streams:
            streams.publish(more)
        published += more
    check_exactly(read_all(broker, "orders", len(published)), published)


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_a_broker_that_goes_and_comes_back_while_messages_come(
    broker: Broker, server: NatsServer, kill: bool
) -> None:
    published: list[tuple[str, bytes]] = []
    with Streams(server) as streams:
        streams.add("ORDERS", "orders.>")
        bind(broker, "orders", {"nats.subjects": "orders.>", "nats.mode": "jetstream"}, partitions=4)
        is_over = threading.Event()

        def publish() -> None:
            while not is_over.is_set():
                more = numbered(len(published), 500)
                streams.publish(more)
                published.extend(more)

        thread = threading.Thread(target=publish)
        thread.start()
        for _ in range(3):
            time.sleep(0.5)
            if kill:
                broker.kill()
            else:
                broker.stop()
            broker.start()
        is_over.set()
        thread.join()
    found = read_all(broker, "orders", len(published))
    check_exactly(found, published)
