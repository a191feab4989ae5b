"""Metrics: what is written is what Prometheus's own parser reads, and the listener takes nothing but its one request."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from barnabas.broker.config.listeners import parse_address
from barnabas.broker.metrics import http as metrics_http
from barnabas.broker.metrics.families import COUNTER, GAUGE, Family, exposition
from barnabas.broker.metrics.http import CONNECTIONS_MAX, HEAD_BYTES_MAX, MetricsListener, make_page
from barnabas.controller.config.validators import ConfigError
from barnabas.runtime.asyncio_runtime import AsyncioRuntime

LABELS = st.dictionaries(st.sampled_from(["topic", "mode", "connection"]), st.text(max_size=20))
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
def test_what_is_written_is_read(samples: list[tuple[dict[str, str], float]], help_text: str) -> None:
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
    assert "some metrics can't be had" in caplog.text


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


class World:
    """A listener whose page is `page`."""

    def __init__(self) -> None:
        self.runtime = AsyncioRuntime()
        self.page: bytes | None = b"a 1\n"
        self.listener = MetricsListener(self.runtime, "127.0.0.1", 0, self.make_page)

    def make_page(self) -> Iterator[bytes] | None:
        return (
            None
            if self.page is None
            else (self.page[at : at + 100_000] for at in range(0, len(self.page), 100_000))
        )

    def ask(self, *pieces: bytes) -> bytes:
        """The whole answer, until the connection is closed."""
        return self.runtime.loop.run_until_complete(asyncio.wait_for(self._ask(pieces), 60))

    async def _ask(self, pieces: tuple[bytes, ...]) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.listener.port)
        try:
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.005)
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.listener.close()
    made.runtime.close()


REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n"


@pytest.mark.sockets
def test_the_page(world: World) -> None:
    head, body = world.ask(REQUEST).split(b"\r\n\r\n")
    assert body == b"a 1\n"
    assert head.split(b"\r\n") == [
        b"HTTP/1.1 200 OK",
        b"Content-Type: text/plain; version=0.0.4; charset=utf-8",
        b"Content-Length: 4",
        b"Connection: close",
    ]
    assert world.ask(*(REQUEST[index : index + 1] for index in range(len(REQUEST)))).endswith(b"a 1\n")
    assert world.ask(b"GET /metrics?name=a HTTP/1.0\n\n").endswith(b"a 1\n")
    world.page = b"b 2\n" * 1_000_000
    assert len(world.ask(REQUEST)) > 4_000_000
    assert not world.listener.connections


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
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * HEAD_BYTES_MAX, b"431 Request Header Fields Too Large"),
        (b"x" * 1_000_000, b"431 Request Header Fields Too Large"),
    ],
)
def test_what_is_no_request_for_it(world: World, request_bytes: bytes, status: bytes) -> None:
    answer = world.ask(request_bytes)
    assert answer.startswith(b"HTTP/1.1 " + status + b"\r\n") or (
        answer == b"" and len(request_bytes) > 100_000
    )
    assert world.ask(REQUEST).endswith(b"a 1\n")


@pytest.mark.sockets
def test_before_there_is_anything_to_tell(world: World) -> None:
    world.page = None
    assert world.ask(REQUEST).startswith(b"HTTP/1.1 503 ")


@pytest.mark.sockets
def test_silent_connections_keep_nobody_out(world: World) -> None:
    async def run() -> None:
        opened = [await asyncio.open_connection("127.0.0.1", world.listener.port) for _ in range(5)]
        for _, writer in opened:
            writer.write(b"GET /metrics HTTP/1.1\r\nX: ")  # and never the rest
        opened += [
            await asyncio.open_connection("127.0.0.1", world.listener.port) for _ in range(CONNECTIONS_MAX)
        ]
        for reader, _ in opened[:5]:  # the oldest have gone
            assert await _rest(reader) == b""
        assert len(world.listener.connections) == CONNECTIONS_MAX
        assert (await world._ask((REQUEST,))).endswith(b"a 1\n")
        await _closed(world, opened)

    world.runtime.loop.run_until_complete(asyncio.wait_for(run(), 60))


@pytest.mark.sockets
def test_those_who_do_not_read_their_answer_keep_nobody_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_http, "CONNECTIONS_MAX", 4)
    world.page = b"b 2\n" * 2_000_000  # more than the system's buffers take

    async def run() -> None:
        opened = [
            await asyncio.open_connection("127.0.0.1", world.listener.port, limit=1024) for _ in range(4)
        ]
        for _, writer in opened:
            writer.write(REQUEST)
        while not all(connection.is_unread() for connection in world.listener.connections):
            await asyncio.sleep(0.01)
        world.page = b"a 1\n"
        assert (await world._ask((REQUEST,))).endswith(b"a 1\n")
        await _closed(world, opened)

    world.runtime.loop.run_until_complete(asyncio.wait_for(run(), 60))


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def _closed(world: World, opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    for _, writer in opened:
        writer.transport.abort()
    while world.listener.connections:
        await asyncio.sleep(0.01)
