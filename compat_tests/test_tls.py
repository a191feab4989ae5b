"""Clients over TLS, with and without certificates of their own."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer

from barnabas.broker.security.certificates import alternative_names
from barnabas.testing.ports import free_port
from compat_tests.bench import prepared
from compat_tests.harness.broker import Broker
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import BrokerFactory, UniqueName
from compat_tests.harness.java_tools import JavaTools, ToolFailed
from compat_tests.harness.key_updates import Sender
from compat_tests.harness.raw import RawConnection, request
from compat_tests.harness.tls_files import TlsFiles

LARGE = bytes(range(256)) * 3000  # 768 KB: many records of TLS
COUNT = 200


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


class Secured:
    """A broker with a plaintext listener, one with TLS, and one that requires certificates."""

    def __init__(self, make: BrokerFactory, files: TlsFiles) -> None:
        self.files = files
        ports = [free_port() for _ in range(3)]
        names = ("PLAINTEXT", "SSL", "MUTUAL")
        self.broker: Broker = make(
            {
                "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)),
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,MUTUAL:SSL,CONTROLLER:PLAINTEXT",
                "listener.name.mutual.ssl.client.auth": "required",
                **files.properties(),
            }
        )  # fmt: skip
        self.plaintext, self.tls, self.mutual = (f"127.0.0.1:{port}" for port in ports)

    def where(self, name: str | None) -> str:
        return self.tls if name is None else self.mutual


@pytest.fixture(scope="module")
def shared(module_broker: BrokerFactory, files: TlsFiles) -> Secured:
    return Secured(module_broker, files)


@pytest.fixture
def secured(shared: Secured) -> Iterator[Secured]:
    """The broker that tests share."""
    yield shared
    assert "Traceback" not in shared.broker.log_text()


@pytest.fixture
def own(fresh_broker: BrokerFactory, files: TlsFiles) -> Iterator[Secured]:
    """A broker of the test's own, whose memory and settings no other test changes."""
    made = Secured(fresh_broker, files)
    yield made
    assert "Traceback" not in made.broker.log_text()


WHO = pytest.mark.parametrize("who", [None, "alice"], ids=["tls", "mutual"])


@WHO
def test_kafka_python(secured: Secured, files: TlsFiles, unique: UniqueName, who: str | None) -> None:
    topic = unique("topic")
    where = {"bootstrap_servers": secured.where(who), **files.kafka_python(who)}
    producer = KafkaProducer(**where, max_request_size=2_000_000)
    sent = [producer.send(topic, LARGE if number == 50 else b"%d" % number) for number in range(COUNT)]
    assert [each.get(30).offset for each in sent] == list(range(COUNT))
    producer.close()
    consumer = KafkaConsumer(topic, **where, auto_offset_reset="earliest", consumer_timeout_ms=30_000)
    records = [next(consumer) for _ in range(COUNT)]
    consumer.close()
    assert [record.value for record in records] == [
        LARGE if number == 50 else b"%d" % number for number in range(COUNT)
    ]


