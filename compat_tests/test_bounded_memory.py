"""Clients that do not read their answers, do not finish their requests or stay idle: the broker's memory stays bounded,
and other clients are served."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

from compat_tests.harness import raw
from compat_tests.harness.broker import Broker
from compat_tests.harness.eventually import eventually, stays
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.raw import RawConnection, good_batch, request
from compat_tests.harness.topics import create_topic

pytestmark = pytest.mark.barnabas_only  # a JVM takes its whole heap in any case

MB = 1 << 20
QUEUED_MAX = 16 * MB
TOPIC = "bounded"
METADATA, FETCH = 3, 1


@pytest.fixture
def broker(fresh_broker: BrokerFactory) -> Iterator[Broker]:
    broker = fresh_broker({"queued.max.request.bytes": str(QUEUED_MAX)})
    create_topic(broker.bootstrap, TOPIC)
    with RawConnection(broker.bootstrap) as connection:
        for number in range(4):  # the broker allocates its usual memory before the measurement
            value = bytes([number]) * 900_000
            assert raw.produce(connection, TOPIC, good_batch(value)) == (0, number)
    yield broker
    serves(broker)


def serves(broker: Broker) -> None:
    """Send small and large requests and check the answers."""
    with RawConnection(broker.bootstrap) as connection:
        error, offset = raw.produce(connection, TOPIC, good_batch(b"x" * 900_000))
        assert error == 0
        assert raw.fetch(connection, TOPIC, offset)[0] == 0


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def connect(broker: Broker, count: int) -> list[socket.socket]:
    host, port = broker.bootstrap.rsplit(":", 1)
    return [socket.create_connection((host, int(port)), timeout=30) for _ in range(count)]


def push(client: socket.socket, data: bytes, limit: int) -> int:
    """Send `data` again and again until the broker takes no more; at most `limit` bytes."""
    client.settimeout(0.2)
    sent = 0
    try:
        while sent < limit:
            sent += client.send(data)
    except TimeoutError:
        pass
    return sent


def close(clients: list[socket.socket]) -> None:
    for client in clients:
        client.close()


def test_a_client_that_asks_and_never_reads(broker: Broker) -> None:
    """Each request is answered with some 60 KB, and a read of the socket holds thousands of them."""
    with RawConnection(broker.bootstrap) as connection:
        names = raw.array([raw.string(f"made-{number:03d}-{'x' * 150}") for number in range(300)])
        connection.ask(request(METADATA, 4, names + b"\x01"))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    eventually(lambda: sum(name.startswith("made-") for name in admin.list_topics(timeout=30).topics) == 300)
    before = broker.resident_bytes()
    clients = connect(broker, 10)
    everything = framed(request(METADATA, 4, b"\xff\xff\xff\xff\x00"))
    for client in clients:
        assert push(client, everything * 4000, 20 * MB) < 20 * MB
    assert broker.resident_bytes() - before < 32 * MB
    serves(broker)
    close(clients)


def test_a_client_that_fetches_and_never_reads(broker: Broker) -> None:
    before = broker.resident_bytes()
    clients = connect(broker, 10)
    partition = raw.array([struct.pack(">iqi", 0, 0, MB)])
    body = struct.pack(">iiiib", -1, 500, 1, 50 * MB, 0) + raw.array([raw.string(TOPIC) + partition])
    for client in clients:
        assert push(client, framed(request(FETCH, 4, body)) * 1000, 20 * MB) < 20 * MB
    assert broker.resident_bytes() - before < 32 * MB
    serves(broker)
    close(clients)


def test_clients_that_never_end_their_large_requests(broker: Broker) -> None:
    """Clients send 200 MB, of which the broker may hold 16 MB; small requests of other clients are not delayed."""
    before = broker.resident_bytes()
    clients = connect(broker, 200)
    for client in clients:
        push(client, struct.pack(">i", MB) + b"\0" * (MB - 100_000), MB // 2)
    stays(lambda: broker.resident_bytes() - before < QUEUED_MAX + 40 * MB, 0.5)
    with RawConnection(broker.bootstrap) as connection:
        assert raw.produce(connection, TOPIC, good_batch(b"small")) == (0, 4)
    close(clients)  # frees memory for other large requests
    serves(broker)


def test_connections_that_stay_open_after_large_requests(broker: Broker) -> None:
    before = broker.resident_bytes()
    stayed = []
    for number in range(150):
        connection = RawConnection(broker.bootstrap)
        assert raw.produce(connection, TOPIC, good_batch(bytes([number]) * 900_000)) == (0, 4 + number)
        stayed.append(connection)
    assert broker.resident_bytes() - before < 64 * MB
    serves(broker)
    for connection in stayed:
        connection.socket.close()


def test_a_request_larger_than_the_limit_is_served(fresh_broker: BrokerFactory) -> None:
    broker = fresh_broker({"queued.max.request.bytes": "1000"})
    create_topic(broker.bootstrap, TOPIC)
    serves(broker)
    clients = [RawConnection(broker.bootstrap) for _ in range(4)]
    body = raw.string(None) + struct.pack(">hi", -1, 10_000)
    for number, client in enumerate(clients):  # all at once, each alone beyond the limit
        batch = good_batch(bytes([number]) * 700_000)
        partition = struct.pack(">ii", 0, len(batch)) + batch
        data = body + raw.array([raw.string(TOPIC) + raw.array([partition])])
        frame = framed(request(0, 7, data))
        client.socket.sendall(frame[:300_000])
        clients[number].rest = frame[300_000:]  # type: ignore[attr-defined]
    for client in clients:
        client.socket.sendall(client.rest)  # type: ignore[attr-defined]
    for client in clients:
        assert client.receive()[:4] == struct.pack(">i", 7)
        client.socket.close()
    serves(broker)


def test_memory_of_idle_connections(broker: Broker) -> None:
    first = connect(broker, 100)
    before = broker.resident_bytes()
    clients = connect(broker, 2000)
    frame = framed(request(18, 0, b""))
    for client in clients:
        client.sendall(frame)
    for client in clients:
        assert client.recv(4)
    assert (broker.resident_bytes() - before) / len(clients) < 6 * 1024
    serves(broker)
    close(first + clients)
