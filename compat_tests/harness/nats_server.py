"""nats-server as a process beside the brokers under test; the class is also used by the broker's own tests."""

from __future__ import annotations

from typing import Protocol

from barnabas.testing.nats_server import NatsServer, NatsServerFailed, installed_executables

__all__ = ["NatsServer", "NatsServerFactory", "NatsServerFailed", "installed_executables"]


class NatsServerFactory(Protocol):
    """`nats_server(jetstream=..., config=..., ...)`, the fixture: a server of the test's own, started unless told otherwise."""

    def __call__(
        self,
        *,
        jetstream: bool = False,
        config: str = "",
        monitoring: bool = False,
        start: bool = True,
    ) -> NatsServer: ...
