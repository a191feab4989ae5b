"""Fixtures: nats-servers, each a process of its own, killed when the test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.nats.tests.client_world import ClientWorld
from barnabas.runtime.asyncio_runtime import AsyncioRuntime
from compat_tests.harness.nats_server import NatsServer


@pytest.fixture
def nats_server(
    tmp_path_factory: pytest.TempPathFactory, nats_executable: Path
) -> Iterator[Callable[..., NatsServer]]:
    """`nats_server(jetstream=False, config="", monitoring=False, start=True)` makes a server."""
    made: list[NatsServer] = []

    def make(*, start: bool = True, **options: Any) -> NatsServer:
        server = NatsServer(tmp_path_factory.mktemp("nats"), executable=nats_executable, **options)
        made.append(server)
        return server.start() if start else server

    yield make
    for server in made:
        server.kill()


@pytest.fixture(scope="session")
def shared_nats_servers(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[Path], NatsServer]]:
    """`shared_nats_servers(executable)` is the one for all tests that neither stop it nor mind others' subjects."""
    made: dict[Path, NatsServer] = {}

    def shared(executable: Path) -> NatsServer:
        if executable not in made:
            directory = tmp_path_factory.mktemp("nats")
            made[executable] = NatsServer(directory, executable=executable, jetstream=True, monitoring=True)
            made[executable].start()
        return made[executable]

    yield shared
    for server in made.values():
        server.kill()


@pytest.fixture
def shared_nats_server(
    shared_nats_servers: Callable[[Path], NatsServer], nats_executable: Path
) -> NatsServer:
    """One for tests that neither stop it nor mind others' subjects; with JetStream and monitoring."""
    return shared_nats_servers(nats_executable)


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def both_loops(request: pytest.FixtureRequest) -> Iterator[ClientWorld]:
    """A world of clients, on uvloop and on asyncio's own loop."""
    world = ClientWorld(AsyncioRuntime(prefer_uvloop=request.param))
    yield world
    world.close()


@pytest.fixture
def world() -> Iterator[ClientWorld]:
    """A world of clients."""
    world = ClientWorld(AsyncioRuntime())
    yield world
    world.close()
