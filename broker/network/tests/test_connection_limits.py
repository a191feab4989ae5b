"""How many connections there may be, and how many bytes of unfinished requests."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.network.connection_limits import WAITING_MAX, ConnectionLimits, parse_overrides
from barnabas.broker.network.memory_pool import KEPT_BYTES_MAX, MemoryPool
from barnabas.broker.quotas.client_quotas import CLIENTS_MAX
from barnabas.broker.quotas.connection_rates import ConnectionRates
from barnabas.controller.config.validators import ConfigError
from barnabas.controller.metadata.image import MetadataDelta, MetadataImage, quota_record
from barnabas.runtime.asyncio_runtime import bind_socket
from barnabas.testing.external.raw_client import RawClient
from compat_tests.harness.threaded_node import ThreadedNode
from compat_tests.virtual.runtime import VirtualRuntime

API_VERSIONS = 18
ASK = struct.pack(">ihhih", 10, API_VERSIONS, 0, 1, -1)


class Client:
    def __init__(self, host: str = "10.0.0.1", listener: str = "PLAINTEXT") -> None:
        self.client_host = host
        self.listener = listener
        self.state = "waiting"

    def admitted(self) -> None:
        self.state = "served"

    def close(self, reason: str = "") -> None:
        self.state = "closed"


class World:
    """The limits, and clients that arrive and leave."""

    def __init__(self, **properties: str) -> None:
        self.runtime = VirtualRuntime()
        self.config = BrokerConfig.from_properties(properties)
        self.limits = ConnectionLimits(self.config, self.runtime)

    def arrive(self, host: str = "10.0.0.1", listener: str = "PLAINTEXT") -> Client:
        client = Client(host, listener)
        if self.limits.arrive(client):
            client.state = "served"
        return client

    def leave(self, client: Client) -> None:
        self.limits.leave(client, was_admitted=client.state == "served")


def test_beyond_max_connections_they_wait_in_order() -> None:
    world = World(**{"max.connections": "2"})
    first, second, third, fourth = (world.arrive() for _ in range(4))
    assert [each.state for each in (first, second, third, fourth)] == [
        "served",
        "served",
        "waiting",
        "waiting",
    ]
    world.leave(second)
    assert (third.state, fourth.state) == ("served", "waiting")
    world.leave(fourth)  # gave up
    world.leave(first)
    assert world.limits.count == 1
    assert world.arrive().state == "served"


def test_a_bounded_number_waits() -> None:
    world = World(**{"max.connections": "1"})
    clients = [world.arrive() for _ in range(1 + WAITING_MAX + 1)]
    assert clients[-1].state == "closed"
    assert clients[-2].state == "waiting"


def test_an_address_at_its_limit_is_refused() -> None:
    world = World(**{"max.connections.per.ip": "2", "max.connections.per.ip.overrides": "10.0.0.9:3"})
    assert [world.arrive().state for _ in range(3)] == ["served", "served", "closed"]
    assert [world.arrive("10.0.0.9").state for _ in range(4)] == ["served"] * 3 + ["closed"]
    other = world.arrive("10.0.0.2")
    world.leave(other)
    assert world.arrive("10.0.0.2").state == "served"


def test_the_limits_can_change_at_run_time() -> None:
    world = World(**{"max.connections": "1"})
    first, second = world.arrive(), world.arrive()
    world.config.apply_dynamic({"max.connections": "5", "max.connections.per.ip": "3"}, {})
    world.leave(first)
    assert second.state == "served"
    assert [world.arrive().state for _ in range(3)] == ["served", "served", "closed"]


def test_the_rate_of_new_connections() -> None:
    world = World(**{"max.connection.creation.rate": "5"})
    clients = [world.arrive() for _ in range(20)]
    assert sum(each.state == "served" for each in clients) == 5
    served = []
    for _ in range(3):
        world.runtime.advance(1.0)
        served.append(sum(each.state == "served" for each in clients))
    assert served == [10, 15, 20]
    assert [each.state for each in clients] == ["served"] * 20
    world.runtime.advance(10.0)
    assert [world.arrive().state for _ in range(6)] == ["served"] * 5 + ["waiting"]


TWO_LISTENERS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,INSIDE://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
    "inter.broker.listener.name": "INSIDE",
}


def test_a_listener_has_limits_of_its_own() -> None:
    prefix = "listener.name.plaintext."
    world = World(
        **TWO_LISTENERS, **{prefix + "max.connections": "4", prefix + "max.connection.creation.rate": "3"}
    )
    clients = [world.arrive() for _ in range(6)]
    others = [world.arrive(listener="INSIDE") for _ in range(6)]
    assert [each.state for each in clients] == ["served"] * 3 + ["waiting"] * 3
    assert [each.state for each in others] == ["served"] * 6
    world.runtime.advance(10)
    assert [each.state for each in clients] == ["served"] * 4 + ["waiting"] * 2
    world.leave(clients[0])
    assert clients[4].state == "served"


def test_the_brokers_own_limits_leave_a_way_for_other_brokers() -> None:
    world = World(**TWO_LISTENERS, **{"max.connections": "2", "max.connection.creation.rate": "2"})
    assert [world.arrive().state for _ in range(3)] == ["served", "served", "waiting"]
    assert [world.arrive(listener="INSIDE").state for _ in range(3)] == ["served"] * 3


def test_a_limit_of_a_listener_that_is_no_number_stops_the_start() -> None:
    with pytest.raises(ConfigError):
        BrokerConfig.from_properties({"listener.name.plaintext.max.connections": "many"})


def rates(world: World, quotas: dict[str | None, float]) -> ConnectionRates:
    image = MetadataImage()
    for name, value in quotas.items():
        image.replay(quota_record((("ip", name),), "connection_creation_rate", value), MetadataDelta())
    found = ConnectionRates(world.runtime, world.config)
    assert found.load(image) == bool(quotas)
    world.limits.rates = found
    return found


def test_an_address_beyond_its_quota_is_closed_after_a_while() -> None:
    world = World()
    rates(world, {"10.0.0.1": 2, None: 100})
    clients = [world.arrive() for _ in range(30)]
    assert [each.state for each in clients] == ["served"] * 20 + ["waiting"] * 10
    assert world.limits.count == 20
    assert world.arrive("10.0.0.2").state == "served"
    world.runtime.advance(1)
    assert [each.state for each in clients] == ["served"] * 20 + ["closed"] * 10
    world.runtime.advance(11)
    assert world.arrive().state == "served", "those that were closed do not count"


def test_a_bounded_number_is_held() -> None:
    world = World()
    rates(world, {None: 1})
    clients = [world.arrive() for _ in range(10 + WAITING_MAX + 1)]
    assert [each.state for each in clients[-2:]] == ["waiting", "closed"]


def test_quotas_name_addresses_and_hosts() -> None:
    world = World()
    found = rates(world, {"localhost": 1, "::ffff:10.0.0.7": 1, "2001:db8::1": 1})
    world.runtime.run_until_idle()
    for host in ("127.0.0.1", "10.0.0.7", "2001:db8:0:0:0:0:0:1"):
        assert [found.throttle_ms(host) > 0 for _ in range(11)] == [False] * 10 + [True], host
    assert [found.throttle_ms("10.0.0.8") for _ in range(20)] == [0] * 20


def test_addresses_take_a_bounded_place() -> None:
    world = World()
    found = rates(world, {None: 1})
    for number in range(2 * CLIENTS_MAX):
        found.throttle_ms(f"10.0.{number // 250}.{number % 250}")
    assert len(found._quotas) <= CLIENTS_MAX


def test_overrides_name_addresses_or_hosts() -> None:
    found = parse_overrides(" localhost:7, 10.1.2.3:1,::1:4,nonsense,10.9.9.9:many")
    assert found["127.0.0.1"] == 7
    assert found["10.1.2.3"] == 1
    assert found["::1"] == 4
    assert "10.9.9.9" not in found
    assert parse_overrides("") == {}


# -- bytes of unfinished requests


class Reader:
    """A connection that waits until `size` bytes have been granted to it."""

    def __init__(self, memory: MemoryPool, size: int) -> None:
        self.memory = memory
        self.size = size
        self.granted = 0
        self.feed()

    def feed(self) -> None:
        if self.memory.grant(self.size):
            self.granted = self.size
        else:
            self.memory.wait(self)

    def drop_idle_buffer(self) -> None:
        raise AssertionError

    def finish(self) -> None:
        granted, self.granted = self.granted, 0
        self.memory.leave(self, granted)


@given(
    st.integers(0, 100),
    st.lists(st.tuples(st.sampled_from(["begin", "finish"]), st.integers(0, 60)), max_size=40),
)
def test_grants_are_bounded_and_every_connection_gets_one(limit: int, script: list[tuple[str, int]]) -> None:
    memory = MemoryPool(limit)
    readers: list[Reader] = []
    for step, number in script:
        if step == "begin":
            readers.append(Reader(memory, number + 1))
        elif readers:
            readers.pop(number % len(readers)).finish()
        assert memory.granted == sum(reader.granted for reader in readers)
        largest = max((reader.size for reader in readers), default=0)
        assert memory.granted < limit + largest or not memory.granted
        waiting = [reader for reader in readers if not reader.granted]
        assert not waiting or memory.granted >= limit, "none waits while there is room"
    if limit > 0:
        while readers:
            granted = [reader for reader in readers if reader.granted]
            assert granted, "one can always go on"
            readers.remove(granted[0])
            granted[0].finish()


class Keeper:
    def __init__(self) -> None:
        self.has_buffer = True

    def feed(self) -> None:
        raise AssertionError

    def drop_idle_buffer(self) -> None:
        self.has_buffer = False


def test_kept_buffers_are_bounded_in_sum_and_the_oldest_is_dropped() -> None:
    memory = MemoryPool(-1)
    size = KEPT_BYTES_MAX // 4
    keepers = [Keeper() for _ in range(6)]
    for keeper in keepers[:4]:
        memory.keep(keeper, size)
    memory.keep(keepers[0], size)  # used again
    for keeper in keepers[4:]:
        memory.keep(keeper, size)
    assert [keeper.has_buffer for keeper in keepers] == [True, False, False, True, True, True]
    memory.leave(keepers[3], 0)
    last = Keeper()
    memory.keep(last, size)
    assert keepers[0].has_buffer


# -- with sockets


Serve = Callable[[dict[str, str]], int]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start a broker with these properties; its port."""
    running: list[ThreadedNode] = []

    def start(properties: dict[str, str]) -> int:
        running.append(ThreadedNode(tmp_path, properties))
        return running[-1].port

    yield start
    for node in running:
        node.stop()


