"""TLS between the loop and a connection: handshakes, records, pauses, and peers that mean harm.

The client is OpenSSL's own; socket, loop and dispatcher are doubles."""

from __future__ import annotations

import ssl
from collections import deque
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.network import tls_transport
from barnabas.broker.network.connection import Connection
from barnabas.broker.network.tests.doubles import Socket, Transport, World, answer, request
from barnabas.broker.network.tls_transport import (
    DECRYPT_TURN_S,
    HANDSHAKE_TIMEOUT_S,
    TURN_RECORDS,
    TlsConnections,
    TlsTransport,
)
from barnabas.broker.network.tls_writer import TURN_BYTES, TlsResponseWriter
from barnabas.broker.requests.context import Outcome
from barnabas.broker.security.caller import ANONYMOUS, Principal
from barnabas.broker.security.listener_tls import ListenerTls
from barnabas.runtime.tls_contexts import client_context
from barnabas.storage.disk.disk import FileRegion
from barnabas.testing.memory_disk import MemoryDisk
from compat_tests.harness.certificates import Authority, Certificate
from compat_tests.harness.key_updates import Sender


@cache
def authority() -> Authority:
    return Authority()


@cache
def certificate(name: str) -> Certificate:
    return authority().sign(name)


def listener_tls(**properties: str) -> ListenerTls:
    given = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": certificate("broker").key_pem(),
        "ssl.keystore.certificate.chain": certificate("broker").pem,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": authority().pem,
        **{name.replace("_", "."): text for name, text in properties.items()},
    }
    return ListenerTls(BrokerConfig.from_properties(given), "SSL", "SSL", is_between_nodes=False)


class Client:
    """OpenSSL's client over one connection of a TlsWorld."""

    def __init__(
        self, own: Path | None = None, version: ssl.TLSVersion | None = None, key_log: Path | None = None
    ) -> None:
        context = client_context()
        if key_log is not None:
            context.keylog_filename = str(key_log)
        context.load_verify_locations(cadata=authority().pem)
        if own is not None:
            context.load_cert_chain(own)
        if version is not None:
            context.minimum_version = context.maximum_version = version
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.read = bytearray()
        self.taken = 0  # of the socket's bytes

    def progress(self, socket: Socket) -> bytes:
        """Take what the broker has sent: the ciphertext to send."""
        self.incoming.write(bytes(socket.sent[self.taken :]))
        self.taken = len(socket.sent)
        try:
            self.tls.do_handshake()
            while data := self.tls.read(65536):
                self.read += data
        except ssl.SSLWantReadError:
            pass
        return self.outgoing.read()


class TlsWorld(World):
    """One TLS connection. `connection` is the protocol that the loop sees, `inner` the Kafka connection above it."""

    def __init__(self, tls: dict[str, str] | None = None, *, connections: str = "100") -> None:
        """`tls`: of the listener; `connections`: max.connections."""
        self._tls_properties = tls or {}
        super().__init__(
            **{
                "max.connections": connections,
                "listeners": "SSL://:0",
                "listener.security.protocol.map": "SSL:PLAINTEXT",
            }
        )
        self.inner: Connection = self.connection._connection  # type: ignore[attr-defined]

    def _connect(self) -> Any:
        socket = Socket()
        transport = Transport(socket)
        self.tls_connections = TlsConnections(self.shared, failed_delay_s=0.1)
        protocol = self.tls_connections.protocol(listener_tls(**self._tls_properties))
        protocol.connection_made(transport)
        return socket, transport, protocol

    def handshake(self, client: Client) -> None:
        for _ in range(4):
            self.receive_all(client.progress(self.socket))
            self.turns()

    def send(self, client: Client, plaintext: bytes) -> None:
        client.tls.write(plaintext)
        self.receive_all(client.outgoing.read())
        self.turns()

    def received(self, client: Client) -> bytes:
        client.progress(self.socket)
        return bytes(client.read)


