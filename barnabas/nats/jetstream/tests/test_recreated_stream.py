"""Streams that are recreated while they are read at least once, and servers that send malformed numbers, with a
real nats-server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from unittest.mock import MagicMock

import pytest

from barnabas.nats.jetstream.at_least_once import AtLeastOnce
from barnabas.nats.remote_producer import RemoteProducer
from barnabas.nats.tests.stream_world import StreamWorld, binding
from compat_tests.harness.nats_server import NatsServer

pytestmark = pytest.mark.sockets


@pytest.fixture
def world(nats_server: Callable[..., NatsServer]) -> Iterator[StreamWorld]:
    world = StreamWorld(nats_server(jetstream=True))
    world.until(lambda: world.client.is_connected)
    yield world
    world.close()


def at_least_once(world: StreamWorld) -> AtLeastOnce:
    """A carrier that is started."""
    bound = binding(nats_delivery="at-least-once")
    carrier = AtLeastOnce(
        world.runtime,
        world,
        bound,
        world.appender(bound),
        durable="barnabas-t",
        producer=RemoteProducer(MagicMock()),
        ack_wait_s=1,
    )
    carrier.start(world.leading)
    return carrier


@pytest.mark.parametrize("is_exact", [True, False])
@pytest.mark.parametrize(
    "numbers", ["1.6.6.%s.0" % ("9" * 25), "1.%s.6.1700000000000000000.0" % ("9" * 30), "1.6"]
)
def test_malformed_numbers_affect_only_their_message(
    world: StreamWorld, caplog: pytest.LogCaptureFixture, is_exact: bool, numbers: str
) -> None:
    world.add()
    world.publish(0, 5)
    carrier = world.carrier() if is_exact else at_least_once(world)
    try:
        world.until(lambda: world.count() == 5)
        run = carrier._run
        assert run is not None
        for _ in range(100):
            carrier._take(b"a.1", run.prefix + numbers.encode(), b"", b"-1")
        carrier.on_read()
        world.publish(5, 15)
        world.until(lambda: world.count() == 20)
        assert world.values() == list(range(20))
        assert len([each for each in caplog.records if each.levelname == "WARNING"]) <= 1
    finally:
        carrier.stop()


def test_a_recreated_stream_is_read_at_least_once(world: StreamWorld) -> None:
    world.add()
    world.publish(0, 20)
    carrier = at_least_once(world)
    try:
        world.until(lambda: world.count() == 20)
        world.run(world.jetstream.delete_stream("S"))
        world.add()
        world.publish(20, 20)
        world.until(lambda: world.count() == 40)
        assert world.values() == list(range(40))
    finally:
        carrier.stop()
