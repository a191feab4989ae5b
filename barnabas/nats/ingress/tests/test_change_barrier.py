"""Brokers that change over at a mark: whatever comes when, each message is one broker's."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest

from barnabas.nats.client.errors import NotConnected
from barnabas.nats.ingress.change_barrier import EARLY_S, LATEST_S, SENT_AFTER_S, BindingChange, ChangeBarrier
from compat_tests.virtual.runtime import VirtualRuntime

BROKERS = 3


class Server:
    """Delivers what is published to every broker, in one order, to each of them when it reads."""

    def __init__(self) -> None:
        self.waiting: list[list[tuple[str, bytes]]] = [[] for _ in range(BROKERS)]
        self.is_closed = False

    def publish(self, subject: str, payload: bytes) -> None:
        if not self.is_closed:
            for each in self.waiting:
                each.append((subject, payload))


class Client:
    """What a broker has of the server."""

    def __init__(self, server: Server) -> None:
        self.is_connected = True
        self._server = server
        self.sinks: dict[str, Callable[[bytes, bytes, bytes, bytes], object]] = {}

    def subscribe(self, subject: str, sink: Callable[[bytes, bytes, bytes, bytes], object]) -> Any:
        self.sinks[subject] = sink

        class Subscription:
            def unsubscribe(self) -> None:
                pass

        return Subscription()

    def publish(self, subject: bytes, payload: bytes) -> None:
        if self._server.is_closed:
            raise NotConnected("closed")
        self._server.publish(subject.decode(), payload)


class Broker:
    """Takes the messages of the owner that it thinks of as its own."""

    def __init__(self, number: int, runtime: VirtualRuntime, server: Server) -> None:
        self.number = number
        self.owner: Callable[[int], int] = lambda message: message % BROKERS
        self.taken: list[int] = []
        self.client = Client(server)
        self.change_barrier = ChangeBarrier(runtime, cast("Any", self.client), "t", "cluster")
        self.change_barrier.start()
        self._waiting = server.waiting[number]

    def read(self, count: int) -> None:
        for subject, payload in self._waiting[:count]:
            if subject in self.client.sinks:
                self.client.sinks[subject](subject.encode(), b"", b"", payload)
            elif self.owner(int(payload)) == self.number:
                self.taken.append(int(payload))
        del self._waiting[:count]

    def hear(self, version: int) -> None:
        def apply() -> None:
            self.owner = lambda message: (message * 7 + version * (message // 3)) % BROKERS

        self.change_barrier.plan(BindingChange(str(version), self.number == 0), apply)


@pytest.mark.parametrize("seed", range(30))
def test_each_message_is_taken_once(seed: int) -> None:
    random_ = random.Random(seed)
    runtime, server = VirtualRuntime(), Server()
    brokers = [Broker(number, runtime, server) for number in range(BROKERS)]
    message = 0
    to_hear = [(version, broker) for version in range(1, 4) for broker in brokers]
    ahead = random_.random() * 0.15  # how long one hears of a change after another
    next_s = 0.0
    while to_hear or any(broker.change_barrier.has_planned for broker in brokers):
        for _ in range(random_.randrange(4)):
            server.publish("m", b"%d" % message)
            message += 1
        if to_hear and runtime.monotonic() >= next_s:
            version, broker = to_hear.pop(0)
            broker.hear(version)
            is_last = not to_hear or to_hear[0][0] != version
            next_s = runtime.monotonic() + (random_.choice([0.1, 0.5]) if is_last else ahead / 2)
        random_.choice(brokers).read(random_.randrange(10))
        runtime.advance(0.01)
    for broker in brokers:
        broker.read(1 << 30)
    counts = Counter(each for broker in brokers for each in broker.taken)
    assert counts == Counter(range(message))
    assert len({broker.owner(1000) for broker in brokers}) == 1


def test_an_early_mark_counts_and_a_missing_one_times_out() -> None:
    runtime, server = VirtualRuntime(), Server()
    early, late = Broker(1, runtime, server), Broker(2, runtime, server)
    first = early.owner
    server.publish("_BARNABAS.cluster.t.turn", b"5")
    early.read(1)
    early.hear(5)
    assert early.owner is not first
    assert not early.change_barrier.has_planned
    done: list[float] = []
    before = late.owner
    late.hear(5)
    late.change_barrier.when_done(lambda: done.append(runtime.monotonic()))
    start_s = runtime.monotonic()
    runtime.advance(LATEST_S - 0.01)
    assert (late.owner is before, done) == (True, [])
    runtime.advance(0.02)
    assert late.owner is not before
    assert done == [start_s + LATEST_S]
    server.publish("_BARNABAS.cluster.t.turn", b"6")
    early.read(1)
    runtime.advance(EARLY_S + 1)
    second = early.owner
    early.hear(6)
    assert early.owner is second


def test_a_change_without_a_connection_is_applied_at_once() -> None:
    runtime, server = VirtualRuntime(), Server()
    server.is_closed = True
    broker = Broker(0, runtime, server)
    before = broker.owner
    broker.hear(1)
    runtime.advance(SENT_AFTER_S + 0.01)
    assert broker.owner is before  # its mark could not be sent
    broker.client.is_connected = False
    broker.hear(2)
    assert broker.owner is not before
    assert not broker.change_barrier.has_planned


def test_stopping_drops_planned_changes() -> None:
    runtime, server = VirtualRuntime(), Server()
    broker = Broker(0, runtime, server)
    before, done = broker.owner, []
    broker.hear(1)
    broker.change_barrier.when_done(lambda: done.append(True))
    broker.change_barrier.stop()
    runtime.advance(LATEST_S + 1)
    assert broker.owner is before
    assert done == [True]
    assert server.waiting == [[], [], []]