def connected() -> tuple[TlsWorld, Client]:
    world, client = TlsWorld(), Client()
    world.handshake(client)
    return world, client


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_requests_and_answers(version: ssl.TLSVersion) -> None:
    world, client = TlsWorld(), Client(version=version)
    world.handshake(client)
    world.send(client, request(1) + request(2))
    world.send(client, request(3))
    assert world.received(client) == answer(1) + answer(2) + answer(3)
    assert (
        client.tls.version()
        == {ssl.TLSVersion.TLSv1_2: "TLSv1.2", ssl.TLSVersion.TLSv1_3: "TLSv1.3"}[version]
    )
    assert world.inner.caller.principal == ANONYMOUS
    assert world.inner.caller.listener == "SSL"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1), st.lists(st.integers(1, 60_000), min_size=1, max_size=6))
def test_bytes_arrive_in_any_pieces(pieces: list[int], sizes: list[int]) -> None:
    world, client = TlsWorld(), Client()
    waiting, at, number = bytearray(), 0, 0
    for _ in range(3 + len(sizes)):
        waiting += client.progress(world.socket)
        if client.tls.version() is not None and world.inner.caller and number < len(sizes) and not waiting:
            client.tls.write(request(number, padding=sizes[number]))
            number += 1
            waiting += client.outgoing.read()
        while waiting:
            count = pieces[at % len(pieces)] * (1 if len(waiting) < 2000 else 50)
            at += 1
            world.receive_all(bytes(waiting[:count]))
            world.turns()
            del waiting[:count]
    assert world.dispatcher.served == list(range(number))
    assert world.received(client) == b"".join(map(answer, range(number)))


def test_the_certificate_names_the_principal(tmp_path: Path) -> None:
    path = certificate("alice").write(tmp_path / "alice.pem")
    for properties, principal in (
        ({"ssl_client_auth": "none"}, ANONYMOUS),
        ({"ssl_client_auth": "requested"}, Principal("User", "CN=alice")),
        ({"ssl_client_auth": "required"}, Principal("User", "CN=alice")),
        (
            {"ssl_client_auth": "required", "ssl_principal_mapping_rules": "RULE:CN=(.*)/$1/U"},
            Principal("User", "ALICE"),
        ),
    ):
        world, client = TlsWorld(properties), Client(path)
        world.handshake(client)
        world.send(client, request(1))
        assert world.received(client) == answer(1)
        assert world.inner.caller.principal == principal
        counts = world.inner.authentications
        assert (counts.successful, counts.successful_no_reauth, counts.failed) == (1, 1, 0)


