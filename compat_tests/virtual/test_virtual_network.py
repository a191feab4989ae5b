"""The virtual network delivers data as TCP does: in order, in pieces, late, or not at all."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.runtime.tls_contexts import client_context, server_context
from compat_tests.harness.certificates import Authority
from compat_tests.virtual.network import CONNECT_TIMEOUT_S, VirtualNetwork
from compat_tests.virtual.runtime import VirtualRuntime
from compat_tests.virtual.transport import WINDOW_BYTES
from compat_tests.virtual.world import VirtualWorld

PORT = 9092


class Side:
    """A protocol that records its callbacks."""

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


class TwoHosts:
    """Two hosts, with a listener on the second."""

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


@given(pieces=st.lists(st.binary(max_size=3000), max_size=30), seed=st.integers(0, 1000))
def test_bytes_arrive_in_order_in_pieces_of_any_size(pieces: list[bytes], seed: int) -> None:
    chance = random.Random(seed)
    hosts = TwoHosts(seed, lambda *_: chance.random())
    hosts.network.cuts_pieces = lambda count: chance.randint(1, count)
    near, far = Side(), None
    hosts.left.connect("right", PORT, lambda: near, hosts.failures.append)
    hosts.wait(5)
    far = hosts.accepted[0]
    for piece in pieces:
        near.transport.write(piece)
        far.transport.write(piece)
        hosts.wait(chance.random() / 10)
    hosts.wait(50)
    near.transport.close()
    hosts.wait(2)
    assert far.received == b"".join(pieces) == near.received
    assert far.ended
    assert far.lost == [None] == near.lost


@pytest.mark.parametrize("trusted", [True, False])
def test_tls_as_of_an_event_loop(trusted: bool) -> None:
    """Bytes both ways, or a failure before the protocol sees a connection."""
    authority = Authority()
    server, client = server_context(), client_context()
    with tempfile.TemporaryDirectory() as directory:
        server.load_cert_chain(authority.sign("right", ["right"]).write(Path(directory, "own.pem")))
    client.load_verify_locations(cadata=(authority if trusted else Authority("other")).pem)
    hosts = TwoHosts(1)
    chance = random.Random(2)
    hosts.network.cuts_pieces = lambda count: chance.randint(1, count)
    far, near = Side(), Side()
    hosts.right.listen("right", 9093, lambda: far, tls=server)
    hosts.left.connect("right", 9093, lambda: near, hosts.failures.append, tls=client)
    hosts.wait(1)
    if not trusted:
        assert len(hosts.failures) == 1
        assert not near.is_made
        return
    near.transport.write(b"x" * 100_000)
    far.transport.write(b"y" * 100_000)
    hosts.wait(1)
    assert (bytes(far.received), bytes(near.received)) == (b"x" * 100_000, b"y" * 100_000)
    near.transport.close()
    hosts.wait(1)
    assert (len(near.lost), len(far.lost)) == (1, 1)


def test_a_connection_without_a_listener_is_refused() -> None:
    hosts = TwoHosts()
    hosts.server.close()
    hosts.connect()
    hosts.wait(1)
    assert [type(error) for error in hosts.failures] == [ConnectionRefusedError]


def test_a_connection_without_an_answer_times_out() -> None:
    hosts = TwoHosts()
    hosts.right.end(power_fails=True)
    hosts.connect()
    hosts.wait(CONNECT_TIMEOUT_S - 1)
    assert hosts.failures == []
    hosts.wait(10)
    assert [type(error) for error in hosts.failures] == [TimeoutError]


@pytest.mark.parametrize("way", [("left", "right"), ("right", "left")])
def test_a_block_delays_a_connection_until_it_ends(way: tuple[str, str]) -> None:
    hosts = TwoHosts()
    hosts.network.block(*way)
    near = hosts.connect()
    hosts.wait(3)
    assert not near.is_made
    hosts.network.unblock(*way)
    hosts.wait(5)
    near.transport.write(b"before")
    hosts.wait(1)
    hosts.network.block("left", "right")
    near.transport.write(b" and after")
    hosts.wait(3)
    assert hosts.accepted[0].received == b"before"
    hosts.network.unblock_all()
    hosts.wait(5)
    assert hosts.accepted[0].received == b"before and after"


def test_a_connection_that_is_blocked_too_long_ends() -> None:
    hosts = TwoHosts()
    near, far = hosts.connected()
    hosts.network.block("left", "right")
    near.transport.write(b"lost")
    hosts.wait(60)
    assert [type(error) for error in near.lost] == [TimeoutError]
    assert far.lost == []


def test_a_killed_process_ends_its_connections() -> None:
    hosts = TwoHosts()
    near, _ = hosts.connected()
    hosts.right.end()
    hosts.wait(1)
    assert near.lost == [None]
    hosts.connect()
    hosts.wait(1)
    assert [type(error) for error in hosts.failures] == [ConnectionRefusedError]


def test_peers_notice_a_power_failure_when_the_host_is_back() -> None:
    hosts = TwoHosts()
    near, _ = hosts.connected()
    hosts.right.end(power_fails=True)
    near.transport.write(b"hello")
    hosts.wait(5)
    assert near.lost == []
    VirtualRuntime(network=hosts.network, host="right")
    hosts.wait(5)
    assert [type(error) for error in near.lost] == [ConnectionResetError]


def test_a_paused_process_accepts_connections_and_reads_later() -> None:
    hosts = TwoHosts()
    hosts.right.hold_until(10)
    near = hosts.connect()
    hosts.wait(5)
    near.transport.write(b"hello")
    hosts.wait(4)
    assert hosts.accepted == []
    hosts.wait(2)
    assert hosts.accepted[0].received == b"hello"


def test_a_reader_that_does_not_read_stops_the_writer() -> None:
    hosts = TwoHosts()
    near, far = hosts.connected()
    far.transport.pause_reading()
    near.transport.write(bytes(3 * WINDOW_BYTES))
    hosts.wait(1)
    assert near.transport.get_write_buffer_size() == 2 * WINDOW_BYTES
    far.transport.resume_reading()
    hosts.wait(1)
    assert len(far.received) == 3 * WINDOW_BYTES


def test_the_stream_ends_when_every_descriptor_is_closed() -> None:
    hosts = TwoHosts()
    near, far = hosts.connected()
    copy = near.transport.get_extra_info("socket").dup()
    near.transport.abort()
    hosts.wait(1)
    assert copy.send(b"still there") == 11
    hosts.wait(1)
    assert far.received == b"still there"
    assert not far.lost
    copy.close()
    hosts.wait(1)
    assert far.lost == [None]


def test_a_reset_ends_both_sides() -> None:
    hosts = TwoHosts()
    near, far = hosts.connected()
    assert hosts.network.reset("right", "left") == 1
    hosts.wait(1)
    assert [type(error) for error in near.lost + far.lost] == [ConnectionResetError] * 2


def test_a_cancelled_connection_is_never_made() -> None:
    hosts = TwoHosts(delay_s=lambda *_: 0.1)
    side = Side()
    connecting = hosts.left.connect("right", PORT, lambda: side, hosts.failures.append)
    hosts.wait(0.15)
    connecting.cancel()
    hosts.wait(1)
    assert side.transport is None
    assert hosts.failures == []
    assert hosts.accepted[0].lost == [None]


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
