"""The connection to another broker: frames in pieces, answers that are none, connections that end."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.cluster.peer_client import BACKOFF_MAX_S, InterBrokerClient
from barnabas.broker.security.sasl_client import PlainClient
from barnabas.wire.messages.fetch import (
    FETCH_RESPONSE,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from compat_tests.virtual.runtime import VirtualRuntime

VERSION = 18
LIMIT = 5_000_000


class ScriptedBroker:
    """Takes connections and says what the test tells it to say."""

    def __init__(self, runtime: VirtualRuntime) -> None:
        self.connections: list[ScriptedConnection] = []
        self.server = runtime.listen("127.0.0.1", 0, self._connect)

    def _connect(self) -> ScriptedConnection:
        self.connections.append(ScriptedConnection())
        return self.connections[-1]


class ScriptedConnection:
    """One connection, seen from the broker."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.is_lost = False
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True


class World:
    """A client and a scripted broker."""

    def __init__(self) -> None:
        self.runtime = VirtualRuntime()
        self.broker = ScriptedBroker(self.runtime)
        self.connected = 0
        self.lost: list[str] = []
        self.answers: list[tuple[int, bytes]] = []
        self.client = InterBrokerClient(
            self.runtime,
            "broker-2-fetcher-0",
            lambda: ("127.0.0.1", self.broker.server.port),
            self._connected,
            self.lost.append,
            authentication=None,
            broker_id=1,
            timeout_s=5,
        )
        self.client.open()
        self.runtime.run_until_idle()

    def _connected(self) -> None:
        self.connected += 1

    @property
    def connection(self) -> ScriptedConnection:
        return self.broker.connections[-1]

    def ask(self, limit: int = LIMIT, done: Callable[[FetchResponse], object] | None = None) -> None:
        def answered(response: FetchResponse) -> None:
            records = response.responses[0].partitions[0].records
            assert isinstance(records, memoryview)
            self.answers.append((response.session_id, bytes(records)))

        self.client.send(1, VERSION, FetchRequest(), done or answered, answer_max_bytes=limit)
        self.runtime.run_until_idle()

    def say(self, data: bytes) -> None:
        self.connection.transport.write(data)
        self.runtime.run_until_idle()


def answer(correlation_id: int, records: bytes, session_id: int = 0) -> bytes:
    data = PartitionData(partition_index=3, records=records)
    response = FetchResponse(session_id=session_id, responses=[FetchableTopicResponse("", b"i" * 16, [data])])
    body = b"".join(bytes(part) for part in FETCH_RESPONSE.encode(VERSION, response))  # type: ignore[call-overload]
    frame = struct.pack(">ix", correlation_id) + body
    return struct.pack(">i", len(frame)) + frame


@given(
    sizes=st.lists(st.integers(0, 400_000), min_size=1, max_size=5),
    piece=st.integers(1000, 300_000),
    together=st.booleans(),
)
def test_answers_come_in_pieces_of_any_size(sizes: list[int], piece: int, together: bool) -> None:
    world = World()
    world.runtime.network.cuts_pieces = lambda count: min(count, piece)
    records = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    if together:
        for _ in sizes:
            world.ask()
        world.say(b"".join(answer(n + 1, each, n) for n, each in enumerate(records)))
    else:
        for number, each in enumerate(records):
            world.ask()
            world.say(answer(number + 1, each, number))
    assert world.answers == list(enumerate(records))
    assert not world.lost


def test_a_request_is_a_frame_of_kafkas() -> None:
    world = World()
    world.ask()
    size, key, version, correlation_id, name = struct.unpack(">ihhih", world.connection.received[:14])
    assert size == len(world.connection.received) - 4
    assert (key, version, correlation_id) == (1, VERSION, 1)
    assert world.connection.received[14 : 14 + name] == b"broker-2-fetcher-0"


