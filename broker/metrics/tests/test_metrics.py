"""Metrics: what is written is what Prometheus's own parser reads, and the listener takes nothing but its one request."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as text_string_to_openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from barnabas.broker.config.listeners import parse_address
from barnabas.broker.metrics.families import COUNTER, GAUGE, Family, exposition
from barnabas.broker.metrics.health import Health
from barnabas.broker.metrics.listener import BOUNDS, MetricsListener
from barnabas.broker.metrics.node import make_page
from barnabas.controller.config.validators import ConfigError
from barnabas.runtime.asyncio_runtime import AsyncioRuntime
from barnabas.runtime.slices import TURN_S
from compat_tests.virtual.runtime import VirtualRuntime

LABELS = st.dictionaries(st.sampled_from(["topic", "mode", "connection"]), st.text(max_size=20))
PORT = 9404
VALUES = st.one_of(st.integers(-(2**53), 2**53), st.floats(), st.booleans())


def test_one_family() -> None:
    family = Family("a_total", COUNTER, "What \\ it is\nfor")
    family.add(3, {"topic": 'a"b\\c\nd', "mode": ""})
    family.add(0.5)
    assert b"".join(exposition([family, None, Family("b", GAUGE, "empty")])).decode() == (
        "# HELP a_total What \\\\ it is\\nfor\n# TYPE a_total counter\n"
        'a_total{topic="a\\"b\\\\c\\nd",mode=""} 3\na_total 0.5\n'
    )


@pytest.mark.slow
@given(st.lists(st.tuples(LABELS, VALUES), min_size=1), st.text())
def test_the_text_format_is_read_back(samples: list[tuple[dict[str, str], float]], help_text: str) -> None:
    family = Family("a", GAUGE, help_text)
    for labels, value in samples:
        family.add(value, labels)
    (read,) = text_string_to_metric_families(b"".join(exposition([family])).decode())
    assert (read.name, read.type) == ("a", "gauge")
    assert [sample.labels for sample in read.samples] == [labels for labels, _ in samples]
    for sample, (_, value) in zip(read.samples, samples, strict=True):
        assert sample.value == value or math.isnan(value)


def test_a_source_that_fails_leaves_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def good() -> Iterator[Family]:
        family = Family("a", GAUGE, "")
        family.add(1)
        yield family

    def bad() -> Iterator[Family]:
        raise ValueError("no")

    assert b"a 1\n" in b"".join(make_page([bad, good]))
    assert "a source of metrics has failed" in caplog.text


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        (":9404", ("", 9404)),
        ("[::1]:9404", ("::1", 9404)),
        ("h:1", ("h", 1)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address("x", text) == address


@pytest.mark.parametrize("text", ["9404", "h:", "h:x", "h:70000", "http://h:1", "::1:9404", "h:-1"])
def test_wrong_addresses(text: str) -> None:
    with pytest.raises(ConfigError, match=r"barnabas\.metrics\.listener"):
        parse_address("barnabas.metrics.listener", text)


class Transport:
    """Takes what is written; the reader takes it when the test says so."""

    def __init__(self) -> None:
        self.written = b""
        self.is_closing = False
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        assert not self.is_closing
        self.written += data

    def close(self) -> None:
        self.is_closing = True

    def abort(self) -> None:
        self.is_aborted = True


class BusyRuntime(VirtualRuntime):
    """Every look at the clock takes `look_s`, so that what is done in slices takes several turns."""

    look_s = 0.0
    looked_s = 0.0

    def monotonic(self) -> float:
        self.looked_s += self.look_s
        return super().monotonic() + self.looked_s


class Client:
    """A connection to the listener."""

    def __init__(self, world: World) -> None:
        self._runtime = world.runtime
        self.transport = Transport()
        self._protocol = world.runtime.listening[PORT]()
        self._protocol.connection_made(self.transport)

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._protocol.data_received(piece)
        self._runtime.run_until_idle()

    def leave(self) -> None:
        """It has read its answer, or has gone without."""
        self._protocol.connection_lost(None)


class World:
    """A listener whose page is `page`, without sockets and in virtual time."""

    def __init__(self) -> None:
        self.runtime = BusyRuntime()
        self.page: bytes | None = b"a 1\n"
        self.health = Health(True, [])
        self.listener = MetricsListener(self.runtime, "127.0.0.1", PORT, self.make_page, lambda: self.health)

    def make_page(self, _openmetrics: bool) -> Iterator[bytes] | None:
        return (
            None
            if self.page is None
            else (self.page[at : at + 100_000] for at in range(0, len(self.page), 100_000))
        )

    def ask(self, *pieces: bytes) -> bytes:
        """The whole answer, until the connection is closed."""
        client = Client(self)
        client.send(*pieces)
        assert client.transport.is_closing
        client.leave()
        return client.transport.written


@pytest.fixture
def world() -> World:
    return World()


REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n"


@pytest.mark.sockets
def test_the_page(world: World) -> None:
    head, body = world.ask(REQUEST).split(b"\r\n\r\n")
    assert body == b"a 1\n"
    assert head.split(b"\r\n") == [
        b"HTTP/1.1 200 OK",
        b"Content-Type: text/plain; version=0.0.4; charset=utf-8",
        b"Content-Length: 4",
        b"Vary: Accept, Accept-Encoding",
        b"Connection: close",
    ]
    assert world.ask(*(REQUEST[index : index + 1] for index in range(len(REQUEST)))).endswith(b"a 1\n")
    assert world.ask(b"GET /metrics?name=a HTTP/1.0\n\n").endswith(b"a 1\n")
    world.page = b"b 2\n" * 1_000_000
    assert len(world.ask(REQUEST)) > 4_000_000
    world.runtime.advance(60)
    assert not world.listener.server.requests


def test_the_page_in_gzip(world: World) -> None:
    world.page = b"b 2\n" * 100_000
    head, body = world.ask(REQUEST[:-2] + b"Accept-Encoding: deflate, gzip\r\n\r\n").split(b"\r\n\r\n", 1)
    assert b"\r\nContent-Encoding: gzip" in head
    assert gzip.decompress(body) == world.page
    assert len(body) < 10_000


def test_openmetrics_is_served_where_it_is_accepted(world: World) -> None:
    accept = b"Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain\r\n\r\n"
    head, _ = world.ask(b"GET /metrics HTTP/1.1\r\n" + accept).split(b"\r\n\r\n")
    assert b"Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8" in head

    def source() -> Iterator[Family]:
        family = Family("a_total", COUNTER, 'What "it" is')
        family.add(3, {"topic": "t"})
        yield family

    text = b"".join(make_page([source], openmetrics=True)).decode()
    (read,) = text_string_to_openmetrics_families(text)  # type: ignore[no-untyped-call]
    assert (read.name, read.type, read.documentation) == ("a", "counter", 'What "it" is')
    assert [(sample.name, sample.labels, sample.value) for sample in read.samples] == [
        ("a_total", {"topic": "t"}, 3)
    ]


@pytest.mark.parametrize(
    ("health", "path", "status", "answer"),
    [
        (Health(True, []), "/readyz", 200, {"status": "ok", "reasons": []}),
        (Health(True, ["fenced"]), "/readyz", 503, {"status": "unavailable", "reasons": ["fenced"]}),
        (Health(True, ["fenced"]), "/startupz", 200, {"status": "ok", "reasons": ["fenced"]}),
        (Health(False, ["no"]), "/startupz", 503, {"status": "unavailable", "reasons": ["no"]}),
        (Health(False, ["no"]), "/livez", 200, {"status": "ok"}),
        (Health(True, []), "/v1/status/ready", 200, {"status": "ready"}),
        (Health(True, ["no"]), "/v1/status/ready", 503, {"status": "booting"}),
    ],
)
def test_health(world: World, health: Health, path: str, status: int, answer: dict[str, object]) -> None:
    world.health = health
    head, body = world.ask(f"GET {path} HTTP/1.1\r\n\r\n".encode()).split(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert json.loads(body) == answer


@pytest.mark.sockets
@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405 Method Not Allowed"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"GET /metrics HTTP/2\r\n\r\n", b"400 Bad Request"),
        (b"GET  /metrics HTTP/1.1\r\n\r\n", b"400 Bad Request"),
        (b"\x16\x03\x01\xff\xff\r\n\r\n", b"400 Bad Request"),
        (b"\r\n\r\n", b"400 Bad Request"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * BOUNDS.head_bytes, b"431 Request Header Fields Too Large"),
        (b"x" * 1_000_000, b"431 Request Header Fields Too Large"),
    ],
)
def test_other_requests_are_errors(world: World, request_bytes: bytes, status: bytes) -> None:
    assert world.ask(request_bytes).startswith(b"HTTP/1.1 " + status + b"\r\n")
    assert world.ask(REQUEST).endswith(b"a 1\n")


def test_before_the_first_page(world: World) -> None:
    world.page = None
    assert world.ask(REQUEST).startswith(b"HTTP/1.1 503 ")


@pytest.mark.sockets
def test_a_connection_without_a_request_times_out(world: World) -> None:
    client = Client(world)
    client.send(REQUEST[:10])
    world.runtime.advance(BOUNDS.request_s - 0.1)
    assert not client.transport.is_closing
    world.runtime.advance(0.2)
    assert client.transport.written.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert client.transport.is_closing
    client.send(REQUEST[10:])
    assert client.transport.written.count(b"HTTP/1.1") == 1


def test_an_answer_that_is_not_read_is_dropped(world: World) -> None:
    client = Client(world)
    client.send(REQUEST)
    world.runtime.advance(BOUNDS.answer_s - 0.1)
    assert not client.transport.is_aborted
    world.runtime.advance(0.2)
    assert client.transport.is_aborted


def test_a_client_that_leaves_while_its_page_is_made_gets_nothing(world: World) -> None:
    world.runtime.look_s = TURN_S
    client = Client(world)
    client._protocol.data_received(REQUEST)
    client.leave()
    world.runtime.run_until_idle()
    assert client.transport.written == b""


def test_silent_connections_do_not_block_a_scraper(world: World) -> None:
    opened = [Client(world) for _ in range(5)]
    for client in opened:
        client.send(b"GET /metrics HTTP/1.1\r\nX: ")  # and never the rest
    opened += [Client(world) for _ in range(BOUNDS.connections)]
    assert [client.transport.is_aborted for client in opened] == [True] * 5 + [False] * BOUNDS.connections
    assert len(world.listener.server.requests) == BOUNDS.connections
    assert world.ask(REQUEST).endswith(b"a 1\n")


def test_clients_that_do_not_read_do_not_block_a_scraper(world: World) -> None:
    opened = [Client(world) for _ in range(BOUNDS.connections)]
    for client in opened:
        client.send(REQUEST)
    assert world.ask(REQUEST).endswith(b"a 1\n")
    assert [client.transport.is_aborted for client in opened] == [True] + [False] * (BOUNDS.connections - 1)


def test_no_connection_is_closed_while_all_wait_for_a_page(world: World) -> None:
    world.runtime.look_s = TURN_S
    opened = [Client(world) for _ in range(BOUNDS.connections)]
    for client in opened:
        client._protocol.data_received(REQUEST)
    assert Client(world).transport.is_aborted
    world.runtime.run_until_idle()
    assert all(client.transport.written.endswith(b"a 1\n") for client in opened)


@pytest.mark.sockets
def test_over_sockets_a_page_is_read_whole() -> None:
    runtime = AsyncioRuntime()
    page = b"b 2\n" * 1_000_000
    listener = MetricsListener(runtime, "127.0.0.1", 0, lambda _: iter([page]), lambda: Health(True, []))

    async def ask() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(REQUEST)
        answer = await reader.read()
        writer.close()
        return answer

    assert runtime.loop.run_until_complete(asyncio.wait_for(ask(), 60)).partition(b"\r\n\r\n")[2] == page
    listener.close()
    runtime.close()
