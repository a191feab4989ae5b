"""A durable consumer whose owner changes: messages are stored in the stream's order, whatever the previous owner does with its
deliveries.

With a real nats-server. The previous owner is a stock client that pulls from the same durable and stores nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from barnabas.nats.jetstream.at_least_once import AtLeastOnce
from barnabas.nats.tests.stream_world import StreamWorld, binding
from compat_tests.harness.nats_server import NatsServer

pytestmark = [pytest.mark.sockets, pytest.mark.every_nats_server]

ACK_WAIT_S = 1.0


class NoProducer:
    """All partitions are led here."""

    def produce(self, *_: object) -> None:
        raise AssertionError("a record for another broker")

    def close(self) -> None:
        pass


@pytest.fixture
def world(nats_server: Callable[..., NatsServer]) -> Iterator[StreamWorld]:
    world = StreamWorld(nats_server(jetstream=True))
    world.add()
    world.run(
        world.jetstream.add_consumer(
            "S", durable_name="taker", ack_policy="explicit", ack_wait=ACK_WAIT_S, max_deliver=-1
        )
    )
    yield world
    world.close()


def own(world: StreamWorld) -> AtLeastOnce:
    """The next owner of the durable."""
    bound = binding(nats_delivery="at-least-once", nats_durable="taker")
    producer: Any = NoProducer()
    carrier = AtLeastOnce(
        world.runtime,
        world,
        bound,
        world.appender(bound),
        durable="taker",
        producer=producer,
        ack_wait_s=ACK_WAIT_S,
    )
    world.carriers.append(carrier)
    carrier.start(world.leading)
    return carrier


def previous_owner(world: StreamWorld) -> Any:
    return world.run(world.jetstream.pull_subscribe_bind("taker", stream="S"))


def test_messages_that_were_returned_before_earlier_ones_are_redelivered(world: StreamWorld) -> None:
    world.publish(0, 40)
    taken = world.run(previous_owner(world).fetch(20))
    for message in taken[10:]:
        world.run(message.nak())  # the first ten are redelivered when their ack wait is over
    own(world)
    world.until(lambda: world.count() >= 40)
    assert world.values() == list(range(40))


def test_messages_that_are_returned_late(world: StreamWorld) -> None:
    world.publish(0, 20)
    taken = world.run(previous_owner(world).fetch(5))
    own(world)
    for _ in range(8):
        for message in taken:
            world.run(message.in_progress())
        world.stays(lambda: not world.count(), ACK_WAIT_S / 4)  # longer than the ack wait altogether
    for message in reversed(taken):
        world.run(message.nak())
    world.until(lambda: world.count() >= 20)
    assert world.values() == list(range(20))


def test_messages_that_the_previous_owner_stores_meanwhile(world: StreamWorld) -> None:
    world.publish(0, 20)
    taken = world.run(previous_owner(world).fetch(10))
    own(world)
    for message in taken:
        world.run(message.ack())
    world.until(lambda: world.count() >= 10)
    assert world.values() == list(range(10, 20))


def test_a_previous_owner_that_does_not_know_takes_a_message(world: StreamWorld) -> None:
    carrier = own(world)
    world.publish(0, 10)
    world.until(lambda: world.count() >= 10)
    pulling = world.runtime.loop.create_task(previous_owner(world).fetch(1, timeout=60))
    published = 10
    while not pulling.done():  # the server serves the pulls one after the other
        world.publish(published, 1)
        published += 1
    world.publish(published, 20)
    (taken,) = pulling.result()
    world.until(lambda: world.count() >= published + 20)
    assert int(taken.data) < published
    assert world.values() == list(range(published + 20))
    assert carrier.resets == 1
    assert carrier.state == "running"