@pytest.mark.parametrize(
    "wrong",
    [
        answer(7, b"x"),  # to what was not asked
        struct.pack(">i", -1),
        struct.pack(">i", 2),
        struct.pack(">i", LIMIT + 1),
        struct.pack(">i", 100) + struct.pack(">i", 1) + b"\xff" * 96,
        answer(1, b"x")[:4] + answer(1, b"x")[4:-1] + b"\1",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
    ids=["other", "negative", "short", "long", "garbled", "cut", "http"],
)
def test_a_malformed_answer_ends_the_connection(wrong: bytes) -> None:
    world = World()
    world.ask()
    world.say(wrong)
    assert world.connection.is_lost or world.broker.connections[0].is_lost
    assert len(world.lost) == 1
    assert not world.answers
    world.runtime.advance(1)
    assert world.connected == 2, "it is tried again"


def test_an_answer_without_a_request_ends_the_connection() -> None:
    world = World()
    world.say(answer(1, b"x"))
    assert len(world.lost) == 1


def test_a_huge_announcement_takes_no_memory() -> None:
    world = World()
    world.ask(limit=1 << 30)
    world.say(struct.pack(">i", (1 << 30) - 4) + b"x" * 1000)
    connection = world.client._connection
    assert connection is not None
    assert len(connection._received.data) <= 1 << 18


def test_a_refused_login_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    runtime = VirtualRuntime()
    broker = ScriptedBroker(runtime)
    authentication: Any = SimpleNamespace(login=lambda: PlainClient("node", "secret"))
    client = InterBrokerClient(
        runtime,
        "broker-2-fetcher-0",
        lambda: ("127.0.0.1", broker.server.port),
        lambda: pytest.fail("it is connected"),
        lambda _: None,
        authentication=authentication,
        broker_id=1,
        timeout_s=5,
    )
    client.open()
    runtime.advance(0)
    (connection,) = broker.connections
    for body in (struct.pack(">hi", 0, 0), struct.pack(">hh", 58, 12) + b"no\nWARNING x" + bytes(12)):
        correlation_id = bytes(connection.received[8:12])
        connection.received.clear()
        connection.transport.write(struct.pack(">i", 4 + len(body)) + correlation_id + body)
        runtime.advance(0)
    client.close()
    (record,) = (each for each in caplog.records if "login by SASL has failed" in each.getMessage())
    assert record.getMessage().endswith(r"has failed: no\nWARNING x")


def test_a_missing_answer_ends_the_connection() -> None:
    world = World()
    world.ask()
    world.runtime.advance(4.9)
    assert not world.lost
    world.runtime.advance(0.2)
    assert world.lost == ["no answer for 5 s"]


def test_an_answer_that_cannot_be_processed_ends_the_connection() -> None:
    world = World()

    def fails(_: FetchResponse) -> None:
        raise ValueError("no")

    world.ask(done=fails)
    world.say(answer(1, b"x"))
    assert len(world.lost) == 1


def test_a_connection_that_worked_is_made_again_at_once() -> None:
    world = World()
    world.ask()
    world.say(answer(1, b"x"))
    world.connection.transport.close()
    world.runtime.advance(0.001)
    assert world.connected == 2


def test_connecting_is_retried_with_growing_delays() -> None:
    world = World()
    world.connection.transport.close()
    world.broker.server.close()
    attempts: list[float] = []
    connect = world.runtime.connect

    def counted(*args: Any, **fields: Any) -> Any:
        attempts.append(world.runtime.monotonic())
        return connect(*args, **fields)

    world.runtime.connect = counted  # type: ignore[method-assign]
    world.runtime.advance(60)
    gaps = [after - before for before, after in itertools.pairwise(attempts)]
    assert gaps[0] < 0.1
    assert max(gaps) <= BACKOFF_MAX_S
    assert 50 < len(attempts) < 150
    world.client.close()
    count = len(attempts)
    world.runtime.advance(60)
    assert len(attempts) == count


def test_a_new_registration_ends_the_delay() -> None:
    world = World()
    world.connection.transport.close()
    world.broker.server.close()
    world.runtime.advance(30)
    world.broker = ScriptedBroker(world.runtime)
    world.client.reconnect()
    world.runtime.run_until_idle()
    assert world.connected == 2


def test_a_broker_with_a_new_address_is_connected_to_there() -> None:
    world = World()
    old = world.broker
    world.ask()
    world.client.reconnect()
    world.runtime.run_until_idle()
    assert (world.connected, world.lost) == (1, []), "no news of where it listens"
    world.broker = ScriptedBroker(world.runtime)  # and the old place still answers
    world.client.reconnect()
    world.runtime.run_until_idle()
    assert (world.connected, world.lost) == (2, ["the broker's address has changed"])
    assert old.connections[0].is_lost
    world.ask()
    world.say(answer(2, b"x"))
    assert world.answers == [(0, b"x")]


def test_a_closed_client_calls_nothing_back() -> None:
    world = World()
    world.ask()
    world.client.close()
    world.connection.transport.write(answer(1, b"x"))
    world.runtime.advance(10)
    assert not world.answers
    assert not world.lost
    assert world.broker.connections[0].is_lost
    world.broker = ScriptedBroker(world.runtime)
    world.client.reconnect()
    world.runtime.advance(10)
    assert (world.connected, world.broker.connections) == (1, []), "nor connects to the broker's new address"


def test_a_large_buffer_is_released_after_many_small_answers() -> None:
    world = World()
    world.ask()
    world.say(answer(1, b"x" * 2_000_000))
    connection = world.client._connection
    assert connection is not None
    assert len(connection._received.data) > 2_000_000
    for number in range(300):
        world.ask()
        world.say(answer(number + 2, b"y"))
    assert len(connection._received.data) < 500_000
    assert len(world.answers) == 301