def answers(client: RawClient, seconds: float = 60.0) -> bool:
    client.socket.sendall(ASK)
    if not select.select([client.socket], [], [], seconds)[0]:
        return False
    return client.receive(API_VERSIONS, 0)[0] == 1


def is_served(port: int) -> bool:
    """Whether a new connection is."""
    try:
        return answers(RawClient(port))
    except (EOFError, OSError):  # it has been closed at once
        return False


@pytest.mark.sockets
def test_one_connection_too_many_is_served_when_another_ends(serve: Serve) -> None:
    port = serve({"max.connections": "2"})
    first, second, third = (RawClient(port) for _ in range(3))
    assert answers(first)
    assert answers(second)
    assert not answers(third, 0.2)
    first.socket.close()
    assert third.receive(API_VERSIONS, 0)[0] == 1
    assert answers(second)


@pytest.mark.sockets
def test_a_waiting_connection_that_ends_is_forgotten(serve: Serve) -> None:
    port = serve({"max.connections": "1"})
    first, second, third = (RawClient(port) for _ in range(3))
    assert answers(first)
    second.socket.close()
    first.socket.close()
    assert answers(third)


@pytest.mark.sockets
def test_one_address_has_a_limited_number(serve: Serve) -> None:
    port = serve({"max.connections.per.ip.overrides": "127.0.0.1:1"})
    first = RawClient(port)
    assert answers(first)
    assert RawClient(port).is_closed()
    first.socket.close()
    deadline = time.monotonic() + 60
    while not is_served(port):  # until the broker has heard of it
        assert time.monotonic() < deadline


@pytest.mark.sockets
def test_connections_inherit_the_sizes_of_the_systems_buffers() -> None:
    with bind_socket("127.0.0.1", 0, send_buffer_bytes=20_000, receive_buffer_bytes=10_000) as listening:
        client = socket.create_connection(listening.getsockname())
        select.select([listening], [], [], 10)
        accepted, _ = listening.accept()
        sizes = [
            accepted.getsockopt(socket.SOL_SOCKET, each) for each in (socket.SO_SNDBUF, socket.SO_RCVBUF)
        ]
        assert sizes in ([40_000, 20_000], [20_000, 10_000])  # Linux reports twice what was set
        accepted.close()
        client.close()
