"""Clients on a real loop, for tests: a listener and sinks that record their calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from barnabas.nats.client.client import ClientListener, NatsClient
from barnabas.nats.client.connection_settings import ConnectionSettings, parse_server
from barnabas.nats.client.errors import Cause
from barnabas.nats.client.protocol import ServerInfo, Sink
from barnabas.runtime.asyncio_runtime import AsyncioRuntime
from compat_tests.harness.eventually import eventually_async

T = TypeVar("T")


class Events(ClientListener):
    """A listener that records its calls, in order."""

    def __init__(self) -> None:
        self.connects: list[ServerInfo] = []
        self.causes: list[Cause] = []
        self.failures: list[Cause] = []
        self.pauses: list[float] = []
        self.refusals: list[str] = []
        self.names: list[str] = []

    def connected(self, info: ServerInfo) -> None:
        self.names.append("connected")
        self.connects.append(info)

    def disconnected(self, cause: Cause) -> None:
        self.names.append("disconnected")
        self.causes.append(cause)

    def unreachable(self, cause: Cause) -> None:
        self.failures.append(cause)

    def slow(self, paused_s: float) -> None:
        self.pauses.append(paused_s)

    def refused(self, text: str) -> None:
        self.refusals.append(text)

    def drained(self) -> None:
        self.names.append("drained")


def settings(*urls: str, **options: Any) -> ConnectionSettings:
    return ConnectionSettings(servers=tuple(parse_server(url) for url in urls), **options)


class ClientWorld:
    """A runtime and the clients made on it."""

    def __init__(self, runtime: AsyncioRuntime) -> None:
        self.runtime = runtime
        self.clients: list[NatsClient] = []

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = 120) -> T:
        return self.runtime.loop.run_until_complete(asyncio.wait_for(work, timeout_s))

    def client(
        self, *urls: str, on_read: Callable[[], object] = lambda: None, **options: Any
    ) -> tuple[NatsClient, Events]:
        """A client that is started."""
        name = f"client-{len(self.clients)}"
        client = NatsClient(self.runtime, settings(*urls, **options), name, on_read)
        events = Events()
        client.listeners.append(events)
        self.clients.append(client)
        client.start()
        return client, events

    async def connected(self, *urls: str, **options: Any) -> tuple[NatsClient, Events]:
        client, events = self.client(*urls, **options)
        await eventually_async(lambda: client.is_connected)
        return client, events

    def close(self) -> None:
        for client in self.clients:
            client.stop()
        self.run(asyncio.sleep(0.01))  # transports that are closed go in the turns that follow
        self.runtime.close()


async def flushed(client: NatsClient) -> None:
    """Waits until the server has processed all that was sent."""
    await outcome(client.flush)


async def settled(theirs: Any) -> None:
    """Until the server knows what nats-py has subscribed to: its flush lets the first PING overtake what waits."""
    await theirs.flush()
    await theirs.flush()


async def outcome(call: Callable[[Callable[..., object]], object]) -> tuple[Any, ...]:
    """What `call(done)` gives to `done`."""
    future: asyncio.Future[tuple[Any, ...]] = asyncio.get_running_loop().create_future()
    call(lambda *result: future.set_result(result))
    return await asyncio.wait_for(future, 60)


def into(messages: list[tuple[bytes, bytes, bytes, bytes]]) -> Sink:
    """A sink that fills a list."""
    return lambda subject, reply, header_block, payload: messages.append(
        (subject, reply, header_block, payload)
    )