@WHO
def test_confluent(secured: Secured, files: TlsFiles, unique: UniqueName, who: str | None) -> None:
    topic = unique("topic")
    where = {"bootstrap.servers": secured.where(who), **files.confluent(who)}
    producer = Producer({**where, "message.max.bytes": 2_000_000})
    for number in range(COUNT):
        producer.produce(topic, LARGE if number == 50 else b"%d" % number)
    assert producer.flush(30) == 0
    consumer = Consumer({**where, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[bytes | None] = []
    while len(values) < COUNT:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        values.append(message.value())
    consumer.close()
    assert values == [LARGE if number == 50 else b"%d" % number for number in range(COUNT)]


@WHO
def test_aiokafka(secured: Secured, files: TlsFiles, unique: UniqueName, who: str | None) -> None:
    topic = unique("topic")

    async def scenario() -> list[bytes | None]:
        where = {"bootstrap_servers": secured.where(who), **files.aiokafka(who)}
        producer = AIOKafkaProducer(**where, max_request_size=2_000_000)
        await producer.start()
        for number in range(20):
            await producer.send_and_wait(topic, LARGE if number == 5 else b"%d" % number)
        await producer.stop()
        consumer = AIOKafkaConsumer(topic, **where, auto_offset_reset="earliest")
        await consumer.start()
        values = [(await asyncio.wait_for(consumer.getone(), 30)).value for _ in range(20)]
        await consumer.stop()
        return values

    assert asyncio.run(scenario()) == [LARGE if number == 5 else b"%d" % number for number in range(20)]


@WHO
def test_kafkas_tools(
    secured: Secured, files: TlsFiles, java_tools: JavaTools, unique: UniqueName, who: str | None
) -> None:
    topic = unique("topic")
    where = ["--bootstrap-server", secured.where(who)]
    config = ["--command-config", str(files.java(who))]
    java_tools.run("kafka-topics", *where, *config, "--create", "--topic", topic, "--partitions", "3")
    java_tools.run("kafka-console-producer", *where, *config, "--topic", topic, stdin="one\ntwo\nthree\n")
    read = java_tools.run(
        "kafka-console-consumer", *where, *config, "--topic", topic, "--from-beginning", "--max-messages", "3",
        "--timeout-ms", "30000",
    )  # fmt: skip
    assert sorted(read.stdout.split()) == ["one", "three", "two"]
    assert topic in java_tools.run("kafka-topics", *where, *config, "--list").stdout.split()


def test_clients_that_are_refused(
    secured: Secured, files: TlsFiles, java_tools: JavaTools, unique: UniqueName, tmp_path: Path
) -> None:
    """No certificate where one is required; one of another authority; plaintext; a server that is not trusted."""
    where = ["--bootstrap-server", secured.mutual]
    with pytest.raises(ToolFailed, match=r"SslAuthenticationException|SSL handshake failed"):
        java_tools.run("kafka-topics", *where, "--command-config", str(files.java()), "--list", timeout=60)
    other = tmp_path / "other"
    other.mkdir()
    strangers = TlsFiles(other)
    settings = {**files.confluent(), "ssl.certificate.location": str(strangers.client("mallory")),
                "ssl.key.location": str(strangers.client("mallory"))}  # fmt: skip
    for bootstrap, own in (
        (secured.mutual, files.confluent()),
        (secured.mutual, settings),
        (secured.tls, {}),
        (secured.tls, strangers.confluent()),
    ):
        errors: list[KafkaError] = []
        given: dict[str, Any] = {"bootstrap.servers": bootstrap, "error_cb": errors.append, **own}
        admin = AdminClient(given)
        deadline = time.monotonic() + 30
        while not errors and time.monotonic() < deadline:
            admin.poll(0.1)
        assert errors
        with pytest.raises(Exception, match=r"(?i)transport|timed out"):
            admin.list_topics(timeout=0.2)
    # the others are served
    admin = AdminClient({"bootstrap.servers": secured.plaintext})
    assert unique("topic") not in admin.list_topics(timeout=10).topics


@pytest.mark.barnabas_only
def test_a_flood_of_handshakes_leaves_others_served(own: Secured, files: TlsFiles) -> None:
    """Connections that each begin a handshake and say no more; a client beside them is answered in time."""
    context = files.aiokafka()["ssl_context"]
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    hello = outgoing.read()
    port = int(own.tls.rpartition(":")[2])
    producer = Producer({"bootstrap.servers": own.plaintext, "linger.ms": 0})
    producer.produce("t", b"first")
    assert producer.flush(30) == 0
    flood: list[socket.socket] = []
    try:
        slowest = 0.0
        for _ in range(20):
            for _ in range(20):
                one = socket.create_connection(("127.0.0.1", port))
                one.sendall(hello if len(flood) % 2 else hello[:20])
                flood.append(one)
            began = time.monotonic()
            producer.produce("t", b"x")
            assert producer.flush(30) == 0
            slowest = max(slowest, time.monotonic() - began)
    finally:
        for one in flood:
            one.close()
    assert slowest < 2, slowest


def hostile_client(address: str, files: TlsFiles, key_log: Path) -> tuple[socket.socket, Sender]:
    """A connection after its handshake, and what encrypts for it."""
    context = files.aiokafka()["ssl_context"]
    context.keylog_filename = str(key_log)
    connection = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=30)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    is_done = False
    while not is_done:
        try:
            tls.do_handshake()
            is_done = True
        except ssl.SSLWantReadError:
            connection.sendall(outgoing.read())
            incoming.write(connection.recv(65536))
    connection.sendall(outgoing.read())
    return connection, Sender(key_log, tls.cipher()[0])


@pytest.mark.barnabas_only
def test_a_flood_of_key_updates_leaves_others_served(
    secured: Secured, files: TlsFiles, tmp_path: Path
) -> None:
    """20,000 in one piece, which took 0.4 s in one turn of the loop."""
    flooding, sender = hostile_client(secured.tls, files, tmp_path / "keys")
    updates = b"".join(sender.update() for _ in range(20_000))
    before = secured.broker.resident_bytes()
    with RawConnection(secured.plaintext) as beside, flooding:
        try:
            flooding.sendall(updates)
        except OSError:  # it is closed already
            pass
        beside.ask(request(18, 0, b""))
        eventually(lambda: "the peer asks for new keys again and again" in secured.broker.log_text())
    assert secured.broker.resident_bytes() - before < 16 << 20


def shown_names(address: str) -> set[str]:
    """The alternative names of the certificate that a listener shows."""
    host, port = address.split(":")
    certificate = ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((host, int(port))))
    return set(alternative_names(certificate))


