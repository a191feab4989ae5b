"""The fixtures of the tests of NATS."""

from __future__ import annotations

from barnabas.nats.tests.fixtures import shared_nats_server, shared_nats_servers, world

__all__ = ["shared_nats_server", "shared_nats_servers", "world"]
