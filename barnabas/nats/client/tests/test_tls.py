"""TLS and mutual TLS at a real nats-server: begun behind INFO or before it, and never left out where it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from barnabas.nats.client.client import NatsClient
from barnabas.nats.client.connection_settings import Secret
from barnabas.nats.client.errors import SERVER_GONE, SETTINGS, Cause
from barnabas.nats.tests.client_world import ClientWorld, Events, flushed, into
from compat_tests.harness.eventually import eventually_async

pytestmark = pytest.mark.sockets

FILES = (
    Path(__file__).parents[4] / "broker" / "cluster" / "tests" / "tls"
)  # node.pem is for 127.0.0.1 and localhost, of the authority ca.pem
CA = str(FILES / "ca.pem")
NODE = str(FILES / "node.pem")
STRANGER = str(FILES / "stranger.pem")


def tls(more: str = "") -> str:
    return f'tls {{ cert_file: "{NODE}", key_file: "{NODE}", ca_file: "{CA}"\n {more} }}\n'


async def attempt(world: ClientWorld, *urls: str, **options: Any) -> tuple[NatsClient, Events]:
    """A client that is connected, or has failed."""
    client, events = world.client(*urls, **options)
    await eventually_async(lambda: client.is_connected or events.failures)
    return client, events


async def failure(world: ClientWorld, url: str, **options: Any) -> Cause:
    client, events = await attempt(world, url, **options)
    assert not client.is_connected
    client.stop()
    return events.failures[0]


async def passes_messages(client: NatsClient) -> None:
    got: list[tuple[bytes, bytes, bytes, bytes]] = []
    client.subscribe("tls", into(got))
    payloads = [b"x", bytes(range(256)) * 3500, b"", *(b"%d" % number for number in range(1000))]
    for payload in payloads:
        client.publish(b"tls", payload)
    await eventually_async(lambda: len(got) == len(payloads))
    assert [message[3] for message in got] == payloads


@pytest.mark.every_nats_server
def test_tls_behind_info(both_loops: ClientWorld, nats_server: Any) -> None:
    async def work() -> None:
        server = nats_server(config=tls() + "authorization { user: me, password: pw }\n", monitoring=True)
        login = {"user": "me", "password": Secret("pw")}
        client, events = await attempt(both_loops, server.url, tls_ca_file=CA, **login)
        assert client.is_connected
        await passes_messages(client)
        (connection,) = server.monitor("connz")["connections"]
        assert connection["tls_version"] in ("1.2", "1.3")
        server.restart(kill=True)
        await eventually_async(lambda: len(events.connects) == 2)
        await passes_messages(client)
        client.stop()
        # the server requires TLS: it begins although the settings do not ask for it, and its certificate is checked
        cause = await failure(both_loops, server.url, **login)
        assert cause.kind == SERVER_GONE
        assert "no TLS" in cause.detail
        assert "certificate" in cause.detail.lower()

    both_loops.run(work())


def test_a_name_that_the_certificate_does_not_have(world: ClientWorld, nats_server: Any) -> None:
    async def work() -> None:
        server = nats_server(config=tls())
        client, _ = await attempt(world, f"nats://localhost:{server.port}", tls_ca_file=CA)
        assert client.is_connected
        client.stop()
        other = NatsClient(
            world.runtime,
            msgspec.structs.replace(
                client.settings,
                servers=(msgspec.structs.replace(client.settings.servers[0], tls_name="other.example"),),
            ),
            "other",
        )
        events = Events()
        other.listeners.append(events)
        other.start()
        world.clients.append(other)
        await eventually_async(lambda: events.failures)
        assert "no TLS" in events.failures[0].detail

    world.run(work())


@pytest.mark.every_nats_server
@pytest.mark.parametrize("first", [False, True], ids=["behind INFO", "before INFO"])
def test_mutual_tls(both_loops: ClientWorld, nats_server: Any, first: bool) -> None:
    async def work() -> None:
        more = "verify: true\n" + ("handshake_first: true\n" if first else "")
        server = nats_server(config=tls(more), start=False)
        if first and server.version < (2, 10, 4):
            pytest.skip("handshake_first is new in nats-server 2.10.4")
        url = server.start().url
        ours = {"tls_ca_file": CA, "tls_first": first}
        client, _ = await attempt(both_loops, url, tls_certificate_file=NODE, tls_key_file=NODE, **ours)
        assert client.is_connected
        await passes_messages(client)
        client.stop()
        # TLS 1.3 lets the server refuse a certificate when the client believes that all is done
        for options in ({}, {"tls_certificate_file": STRANGER, "tls_key_file": STRANGER}):
            cause = await failure(both_loops, url, **ours, **options)
            assert cause.kind == SERVER_GONE

    both_loops.run(work())


@pytest.mark.every_nats_server
def test_required_tls_is_never_left_out(world: ClientWorld, nats_server: Any) -> None:
    async def work() -> None:
        plain = nats_server()
        for options in ({"tls_ca_file": CA}, {"tls_certificate_file": NODE}):
            cause = await failure(world, plain.url, **options)
            assert cause.kind == SETTINGS
            assert "does not speak TLS" in cause.detail
        cause = await failure(world, plain.url.replace("nats://", "tls://"))
        assert "does not speak TLS" in cause.detail
        # a server that leaves the choice to us
        both = nats_server(config=tls() + "allow_non_tls: true\n", monitoring=True)
        client, _ = await attempt(world, both.url, tls_ca_file=CA)
        await flushed(client)
        (connection,) = both.monitor("connz")["connections"]
        assert connection["tls_version"]
        client.stop()
        client, _ = await attempt(world, both.url)
        assert client.is_connected

    world.run(work())


def test_tls_before_info_with_a_server_that_sends_info_first(
    both_loops: ClientWorld, nats_server: Any
) -> None:
    async def work() -> None:
        cause = await failure(both_loops, nats_server(config=tls()).url, tls_ca_file=CA, tls_first=True)
        # INFO comes before or after the beginning of our handshake
        assert (cause.kind == SETTINGS and "handshake_first" in cause.detail) or "no TLS" in cause.detail

    both_loops.run(work())


def test_files_that_cannot_be_used(world: ClientWorld, nats_server: Any, tmp_path: Path) -> None:
    async def work() -> None:
        url = nats_server(config=tls()).url
        empty = tmp_path / "empty.pem"
        empty.write_text("")
        for options, name in (
            ({"tls_ca_file": str(tmp_path / "none.pem")}, "nats.tls.ca.file"),
            ({"tls_ca_file": str(empty)}, "nats.tls.ca.file"),
            ({"tls_ca_file": CA, "tls_certificate_file": str(empty)}, "nats.tls.certificate.file"),
            ({"tls_ca_file": CA, "tls_certificate_file": CA, "tls_key_file": CA}, "nats.tls.key.file"),
        ):
            cause = await failure(world, url, **options)
            assert cause.kind == SETTINGS
            assert name in cause.detail

    world.run(work())