def assert_refused(
    world: TlsWorld, client: Client | None, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    """The reason is logged, and the connection closes after the delay, not before."""
    assert (world.inner.authentications.successful, world.inner.authentications.failed) == (0, 1)
    assert "Failed authentication with 127.0.0.1:1 on SSL (SSL handshake failed)" in caplog.text
    assert reason in caplog.text
    assert world.dispatcher.served == []
    assert not world.transport.is_aborted
    world.loop.advance(0.2)
    assert world.transport.is_aborted
    if client is not None:
        with pytest.raises(ssl.SSLError, match=r"(?i)alert"):
            client.progress(world.socket)


@pytest.mark.parametrize("who", ["anonymous", "stranger", "expired"])
def test_clients_without_a_good_certificate(
    who: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    own: Certificate | None = None
    if who == "stranger":
        own = Authority("other").sign("mallory")
    elif who == "expired":
        own = authority().sign("old", is_expired=True)
    client = Client(None if own is None else own.write(tmp_path / "own.pem"))
    world = TlsWorld({"ssl_client_auth": "required"})
    for _ in range(2):
        world.receive_all(client.progress(world.socket))
        world.turns()
    reason = {
        "anonymous": "PEER_DID_NOT_RETURN_A_CERTIFICATE",
        "stranger": "unable to get local issuer certificate",
        "expired": "certificate has expired",
    }[who]
    assert_refused(world, client, caplog, reason)


def test_requested_lets_those_without_a_certificate_in_and_no_wrong_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    world, client = TlsWorld({"ssl_client_auth": "requested"}), Client()
    world.handshake(client)
    world.send(client, request(1))
    assert world.received(client) == answer(1)
    other = Authority("other").sign("mallory").write(tmp_path / "other.pem")
    world, client = TlsWorld({"ssl_client_auth": "requested"}), Client(other)
    for _ in range(2):
        world.receive_all(client.progress(world.socket))
        world.turns()
    assert_refused(world, None, caplog, "unable to get local issuer certificate")


def test_no_rule_for_the_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    path = certificate("alice").write(tmp_path / "alice.pem")
    world = TlsWorld({"ssl_client_auth": "required", "ssl_principal_mapping_rules": "RULE:CN=bob/bob/"})
    client = Client(path)
    world.handshake(client)
    assert_refused(world, None, caplog, "no rule of ssl.principal.mapping.rules")


@pytest.mark.parametrize(
    "hostile",
    [request(1), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(70000), b"\x80" * 300, b"BARN" + bytes(60)],
    ids=["kafka", "http", "long", "noise", "node"],
)  # fmt: skip
def test_what_is_no_handshake(hostile: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world = TlsWorld()
    world.receive(hostile)
    world.turns()
    assert_refused(world, None, caplog, "SSL handshake failed")


def test_a_handshake_has_a_deadline_and_costs_nothing_before_its_first_byte() -> None:
    world = TlsWorld()
    assert world.connection._tls is None  # type: ignore[attr-defined]
    hello = Client().progress(world.socket)
    world.receive(hello[: len(hello) // 2])
    world.turns()
    assert world.transport.is_reading
    world.loop.advance(HANDSHAKE_TIMEOUT_S - 1)
    assert not world.transport.is_aborted
    world.loop.advance(2)
    assert world.transport.is_aborted
    assert world.inner.closed


def test_openssl_waits_for_a_whole_record_and_of_too_many_handshakes_the_oldest_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tls_transport, "HANDSHAKES_MAX", 3)
    world, client = connected()
    fellows: list[tuple[TlsTransport, Transport]] = []
    for number in range(5):
        transport = Transport(Socket())
        protocol = world.tls_connections.protocol(listener_tls())
        protocol.connection_made(transport)
        hello = Client().progress(transport.socket)
        for piece in (hello[:1], hello[1:4], hello[4:-1]):
            protocol.get_buffer(-1)[: len(piece)] = piece
            protocol.buffer_updated(len(piece))
            world.turns()
            assert protocol._tls is None
        protocol.get_buffer(-1)[:1] = hello[-1:]
        protocol.buffer_updated(1)
        world.turns()
        fellows.append((protocol, transport))
        assert [each.is_aborted for _, each in fellows] == [True] * (number - 2) + [False] * min(
            3, number + 1
        )
    world.send(client, request(1))  # the handshake of which is done
    assert world.received(client) == answer(1)


def test_handshakes_share_a_turn_with_others() -> None:
    """Each turn has one handshake here, where each takes longer than a turn's share."""
    world, client = connected()
    fellows: deque[tuple[TlsTransport, Transport]] = deque()
    handshakes = 0
    for _ in range(5):
        transport = Transport(Socket())
        protocol = world.tls_connections.protocol(listener_tls())
        protocol.connection_made(transport)
        hello = Client().progress(transport.socket)
        protocol.get_buffer(-1)[: len(hello)] = hello
        protocol.buffer_updated(len(hello))
        fellows.append((protocol, transport))
    real = TlsTransport._is_handshake_done

    def slow(self: TlsTransport) -> bool:
        nonlocal handshakes
        handshakes += 1
        world.loop.moment += 0.003
        return real(self)

    TlsTransport._is_handshake_done = slow  # type: ignore[method-assign]
    try:
        for turn in range(1, 6):
            world.loop.soon.popleft()()
            assert handshakes == turn
            client.tls.write(request(turn))
            data = client.outgoing.read()
            world.connection.get_buffer(-1)[: len(data)] = data
            world.connection.buffer_updated(len(data))
            assert world.dispatcher.served[-1] == turn  # in between
    finally:
        TlsTransport._is_handshake_done = real  # type: ignore[method-assign]
    assert all(transport.socket.sent for _, transport in fellows)


def test_records_of_one_byte_are_decrypted_over_several_turns() -> None:
    world, client = connected()
    frames = b"".join(request(number, padding=100) for number in range(12))
    for byte in frames:
        client.tls.write(bytes([byte]))
    data = client.outgoing.read()
    world.receive(data)
    assert len(world.dispatcher.served) < 12  # the rest in later turns
    assert not world.transport.is_reading
    turns = world.turns()
    assert world.dispatcher.served == list(range(12))
    assert len(turns) >= len(frames) // TURN_RECORDS - 1
    assert world.transport.is_reading
    assert world.received(client) == b"".join(map(answer, range(12)))


def test_what_is_left_when_reading_pauses_is_decrypted_when_it_resumes() -> None:
    """No event of the socket comes for it."""
    world, client = connected()
    world.dispatcher.handlers[0] = lambda _connection: Outcome.PENDING
    frames = b"".join(request(number, padding=5000) for number in range(100))
    client.tls.write(frames)
    world.receive(client.outgoing.read())
    rest = world.unread
    assert rest or world.connection._undecrypted  # type: ignore[attr-defined]
    assert not world.transport.is_reading
    world.inner.complete(0, None)  # type: ignore[arg-type]  # a context is a number here
    world.turns()
    world.receive_all(rest)
    world.turns()
    assert world.dispatcher.served == list(range(100))
    assert world.received(client) == b"".join(map(answer, range(100)))


def test_a_large_request_is_served_and_its_buffer_returned() -> None:
    world, client = connected()
    world.send(client, request(1, padding=3_000_000))
    assert world.received(client) == answer(1)
    world.send(client, request(2))
    assert world.received(client) == answer(1) + answer(2)


def test_a_slow_client_is_served_when_it_reads() -> None:
    world, client = connected()
    sent_before = len(world.socket.sent)
    large = answer(1) + bytes(500_000)
    world.dispatcher.handlers[1] = lambda _connection: large
    world.socket.room = 1000
    world.send(client, request(1))
    writer = world.inner._writer
    assert isinstance(writer, TlsResponseWriter)
    assert writer.waiting
    held = sum(
        len(part) for part in writer.waiting if type(part) is not memoryview and type(part) is not bytes
    )
    assert held < 70_000  # ciphertext of one slice
    client.tls.write(request(2))
    world.receive(client.outgoing.read())
    assert world.dispatcher.served == [1]
    while writer.waiting:
        world.drain(50_000)
    world.turns()
    assert world.dispatcher.served == [1, 2]
    world.drain()
    assert world.received(client) == large + answer(2)
    assert len(world.socket.sent) > sent_before + len(large)


def test_regions_of_files_are_encrypted() -> None:
    world, client = connected()
    disk = MemoryDisk()
    disk.make_directory("/d", parents=True)
    file = disk.open("/d/log", create=True, writable=True)
    content = bytes(range(256)) * 2000
    file.pwrite(content, 0)
    small, middle, large = (
        FileRegion(file, 10, 100),
        FileRegion(file, 1000, 60_000),
        FileRegion(file, 0, 500_000),
    )
    parts: list[Any] = [b"head", small, b"then", middle, b"", large, b"tail", b"x" * 70_000]
    world.dispatcher.handlers[1] = lambda _connection: list(parts)
    world.send(client, request(1))
    world.drain()
    expected = b"".join(
        content[part.position : part.position + part.length] if isinstance(part, FileRegion) else part
        for part in parts
    )
    assert world.received(client) == expected
    world.dispatcher.handlers[2] = lambda _connection: list(parts)
    world.socket.room = 30_000
    world.send(client, request(2))
    while world.inner._writer.waiting:
        world.drain(30_000)
    assert world.received(client) == expected * 2


def test_a_turn_encrypts_a_bounded_part_of_a_large_answer() -> None:
    world, client = connected()
    before = len(world.socket.sent)
    world.dispatcher.handlers[1] = lambda _connection: [bytes(5 * TURN_BYTES), b""]
    client.tls.write(request(1))
    world.receive(client.outgoing.read())
    assert TURN_BYTES <= len(world.socket.sent) - before <= 1.2 * TURN_BYTES
    while world.inner._writer.waiting:
        world.drain()
    assert world.received(client) == bytes(5 * TURN_BYTES)


def test_close_notify_both_ways() -> None:
    world, client = connected()
    world.send(client, request(1))
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.unwrap()
    world.receive(client.outgoing.read())
    assert world.transport.is_aborted
    world, client = connected()
    world.inner.close()
    assert world.transport.is_aborted
    client.incoming.write(bytes(world.socket.sent[client.taken :]))
    assert client.tls.read(1) == b""


def test_a_request_before_close_notify_is_served() -> None:
    world, client = connected()
    client.tls.write(request(1))
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.unwrap()
    world.receive(client.outgoing.read())
    assert world.dispatcher.served == [1]
    assert world.transport.is_aborted


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 300), st.integers(0, 255))
def test_damaged_records_close_the_connection(at: int, byte: int) -> None:
    world, client = connected()
    client.tls.write(request(1, padding=280))
    data = bytearray(client.outgoing.read())
    if data[at] == byte:
        return
    data[at] = byte
    world.receive(bytes(data))
    world.turns()
    if at in (1, 2):  # the record's version, which TLS 1.3 ignores or not
        return
    assert world.dispatcher.served == []


def test_an_unadmitted_connection_may_shake_hands_and_is_not_served() -> None:
    world = TlsWorld(connections="0")
    client = Client()
    world.handshake(client)
    world.send(client, request(1))
    assert client.tls.version() == "TLSv1.3"
    assert world.dispatcher.served == []


# -- key updates


def updating(tmp_path: Path) -> tuple[TlsWorld, Client, Sender]:
    """A connected client, and what sends in its place."""
    world, client = TlsWorld(), Client(key_log=tmp_path / "keys")
    world.handshake(client)
    cipher = client.tls.cipher()
    assert cipher is not None
    return world, client, Sender(tmp_path / "keys", cipher[0])


def test_a_client_may_update_its_keys(tmp_path: Path) -> None:
    world, client, sender = updating(tmp_path)
    for number in range(20):
        world.receive_all(sender.update(asks=number % 2 == 0) + sender.data(request(number)))
    assert world.received(client) == b"".join(map(answer, range(20)))


def test_a_client_that_has_its_keys_updated_again_and_again_is_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world, _, sender = updating(tmp_path)
    world.receive(b"".join(sender.update() for _ in range(2000)))
    assert world.transport.is_aborted
    assert "TLS: the peer asks for new keys again and again" in caplog.text


def test_key_updates_share_a_turn_with_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_transport, "FEED_BYTES", 270)
    world, client, sender = updating(tmp_path)
    updates = b"".join(sender.update(asks=False) for _ in range(100))
    real = world.loop.monotonic
    clock = iter(range(1, 1000))
    monkeypatch.setattr(world.loop, "monotonic", lambda: real() + next(clock) * DECRYPT_TURN_S)
    world.receive(updates + sender.data(request(1)))
    assert not world.transport.is_reading
    turns = world.turns()
    assert len(turns) >= 10
    assert sum(turns[:-1]) == 0
    assert world.received(client) == answer(1)
    assert world.transport.is_reading
