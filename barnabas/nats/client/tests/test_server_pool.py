"""Which server is tried next and when, and a client's attempts on a virtual clock."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.nats.client.client import NatsClient
from barnabas.nats.client.connection_settings import ServerAddress, parse_server
from barnabas.nats.client.errors import NOT_REACHED, STALE
from barnabas.nats.client.server_pool import (
    BACKOFF_MAX_S,
    FIRST_BACKOFF_S,
    ServerPool,
)
from barnabas.nats.tests.client_world import Events, into, settings
from barnabas.runtime.repeated_warnings import INTERVAL_S, REASONS_MAX
from compat_tests.virtual.runtime import VirtualRuntime

INFO = b'INFO {"server_id":"x","server_name":"x","version":"2.15.1","headers":true,"max_payload":1000}\r\n'


def pool_of(*names: str, seed: int = 1) -> ServerPool:
    return ServerPool([parse_server(name) for name in names], random.Random(seed))


@given(st.integers(1, 5), st.integers(0, 1000))
def test_each_server_once_and_then_a_pause_that_grows(count: int, seed: int) -> None:
    names = [f"h{number}:1" for number in range(count)]
    pool = pool_of(*names, seed=seed)
    for round_number in range(12):
        tried = []
        for place in range(count):
            server, delay_s = pool.next()
            tried.append(str(server))
            longest = min(BACKOFF_MAX_S, FIRST_BACKOFF_S * 2 ** (round_number - 1))
            if round_number and place == 0:
                assert longest / 2 <= delay_s <= longest
            else:
                assert delay_s == 0
            pool.failed()
        assert sorted(tried) == names
    pool.ended(lasted_s=60)
    assert pool.next()[1] == 0


def test_orders_and_pauses_differ() -> None:
    names = [f"h{number}:1" for number in range(6)]
    assert len({tuple(map(str, pool_of(*names, seed=seed).servers)) for seed in range(10)}) > 5
    pauses = set()
    for seed in range(10):
        pool = pool_of("h:1", seed=seed)
        pool.failed()
        pauses.add(pool.next()[1])
    assert len(pauses) == 10


def test_connections_that_end_at_once_are_made_again_with_pauses() -> None:
    pool = pool_of("h:1")
    for _ in range(8):
        pool.next()
        pool.ended(lasted_s=0.01)
    assert pool.next()[1] >= BACKOFF_MAX_S / 2


def test_discovered_servers() -> None:
    pool = pool_of("tls://me:pw@nats.example:1", "other:1")
    teller = next(server for server in pool.servers if server.host == "nats.example")
    pool.discovered(
        ["10.0.0.1:1", "[fe80::1]:2", "third.example:1", "nats.example:1", "no port:x", "http://h"], teller
    )
    found = {str(server): server for server in pool.servers}
    assert set(found) == {"nats.example:1", "other:1", "10.0.0.1:1", "[fe80::1]:2", "third.example:1"}
    # with the same login and TLS; a certificate is for the name that was configured, not for an address
    assert found["10.0.0.1:1"] == msgspec.structs.replace(teller, host="10.0.0.1", tls_name="nats.example")
    assert found["[fe80::1]:2"].tls_name == "nats.example"
    assert found["third.example:1"].tls_name == ""
    assert found["third.example:1"].user == "me"
    # the next ones to be tried are those that were not known
    assert {server.host for server in pool.servers[:3]} == {"10.0.0.1", "fe80::1", "third.example"}
    # servers that are not announced any more are dropped, unless they are configured
    pool.discovered(["10.0.0.1:1"], found["10.0.0.1:1"])
    assert {str(server) for server in pool.servers} == {"nats.example:1", "other:1", "10.0.0.1:1"}
    pool.discovered([f"h{number}:1" for number in range(5000)], teller)
    assert len(pool) <= 300
    pool.discovered(["h" * 60_000 + ":1"], teller)
    assert {str(server) for server in pool.servers} == {"nats.example:1", "other:1"}


class ScriptedServer:
    """Takes a connection and says what the test tells it to say."""

    def __init__(self, says: bytes = INFO, answers_pings: int = 1000) -> None:
        self.received = b""
        self.is_lost = False
        self._says = says
        self._pongs = answers_pings

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self._says)

    def data_received(self, data: bytes) -> None:
        self.received += data
        for _ in range(data.count(b"PING\r\n")):
            if self._pongs > 0:
                self._pongs -= 1
                self.transport.write(b"PONG\r\n")

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True


def a_client(runtime: VirtualRuntime, port: int, **options: Any) -> tuple[NatsClient, Events]:
    client = NatsClient(runtime, settings(f"127.0.0.1:{port}", **options), "client")
    events = Events()
    client.listeners.append(events)
    client.start()
    return client, events


def test_attempts_continue_until_there_is_a_server() -> None:
    runtime = VirtualRuntime()
    port = runtime.free_port()
    client, events = a_client(runtime, port)
    runtime.advance(3600)
    assert 3600 / BACKOFF_MAX_S <= len(events.failures) <= 3600 / BACKOFF_MAX_S * 2 + 10
    assert {cause.kind for cause in events.failures} == {NOT_REACHED}
    runtime.listen("127.0.0.1", port, ScriptedServer)
    runtime.advance(BACKOFF_MAX_S + 0.1)
    assert client.is_connected
    client.stop()
    runtime.advance(3600)
    assert len(events.connects) == 1


def test_a_repeated_failure_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    runtime = VirtualRuntime()
    ports = runtime.free_port(), runtime.free_port()
    client = NatsClient(runtime, settings(*(f"127.0.0.1:{port}" for port in ports)), "client")
    client.start()
    runtime.advance(150)
    logged = [record.getMessage() for record in caplog.records]
    assert [sum(f":{port}" in text for text in logged) for port in ports] == [3, 3]
    client.stop()
    runtime.advance(150)
    assert len(caplog.records) == len(logged)


def test_log_lines_about_a_server_are_bounded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runtime = VirtualRuntime()
    servers: list[ScriptedServer] = []

    def serve() -> ScriptedServer:
        servers.append(ScriptedServer())
        return servers[-1]

    client, events = a_client(runtime, runtime.listen("127.0.0.1", 0, serve).port)
    runtime.advance(1)
    caplog.clear()
    for number in range(900):
        servers[0].transport.write(b"-ERR 'Permissions Violation for Subscription to \"s%d\"'\r\n" % number)
    runtime.advance(1)
    assert len(events.refusals) == 900
    assert len(caplog.records) == REASONS_MAX + 1
    runtime.advance(INTERVAL_S)
    assert len(caplog.records) == REASONS_MAX + 2
    assert f"({900 - REASONS_MAX - 1} times more since)" in caplog.records[-1].getMessage()
    client.stop()


def test_a_failure_after_a_connection_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    runtime = VirtualRuntime()
    servers: list[ScriptedServer] = []

    def serve() -> ScriptedServer:
        servers.append(ScriptedServer())
        return servers[-1]

    client, events = a_client(runtime, runtime.listen("127.0.0.1", 0, serve).port)
    for connects in (1, 2, 3):
        runtime.advance(5)
        assert len(events.connects) == connects
        servers[-1].transport.close()
    runtime.advance(5)
    assert caplog.text.count("the connection has ended") == 3
    client.stop()


def test_a_flood_of_lines_is_parsed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = VirtualRuntime()
    servers: list[ScriptedServer] = []

    def accept() -> ScriptedServer:
        servers.append(ScriptedServer())
        return servers[-1]

    port = runtime.listen("127.0.0.1", 0, accept).port
    client, _ = a_client(runtime, port)
    runtime.advance(1)
    assert client.is_connected
    heard: list[int] = []
    discovered = ServerPool.discovered

    def counted(pool: ServerPool, urls: Sequence[str], teller: ServerAddress) -> None:
        heard.append(len(urls))
        discovered(pool, urls, teller)

    monkeypatch.setattr(ServerPool, "discovered", counted)
    info = msgspec.json.encode({"connect_urls": [f"h{number}:1" for number in range(256)]})
    got: list[tuple[bytes, bytes, bytes, bytes]] = []
    client.subscribe("a", into(got))
    turns: list[int] = []  # messages after each turn while lines wait
    servers[0].transport.write(
        b"".join(b"INFO %b\r\n" % info for _ in range(150)) + b"PING\r\n" * 5000 + b"MSG a 1 1\r\nx\r\n"
    )
    while not got and runtime.step():
        turns.append(len(got))
    runtime.advance(1)
    assert client.is_connected
    assert [message[3] for message in got] == [b"x"]
    assert servers[0].received.count(b"PONG\r\n") == 5000
    assert len(turns) >= 5
    # once for each turn that brought some, not once a line
    assert 1 <= len(heard) <= 5


def test_a_server_that_answers_no_pings_is_stale() -> None:
    runtime = VirtualRuntime()
    servers: list[ScriptedServer] = []

    def serve() -> ScriptedServer:
        servers.append(ScriptedServer(answers_pings=6))
        return servers[-1]

    port = runtime.listen("127.0.0.1", 0, serve).port
    client, events = a_client(runtime, port, ping_interval_s=10)
    runtime.advance(55)
    assert client.is_connected
    assert events.causes == []
    assert servers[0].received.count(b"PING\r\n") == 6  # that of the greeting among them
    runtime.advance(15)
    assert events.causes == []  # not at the first one that is missing
    runtime.advance(20)
    assert [cause.kind for cause in events.causes] == [STALE]
    runtime.advance(1)
    assert client.is_connected
    assert len(servers) == 2
    assert servers[0].is_lost


def test_a_paused_connection_is_not_stale() -> None:
    runtime = VirtualRuntime()
    port = runtime.listen("127.0.0.1", 0, ScriptedServer).port
    client, events = a_client(runtime, port, ping_interval_s=1)
    runtime.advance(0.1)
    client.pause()
    runtime.advance(30)
    assert events.causes == []
    assert events.pauses
    client.resume()
    runtime.advance(30)
    assert events.causes == []


def test_a_silent_server_times_out() -> None:
    runtime = VirtualRuntime()
    port = runtime.listen("127.0.0.1", 0, lambda: ScriptedServer(says=b"")).port
    _, events = a_client(runtime, port, connect_timeout_s=3)
    runtime.advance(2.9)
    assert events.failures == []
    runtime.advance(0.2)
    assert "has not answered for 3 s" in str(events.failures[0])


def test_the_greeting_holds_all_subscriptions() -> None:
    runtime = VirtualRuntime()
    servers: list[ScriptedServer] = []

    def serve() -> ScriptedServer:
        servers.append(ScriptedServer())
        return servers[-1]

    client = NatsClient(
        runtime, settings(f"127.0.0.1:{runtime.listen('127.0.0.1', 0, serve).port}"), 'a "name"'
    )
    got: list[bytes] = []
    client.subscribe("a.*", lambda subject, *rest: got.append(subject))
    client.subscribe("b", lambda subject, *rest: got.append(subject), queue="q")
    client.start()
    runtime.advance(0.1)
    lines = servers[0].received.split(b"\r\n")
    options = msgspec.json.decode(lines[0].removeprefix(b"CONNECT "))
    assert options["name"] == 'a "name"'
    assert (options["verbose"], options["headers"], options["no_responders"], options["echo"]) == (
        False,
        True,
        True,
        True,
    )
    assert lines[1:] == [b"SUB a.* 1", b"SUB b q 2", b"PING", b""]
    servers[0].transport.write(b"MSG a.x 1 1\r\nx\r\nMSG b 2 1\r\nx\r\n")
    runtime.advance(0.1)
    assert got == [b"a.x", b"b"]
