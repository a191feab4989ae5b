"""What the connections of a broker do for their bindings."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.nats import connections as connections_module
from barnabas.nats.connections import NatsConnections
from barnabas.nats.tests.client_world import ClientWorld, into, settings
from compat_tests.harness.eventually import eventually_async, stays_async
from compat_tests.harness.nats_server import NatsServer

pytestmark = pytest.mark.sockets


def test_a_binding_that_fails_does_not_affect_others(
    world: ClientWorld, shared_nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        connections = NatsConnections(world.runtime, {"": settings(shared_nats_server.url)}, 1, "c")
        intake = connections.intake("")
        outlet = connections.outlet("")
        assert intake is not None
        assert outlet is not None
        closed: list[int] = []
        intake.closers += [lambda: closed.append(1), lambda: 1 // 0, lambda: closed.append(3)]
        intake.client.subscribe("failing.>", into([]))
        await eventually_async(lambda: intake.client.is_connected and outlet.is_connected)
        closed.clear()
        for number in range(1, 4):
            outlet.publish(b"failing.x", b"")
            await eventually_async(lambda wanted=2 * number: len(closed) >= wanted)
        assert closed[:4] == [1, 3, 1, 3]
        connections.stop()
        await asyncio.sleep(0)

    world.run(work())
    assert len([each for each in caplog.records if each.exc_info]) == 1


def test_a_connection_without_a_binding_ends(
    world: ClientWorld, shared_nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "IDLE_S", 0.05)

    async def work() -> None:
        connections = NatsConnections(world.runtime, {"": settings(shared_nats_server.url)}, 1, "c")
        kept, ended, outlet = connections.intake(""), connections.streams(""), connections.outlet("")
        assert kept is not None
        assert ended is not None
        assert outlet is not None
        kept.closers.append(lambda: None)
        await eventually_async(lambda: kept.client.is_connected and outlet.is_connected)
        await eventually_async(lambda: [way for _, way, _ in connections.clients()] == ["in", "out"])
        assert not ended.client.is_connected
        again = connections.streams("")
        assert again is not ended
        assert again is not None
        again.closers.append(lambda: None)
        await eventually_async(lambda: again.client.is_connected)
        await stays_async(lambda: len(connections.clients()) == 3, 0.2)
        assert kept.client.is_connected
        connections.stop()
        await asyncio.sleep(0)

    world.run(work())
