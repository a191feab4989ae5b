"""Streams that are removed and made anew while they are taken at least once, at a real nats-server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from barnabas.broker.nats.cluster.foreign import ForeignProducer
from barnabas.broker.nats.jetstream.at_least_once import AtLeastOnce
from barnabas.broker.nats.tests.stream_world import StreamWorld, binding

from barnabas.testing.nats_server import NatsServer


@pytest.fixture
def world(nats_server: Callable[..., NatsServer]) -> Iterator[StreamWorld]:
    world = StreamWorld(nats_server(jetstream=True))
    world.until(lambda: world.client.is_connected)
    yield world
    world.close()


def test_what_a_stream_holds_that_was_made_anew_is_taken(world: StreamWorld) -> None:
    world.add()
    world.publish(0, 20)
    carrier = AtLeastOnce(
        world.runtime,
        world,
        binding(nats_delivery="at-least-once"),
        partition_count=lambda: world.world.count,
        cluster_id="cluster",
        producer=ForeignProducer(cast(Any, None)),
        ack_wait_s=1,
    )
    carrier.start(world.leading)
    try:
        world.until(lambda: world.count() == 20)
        world.run(world.jetstream.delete_stream("S"))
        world.add()
        world.publish(20, 20)
        world.until(lambda: world.count() == 40)
        assert world.values() == list(range(40))
    finally:
        carrier.stop()