def test_a_key_store_is_renewed_while_clients_are_connected(
    own: Secured, files: TlsFiles, java_tools: JavaTools, tmp_path: Path
) -> None:
    """With kafka-configs and the same path: the file is read again. One that does not fit is refused, with Kafka's reason."""
    producer = Producer({"bootstrap.servers": own.tls, **files.confluent()})
    producer.produce("topic", b"before")
    assert producer.flush(30) == 0
    path = tmp_path / "own.pem"
    files.authority.sign("broker", ["localhost", "127.0.0.1", "renewed.example"]).write(path)
    where = [
        "--bootstrap-server",
        own.plaintext,
        "--entity-type",
        "brokers",
        "--entity-name",
        "1",
        "--alter",
    ]

    def alter(name: str, value: str) -> None:
        java_tools.run("kafka-configs", *where, "--add-config", f"listener.name.ssl.{name}={value}")

    alter("ssl.keystore.location", str(path))
    eventually(lambda: "DNS:renewed.example" in shown_names(own.tls), 30)
    assert "DNS:renewed.example" not in shown_names(own.mutual)
    files.authority.sign("broker", ["localhost", "127.0.0.1", "renewed.example", "again.example"]).write(path)
    alter("ssl.keystore.location", str(path))
    eventually(lambda: "DNS:again.example" in shown_names(own.tls), 30)
    other = files.authority.sign("another").write(tmp_path / "another.pem")
    with pytest.raises(ToolFailed, match=r"Keystore DistinguishedName does not match"):
        alter("ssl.keystore.location", str(other))
    with pytest.raises(
        ToolFailed, match=r"These security configs can be dynamically updated only per-listener"
    ):
        java_tools.run("kafka-configs", *where, "--add-config", f"ssl.keystore.location={path}")
    producer.produce("topic", b"after")
    assert producer.flush(30) == 0
    assert "DNS:again.example" in shown_names(own.tls)


@pytest.mark.barnabas_only
def test_memory_of_idle_connections_and_of_begun_handshakes(own: Secured, files: TlsFiles) -> None:
    """After a request of 20 KB and an answer of 700 KB an idle connection holds a few slices, and one of which a part of a
    ClientHello has come next to nothing."""
    port = int(own.tls.rpartition(":")[2])
    producer = Producer({"bootstrap.servers": own.plaintext, "message.max.bytes": 2_000_000})
    producer.produce("topic", LARGE)
    assert producer.flush(30) == 0
    fetch = prepared.fetch("topic", 0, 1_000_000)
    context = files.aiokafka()["ssl_context"]

    def connect() -> socket.socket:
        raw = socket.create_connection(("127.0.0.1", port))
        one: socket.socket = context.wrap_socket(raw, server_hostname="localhost")
        one.sendall(prepared.metadata("x" * 20_000))  # too long a name, which is answered
        _receive(one)
        one.sendall(fetch)
        assert _receive(one) > len(LARGE)
        return one

    def begin() -> socket.socket:
        one = socket.create_connection(("127.0.0.1", port))
        one.sendall(b"\x16\x03\x01\x02\x00\x01")
        return one

    kept = [connect() for _ in range(20)]
    before = own.broker.resident_bytes()
    kept += [connect() for _ in range(100)]
    assert (own.broker.resident_bytes() - before) / 100 < 100_000
    before = own.broker.resident_bytes()
    kept += [begin() for _ in range(500)]
    connect().close()  # all of them have been accepted
    assert (own.broker.resident_bytes() - before) / 500 < 10_000
    for one in kept:
        one.close()


def _receive(one: socket.socket) -> int:
    """The size of the next response, which is read whole."""
    head = b""
    while len(head) < 4:
        head += one.recv(4 - len(head))
    size = left = int.from_bytes(head, "big")
    while left:
        left -= len(one.recv(min(left, 1 << 20)))
    return size
