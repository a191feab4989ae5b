"""The fixtures of the tests of NATS."""

from __future__ import annotations

from barnabas.nats.tests.fixtures import nats_server

__all__ = ["nats_server"]
