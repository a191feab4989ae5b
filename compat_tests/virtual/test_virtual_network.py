"""The virtual network: what is sent arrives, in order, in pieces, late, or not at all, as TCP would have it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compat_tests.virtual.network import CONNECT_TIMEOUT_S, VirtualNetwork
from compat_tests.virtual.runtime import VirtualRuntime
from compat_tests.virtual.transport import WINDOW_BYTES
from compat_tests.virtual.world import VirtualWorld

PORT = 9092


class Side:
    """A protocol that remembers."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.received = bytearray()
        self.pieces = 0
        self.ended = False
        self.lost: list[Exception | None] = []

    @property
    def is_made(self) -> bool:
        return self.transport is not None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.pieces += 1

    def eof_received(self) -> bool:
        self.ended = True
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class House:
    """Two hosts, a listener on the second."""

    def __init__(self, seed: int = 0, delay_s: Callable[[str, str], float] | None = None) -> None:
        self.world = VirtualWorld(seed, shuffles=True)
        self.network = VirtualNetwork(self.world)
        self.network.delay_s = delay_s
        self.left = VirtualRuntime(network=self.network, host="left")
        self.right = VirtualRuntime(network=self.network, host="right")
        self.accepted: list[Side] = []
        self.server = self.right.listen("right", PORT, self._accept)
        self.failures: list[OSError] = []

    def _accept(self) -> Side:
        self.accepted.append(Side())
        return self.accepted[-1]

    def connect(self) -> Side:
        side = Side()
        self.left.connect("right", PORT, lambda: side, self.failures.append)
        return side

    def connected(self) -> tuple[Side, Side]:
        near = self.connect()
        self.world.run_until(self.world.now + 1)
        return near, self.accepted[-1]

    def wait(self, seconds: float) -> None:
        self.world.run_until(self.world.now + seconds)


@settings(max_examples=50)
@given(pieces=st.lists(st.binary(max_size=3000), max_size=30), seed=st.integers(0, 1000))
def test_bytes_arrive_in_order_whatever_pieces_they_come_in(pieces: list[bytes], seed: int) -> None:
    chance = random.Random(seed)
    house = House(seed, lambda *_: chance.random())
    house.network.cuts_pieces = lambda count: chance.randint(1, count)
    near, far = Side(), None
    house.left.connect("right", PORT, lambda: near, house.failures.append)
    house.wait(5)
    far = house.accepted[0]
    for piece in pieces:
        near.transport.write(piece)
        far.transport.write(piece)
        house.wait(chance.random() / 10)
    house.wait(50)
    near.transport.close()
    house.wait(2)
    assert far.received == b"".join(pieces) == near.received
    assert far.ended
    assert far.lost == [None] == near.lost


def test_nobody_listens() -> None:
    house = House()
    house.server.close()
    house.connect()
    house.wait(1)
    assert [type(error) for error in house.failures] == [ConnectionRefusedError]


def test_nobody_answers() -> None:
    house = House()
    house.right.end(power_fails=True)
    house.connect()
    house.wait(CONNECT_TIMEOUT_S - 1)
    assert house.failures == []
    house.wait(10)
    assert [type(error) for error in house.failures] == [TimeoutError]


@pytest.mark.parametrize("way", [("left", "right"), ("right", "left")])
def test_a_blocked_way_holds_a_connection_up_until_it_is_free(way: tuple[str, str]) -> None:
    house = House()
    house.network.block(*way)
    near = house.connect()
    house.wait(3)
    assert not near.is_made
    house.network.unblock(*way)
    house.wait(5)
    near.transport.write(b"before")
    house.wait(1)
    house.network.block("left", "right")
    near.transport.write(b" and after")
    house.wait(3)
    assert house.accepted[0].received == b"before"
    house.network.unblock_all()
    house.wait(5)
    assert house.accepted[0].received == b"before and after"


def test_what_is_held_up_too_long_is_given_up() -> None:
    house = House()
    near, far = house.connected()
    house.network.block("left", "right")
    near.transport.write(b"lost")
    house.wait(60)
    assert [type(error) for error in near.lost] == [TimeoutError]
    assert far.lost == []


def test_a_killed_process_ends_its_connections() -> None:
    house = House()
    near, _ = house.connected()
    house.right.end()
    house.wait(1)
    assert near.lost == [None]
    house.connect()
    house.wait(1)
    assert [type(error) for error in house.failures] == [ConnectionRefusedError]


def test_a_power_failure_is_noticed_when_the_host_is_back() -> None:
    house = House()
    near, _ = house.connected()
    house.right.end(power_fails=True)
    near.transport.write(b"hello")
    house.wait(5)
    assert near.lost == []
    VirtualRuntime(network=house.network, host="right")
    house.wait(5)
    assert [type(error) for error in near.lost] == [ConnectionResetError]


def test_a_held_process_is_connected_to_and_reads_later() -> None:
    house = House()
    house.right.hold_until(10)
    near = house.connect()
    house.wait(5)
    near.transport.write(b"hello")
    house.wait(4)
    assert house.accepted == []
    house.wait(2)
    assert house.accepted[0].received == b"hello"


def test_a_reader_that_does_not_read_stops_the_writer() -> None:
    house = House()
    near, far = house.connected()
    far.transport.pause_reading()
    near.transport.write(bytes(3 * WINDOW_BYTES))
    house.wait(1)
    assert near.transport.get_write_buffer_size() == 2 * WINDOW_BYTES
    far.transport.resume_reading()
    house.wait(1)
    assert len(far.received) == 3 * WINDOW_BYTES


def test_the_end_comes_when_every_descriptor_is_closed() -> None:
    house = House()
    near, far = house.connected()
    copy = near.transport.get_extra_info("socket").dup()
    near.transport.abort()
    house.wait(1)
    assert copy.send(b"still there") == 11
    house.wait(1)
    assert far.received == b"still there"
    assert not far.lost
    copy.close()
    house.wait(1)
    assert far.lost == [None]


def test_a_reset_ends_both_sides() -> None:
    house = House()
    near, far = house.connected()
    assert house.network.reset("right", "left") == 1
    house.wait(1)
    assert [type(error) for error in near.lost + far.lost] == [ConnectionResetError] * 2


def test_a_cancelled_connection_is_never_made() -> None:
    house = House(delay_s=lambda *_: 0.1)
    side = Side()
    connecting = house.left.connect("right", PORT, lambda: side, house.failures.append)
    house.wait(0.15)
    connecting.cancel()
    house.wait(1)
    assert side.transport is None
    assert house.failures == []
    assert house.accepted[0].lost == [None]


def test_the_same_seed_gives_the_same_order() -> None:
    def order(seed: int) -> list[int]:
        world = VirtualWorld(seed, shuffles=True)
        network = VirtualNetwork(world)
        seen: list[int] = []
        for number in range(20):
            host = VirtualRuntime(network=network, host=f"h{number}")
            host.call_later(1, lambda number=number: seen.append(number))  # type: ignore[misc]
        world.run_until(2)
        return seen

    assert order(1) == order(1) != order(2)
