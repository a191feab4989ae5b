"""Estimates of what was lost, from what a real server's monitoring says, and monitoring that says nothing of use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from barnabas.nats import monitoring as monitoring_module
from barnabas.nats.carrier import Gap
from barnabas.nats.client.connection_settings import parse_monitoring_url
from barnabas.nats.client.errors import NatsSettingsError
from barnabas.nats.monitoring import ANSWER_BYTES_MAX, HttpGet, Monitoring
from barnabas.nats.tests.client_world import ClientWorld, flushed, outcome, until
from compat_tests.harness.nats_server import NatsServer


def test_urls() -> None:
    assert parse_monitoring_url("http://h") == ("h", 8222, "")
    assert parse_monitoring_url(" http://[::1]:1/nats/ ") == ("::1", 1, "/nats")
    for text in (
        "h:1",
        "https://h",
        "http://",
        "http://h:x",
        "http://user:secret@h",
        "http://h?x",
    ):
        with pytest.raises(NatsSettingsError) as raised:
            parse_monitoring_url(text)
        assert "secret" not in str(raised.value)


def test_what_a_server_has_taken_in_a_gap(world: ClientWorld, nats_server: Callable[..., NatsServer]) -> None:
    server = nats_server(monitoring=True)

    async def run() -> None:
        client, _ = world.client(server.url)
        url = f"http://127.0.0.1:{server.monitoring_port}"
        monitoring = Monitoring(world.runtime, client, url)
        await until(lambda: client.is_connected)
        client.publish(b"before", b"")
        await flushed(client)
        monitoring.start()
        gap = Gap(0, 0, "")
        await estimate(gap)  # begins before anything is known
        assert gap.lost_at_most == -1
        gap.begin_ms = world.runtime.time_ms() + 1
        await asyncio.sleep(0.01)
        for _ in range(7):
            client.publish(b"meanwhile", b"")
        await flushed(client)
        await estimate(gap)
        assert gap.lost_at_most == 7
        server.restart(kill=True)  # counts anew
        await until(lambda: client.is_connected)
        again = Gap(gap.begin_ms, 0, "")
        await estimate(again)
        assert again.lost_at_most == -1
        server.kill()
        await estimate(again)
        monitoring.stop()

    async def estimate(gap: Gap) -> None:
        found = [each for each in world.clients[0].listeners if isinstance(each, Monitoring)]
        await outcome(lambda done: found[0].estimate(gap, done))

    world.run(run())


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "''"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "404"),
        (b"HTTP/1.1 200 OK\r\nX: 1", "200 OK"),
        (b"x" * (ANSWER_BYTES_MAX + 1), "too large"),
        (None, "nothing for"),
    ],
)
def test_answers_of_no_use(
    world: ClientWorld, monkeypatch: pytest.MonkeyPatch, answer: bytes | None, why: str
) -> None:
    monkeypatch.setattr(monitoring_module, "TIMEOUT_S", 0.2)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answer is None:
            await reader.read()
        else:
            writer.write(answer)
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        body, text = await outcome(lambda done: HttpGet(world.runtime, "127.0.0.1", port, "/varz", done))
        assert body is None
        assert why in text
        server.close()

    world.run(run())


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"in_msgs": "many"}', b'{"in_msgs": 5}', b"\xff", b'{"start": "\xff"}']
)
def test_pages_of_no_use(world: ClientWorld, body: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + body)
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client, _ = world.client("127.0.0.1:1")
        monitoring = Monitoring(world.runtime, client, f"http://127.0.0.1:{port}")
        gap = Gap(2, 3, "")
        for _ in range(2):
            await outcome(lambda done: monitoring.estimate(gap, done))
        assert gap.lost_at_most == -1
        server.close()

    world.run(run())
