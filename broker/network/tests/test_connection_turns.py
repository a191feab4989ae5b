"""How long one connection is served before the others come in between."""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.network.connection import TURN_LOOK_BYTES, TURN_S, Connection, Connections
from barnabas.broker.requests.context import PENDING, Outcome
from compat_tests.virtual.runtime import VirtualRuntime

REQUEST = struct.pack(">ihhi", 20, 18, 0, 7) + bytes(12)
REQUESTS = 2000
SERVED_MAX = TURN_LOOK_BYTES // len(REQUEST) + 1  # before the clock is looked at


class Clock(VirtualRuntime):
    """Time moves when a request is served, and at no other time; turns are the test's to give."""

    def __init__(self) -> None:
        super().__init__()
        self.moment = 100.0
        self.soon: deque[Callable[[], object]] = deque()

    def monotonic(self) -> float:
        return self.moment

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.soon.append(callback)


class Costly:
    """A dispatcher whose requests all take the same time; one of them may wait for its answer."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.cost_s = 0.0
        self.served = 0
        self.waits_at = 0

    def dispatch(self, *_: object) -> bytes | Outcome:
        self.served += 1
        self.clock.moment += self.cost_s
        return PENDING if self.served == self.waits_at else struct.pack(">ii", 4, self.served)

    def encode(self, _context: object, _response: object) -> bytes:
        return struct.pack(">ii", 4, self.waits_at)


class Transport:
    """Of a socket, for what a connection asks of it."""

    def __init__(self, own: socket.socket) -> None:
        self.own = own
        self.reads = True

    def get_extra_info(self, name: str) -> Any:
        return self.own if name == "socket" else ("127.0.0.1", 1)

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def abort(self) -> None:
        self.own.close()


class World:
    """One connection that has been sent many requests at once."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.dispatcher = Costly(self.clock)
        config = BrokerConfig.from_properties({"connections.max.idle.ms": "-1"})
        self.shared = Connections(self.clock, self.dispatcher, config)  # type: ignore[arg-type]
        self.client, own = socket.socketpair()
        self.transport = Transport(own)
        self.connection = Connection(self.shared, "PLAINTEXT")
        self.connection.connection_made(self.transport)

    def receive(self, data: bytes) -> None:
        self.connection.get_buffer(-1)[: len(data)] = data
        self.connection.buffer_updated(len(data))

    def turns(self) -> list[int]:
        """Give it the loop until it wants no more: how many requests were served each time."""
        served: list[int] = []
        while self.clock.soon:
            before = self.dispatcher.served
            self.clock.soon.popleft()()
            served.append(self.dispatcher.served - before)
        return served

    def answers(self) -> list[int]:
        data = self.client.recv(1 << 20)
        return [number for _, number in struct.iter_unpack(">ii", data)]


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.client.close()
    made.shared.close_all()
    made.transport.own.close()


def test_costly_requests_in_one_read_are_served_in_turns(world: World) -> None:
    world.dispatcher.cost_s = TURN_S / 10
    world.receive(REQUEST * REQUESTS)
    assert 0 < world.dispatcher.served <= SERVED_MAX
    assert not world.transport.reads, "nothing more is read before it has had its next turn"
    turns = world.turns()
    assert sum(turns) == REQUESTS - SERVED_MAX
    assert max(turns) <= SERVED_MAX
    assert world.answers() == list(range(1, REQUESTS + 1))
    assert world.transport.reads


def test_cheap_requests_are_served_in_one_turn(world: World) -> None:
    world.dispatcher.cost_s = TURN_S / REQUESTS / 2
    world.receive(REQUEST * REQUESTS)
    assert world.dispatcher.served == REQUESTS
    assert world.transport.reads


def test_a_request_that_waits_holds_up_those_behind_it_and_no_turn_is_lost(world: World) -> None:
    world.dispatcher.cost_s = TURN_S / 10
    world.dispatcher.waits_at = SERVED_MAX + 3
    world.receive(REQUEST * REQUESTS)
    world.turns()
    assert world.dispatcher.served == SERVED_MAX + 3
    world.connection.complete(None, None)  # type: ignore[arg-type]
    world.turns()
    assert world.answers() == list(range(1, REQUESTS + 1))
    assert world.transport.reads


def test_an_answer_that_comes_between_two_turns_serves_nothing_twice(world: World) -> None:
    world.dispatcher.cost_s = TURN_S
    world.dispatcher.waits_at = SERVED_MAX  # where the turn ends as well
    world.receive(REQUEST * REQUESTS)
    world.connection.complete(None, None)  # type: ignore[arg-type]
    world.turns()
    assert world.answers() == list(range(1, REQUESTS + 1))
    assert world.transport.reads


def test_half_a_request_behind_costly_ones_is_kept(world: World) -> None:
    world.dispatcher.cost_s = TURN_S / 10
    world.receive(REQUEST * REQUESTS + REQUEST[:10])
    world.turns()
    assert world.dispatcher.served == REQUESTS
    assert world.transport.reads
    world.receive(REQUEST[10:])
    world.turns()
    assert world.answers() == list(range(1, REQUESTS + 2))


def test_a_connection_closed_between_two_turns_serves_no_more(world: World) -> None:
    world.dispatcher.cost_s = TURN_S / 10
    world.receive(REQUEST * REQUESTS)
    served = world.dispatcher.served
    world.connection.close()
    world.connection.connection_lost(None)
    world.turns()
    assert world.dispatcher.served == served
