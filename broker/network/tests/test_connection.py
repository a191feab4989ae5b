"""A connection at its edges: reading, sending, pausing, turns and the end. No socket, and time is the test's."""

from __future__ import annotations

import logging
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.network.connection import BACKLOG_BYTES, KEPT_BUFFER_BYTES, SHARED_BUFFER_BYTES
from barnabas.broker.network.session import (
    CLOCK_CHECK_MASK,
    LARGE_ANSWER_BYTES,
    PIPELINED_PRODUCES_MAX,
    TURN_S,
    IllegalTransition,
)
from barnabas.broker.network.tests.doubles import (
    API_VERSIONS,
    FETCH,
    LIST_OFFSETS,
    PRODUCE,
    UNREADABLE,
    World,
    answer,
    request,
)
from barnabas.broker.requests.context import CLOSE_CONNECTION, NO_RESPONSE, PENDING
from barnabas.controller.link.framing import PREFACE, FrameReader
from barnabas.controller.link.messages import REFUSED, Refused, decode

REQUEST = request()
REQUESTS = 2000
SERVED_MAX = CLOCK_CHECK_MASK // len(REQUEST) + 1  # before the clock is looked at


def numbered(first: int, stop: int, **fields: int) -> bytes:
    return b"".join(request(number, **fields) for number in range(first, stop))


@pytest.fixture
def world() -> World:
    return World()


# -- turns


def test_costly_requests_in_one_read_are_served_in_turns(world: World) -> None:
    world.dispatcher.cost_s = TURN_S / 10
    world.receive(numbered(0, REQUESTS))
    assert 0 < len(world.dispatcher.served) <= SERVED_MAX
    assert not world.transport.is_reading, "nothing more is read before its next turn"
    turns = world.turns()
    assert sum(turns) == REQUESTS - SERVED_MAX
    assert max(turns) <= SERVED_MAX
    assert world.answers() == list(range(REQUESTS))
    assert world.transport.is_reading


def test_cheap_requests_are_served_in_one_turn(world: World) -> None:
    world.dispatcher.cost_s = TURN_S / REQUESTS / 2
    world.receive(REQUEST * REQUESTS)
    assert len(world.dispatcher.served) == REQUESTS
    assert world.transport.is_reading


def test_small_requests_with_large_answers_are_served_in_turns(world: World) -> None:
    world.dispatcher.cost_s = TURN_S / 10
    world.dispatcher.handlers = dict.fromkeys(
        range(REQUESTS), lambda _connection: [bytes(LARGE_ANSWER_BYTES + 1)]
    )
    world.receive(numbered(0, REQUESTS))
    assert len(world.dispatcher.served) <= SERVED_MAX
    assert max(world.turns()) <= SERVED_MAX
    assert len(world.dispatcher.served) == REQUESTS


def test_a_pending_request_holds_up_those_behind_it_and_no_turn_is_lost(world: World) -> None:
    world.dispatcher.cost_s = TURN_S / 10
    pending = SERVED_MAX + 3
    world.dispatcher.handlers[pending] = lambda _connection: PENDING
    world.receive(numbered(0, REQUESTS))
    world.turns()
    assert world.dispatcher.served[-1] == pending
    world.complete(pending)
    world.turns()
    assert world.answers() == list(range(REQUESTS))
    assert world.transport.is_reading


def test_an_answer_that_comes_between_two_turns_serves_nothing_twice(world: World) -> None:
    world.dispatcher.cost_s = TURN_S
    pending = SERVED_MAX - 1  # where the turn ends as well
    world.dispatcher.handlers[pending] = lambda _connection: PENDING
    world.receive(numbered(0, REQUESTS))
    world.complete(pending)
    world.turns()
    assert world.answers() == list(range(REQUESTS))
    assert world.transport.is_reading


def test_half_a_request_behind_costly_ones_is_kept(world: World) -> None:
    world.dispatcher.cost_s = TURN_S / 10
    last = request(REQUESTS)
    world.receive(numbered(0, REQUESTS) + last[:10])
    world.turns()
    assert len(world.dispatcher.served) == REQUESTS
    assert world.transport.is_reading
    world.receive(last[10:])
    world.turns()
    assert world.answers() == list(range(REQUESTS + 1))


def test_a_connection_closed_between_two_turns_serves_no_more(world: World) -> None:
    world.dispatcher.cost_s = TURN_S / 10
    world.receive(REQUEST * REQUESTS)
    served = len(world.dispatcher.served)
    world.connection.close()
    world.connection.connection_lost(None)
    world.turns()
    assert len(world.dispatcher.served) == served


def test_a_turn_begins_when_the_pending_request_is_answered(world: World) -> None:
    world.dispatcher.handlers[0] = lambda _connection: PENDING
    world.receive(numbered(0, REQUESTS))
    world.loop.moment += 10  # the client has waited for so long, the loop has not
    world.complete(0)
    assert len(world.dispatcher.served) == REQUESTS
    assert not world.loop.soon


def test_a_turn_begins_when_the_socket_has_taken_the_answers(world: World) -> None:
    world.socket.room = 0
    world.receive(request(0))
    world.receive(numbered(1, REQUESTS))
    world.loop.moment += 10
    world.drain()
    assert len(world.dispatcher.served) == REQUESTS
    assert not world.loop.soon


def test_nothing_is_read_between_two_turns_though_the_backlog_has_gone(world: World) -> None:
    world.dispatcher.handlers[0] = lambda _connection: PENDING
    count = BACKLOG_BYTES // len(REQUEST) + 10
    world.receive(numbered(0, count))
    assert not world.transport.is_reading, "the backlog is full"
    world.dispatcher.cost_s = TURN_S / 10
    world.complete(0)
    assert world.loop.soon, "its turn is over"
    assert not world.transport.is_reading
    world.turns()
    assert world.transport.is_reading
    world.receive_all(world.unread)
    assert world.answers() == list(range(count))


def test_nothing_is_read_between_two_turns_though_there_is_memory_again() -> None:
    world = World(**{"queued.max.request.bytes": "1000", "socket.request.max.bytes": "1000000"})
    assert world.shared.memory.grant(1000)
    frame = request(1, padding=500_000)
    world.receive(frame[:100])
    assert not world.transport.is_reading, "the frame has not been granted its size"
    world.connection._session.end_turn()
    world.connection._wait_for_turn()
    world.shared.memory.give_back(1000)
    assert not world.transport.is_reading
    world.turns()
    assert world.transport.is_reading
    world.receive(frame[100:])
    world.turns()
    assert world.answers() == [1]


def test_large_requests_end_their_turn(world: World) -> None:
    frames = [request(number, padding=2 * SHARED_BUFFER_BYTES) for number in range(3)]
    world.receive(frames[0])
    assert world.answers() == [0]
    assert not world.transport.is_reading
    assert world.turns() == [0]
    assert world.transport.is_reading


# -- requests that wait


def test_a_request_may_arrive_byte_by_byte(world: World) -> None:
    for byte in request(1) + request(2, padding=5000):
        world.receive(bytes([byte]))
    assert world.answers() == [1, 2]


@pytest.mark.parametrize("padding", [1000, 127 * 1024, 128 * 1024, 900_000, KEPT_BUFFER_BYTES + 1])
def test_frames_of_any_size_are_served(world: World, padding: int) -> None:
    for first in range(0, 9, 3):
        world.receive_all(numbered(first, first + 3, padding=padding))
    assert world.answers() == list(range(9))


def test_a_buffer_is_kept_between_large_frames_up_to_a_size(world: World) -> None:
    def buffer_after(padding: int) -> Any:
        world.receive(request(0, padding=padding))
        world.turns()
        return world.connection._received

    kept = buffer_after(900_000)
    assert kept is not None
    assert buffer_after(900_000) is kept
    assert buffer_after(KEPT_BUFFER_BYTES + 1) is None
    assert buffer_after(1000) is None


def test_a_buffer_grows_no_faster_than_bytes_arrive() -> None:
    world = World(**{"socket.request.max.bytes": "100000000"})
    frame = request(0, padding=90_000_000)
    for size in (1000, 10_000, 100_000):
        world.receive(frame[:size])
        received = world.connection._received
        assert received is not None
        assert len(received.data) <= 2 * received.filled + 64 * 1024


def test_reading_pauses_while_too_much_waits_behind_a_pending_request(world: World) -> None:
    world.dispatcher.handlers[0] = lambda _connection: PENDING
    count = 3 * BACKLOG_BYTES // len(REQUEST)
    world.receive(numbered(0, count))
    assert not world.transport.is_reading
    received = world.connection._received
    assert received is not None
    assert received.filled < BACKLOG_BYTES + SHARED_BUFFER_BYTES
    world.complete(0)
    world.turns()
    assert world.transport.is_reading
    world.receive_all(world.unread)
    assert world.answers() == list(range(count))


def test_nothing_is_served_while_the_client_takes_no_answers(world: World) -> None:
    world.socket.room = 5
    world.receive(request(0))
    for number in range(1, 5):  # each in a read of its own
        world.receive(request(number))
    assert world.dispatcher.served == [0]
    world.receive(numbered(5, 20_000))
    assert not world.transport.is_reading
    world.drain()
    world.turns()
    assert world.dispatcher.served[:5] == list(range(5))
    assert world.transport.is_reading
    world.receive_all(world.unread)
    assert world.answers() == list(range(20_000))


def test_a_large_answer_that_the_socket_does_not_take_holds_up_the_requests_behind_it(world: World) -> None:
    world.dispatcher.handlers[1] = lambda _connection: [bytes(LARGE_ANSWER_BYTES)]
    world.socket.room = 100
    world.receive(numbered(0, 4))
    assert world.dispatcher.served == [0, 1]
    world.drain()
    assert world.dispatcher.served == [0, 1, 2, 3]


# -- pending requests


def test_a_handler_may_complete_before_it_returns(world: World) -> None:
    def handler(connection: Any) -> Any:
        connection.complete(1, None)
        return PENDING

    world.dispatcher.handlers[1] = handler
    world.receive(numbered(0, 4))
    assert world.answers() == [0, 1, 2, 3]


def test_a_request_is_answered_once(world: World) -> None:
    world.dispatcher.handlers[0] = lambda _connection: PENDING
    world.receive(request(0))
    world.complete(0)
    with pytest.raises(IllegalTransition, match="complete in state READY"):
        world.complete(0)
    world.receive(request(1))
    assert world.answers() == [0, 1]


def test_a_request_without_an_answer_is_followed_by_the_next(world: World) -> None:
    world.dispatcher.handlers = {0: lambda _connection: NO_RESPONSE, 2: lambda _connection: PENDING}
    world.receive(numbered(0, 4))
    world.complete(2, NO_RESPONSE)
    assert world.answers() == [1, 3]


def test_an_answer_may_be_sent_later_for_a_request_without_one(world: World) -> None:
    world.dispatcher.handlers[0] = lambda _connection: NO_RESPONSE
    world.receive(numbered(0, 2))
    world.connection.send(answer(0))
    assert world.answers() == [1, 0]


@pytest.mark.parametrize("cut", [0, 3, 5, 6, 8], ids=lambda cut: f"{cut} bytes of the next request at first")
def test_a_pending_request_is_notified_of_the_next_one(world: World, cut: int) -> None:
    keys: list[int] = []

    def fetch(connection: Any) -> Any:
        connection.on_next_request(keys.append)
        return PENDING

    world.dispatcher.handlers[0] = fetch
    following = request(1, LIST_OFFSETS)
    world.receive(request(0, FETCH) + following[:cut])
    assert keys == ([LIST_OFFSETS] if cut >= 6 else [])
    world.receive(following[cut:])
    world.receive(request(2, API_VERSIONS))
    assert keys == [LIST_OFFSETS]
    world.complete(0)
    assert world.answers() == [0, 1, 2]


def test_a_request_that_begins_to_wait_late_is_notified_of_what_has_arrived(world: World) -> None:
    keys: list[int] = []
    world.dispatcher.handlers[0] = lambda _connection: PENDING
    world.receive(request(0, FETCH) + request(1, LIST_OFFSETS))
    world.connection.on_next_request(keys.append)
    assert keys == [LIST_OFFSETS]


def test_a_pending_request_is_notified_when_its_client_goes(world: World) -> None:
    gone: list[str] = []

    def handler(connection: Any) -> Any:
        connection.on_disconnect(lambda: gone.append("gone"))
        return PENDING

    world.dispatcher.handlers = {0: handler, 1: handler}
    world.receive(numbered(0, 2))
    world.complete(0)
    assert gone == []
    world.connection.connection_lost(None)
    assert gone == ["gone"]
    world.complete(1)  # too late
    assert world.answers() == [0]


# -- produces in line


def pipelined(world: World, *numbers: int) -> None:
    """These requests wait for other replicas."""

    def handler(number: int) -> Any:
        def produce(connection: Any) -> Any:
            connection.allow_pipelined_produces(number)
            return PENDING

        return produce

    for number in numbers:
        world.dispatcher.handlers[number] = handler(number)


def test_produces_behind_one_that_waits_for_replicas_are_served(world: World) -> None:
    pipelined(world, 0, 1)
    world.receive(numbered(0, 3, api_key=PRODUCE) + request(3, FETCH) + request(4, PRODUCE))
    assert world.dispatcher.served == [0, 1, 2]
    world.complete(1)
    assert world.answers() == []
    world.complete(0)
    assert world.answers() == [0, 1, 2, 3, 4]


def test_a_request_that_is_no_produce_waits_for_the_answers_in_line(world: World) -> None:
    pipelined(world, 0)
    world.receive(request(0, PRODUCE))
    world.receive(request(1, FETCH))
    world.receive(request(2, FETCH)[:7])
    assert world.dispatcher.served == [0]
    world.complete(0)
    world.receive(request(2, FETCH)[7:])
    assert world.answers() == [0, 1, 2]


def test_a_produce_may_get_its_place_in_line_late(world: World) -> None:
    world.dispatcher.handlers[0] = lambda _connection: PENDING
    world.receive(numbered(0, 3, api_key=PRODUCE))
    assert world.dispatcher.served == [0]
    world.connection.allow_pipelined_produces(0)  # type: ignore[arg-type]  # a context is a number here
    world.turns()
    assert world.dispatcher.served == [0, 1, 2]
    world.complete(0)
    assert world.answers() == [0, 1, 2]


def test_a_produce_gets_no_place_in_line_when_its_connection_has_ended(world: World) -> None:
    world.dispatcher.handlers[0] = lambda _connection: PENDING
    world.receive(numbered(0, 3, api_key=PRODUCE))
    world.connection.connection_lost(None)
    world.connection.allow_pipelined_produces(0)  # type: ignore[arg-type]  # a context is a number here
    world.turns()
    assert world.dispatcher.served == [0]


def test_only_so_many_produces_wait_in_line(world: World) -> None:
    count = PIPELINED_PRODUCES_MAX + 10
    pipelined(world, *range(count))
    world.receive(numbered(0, count, api_key=PRODUCE))
    assert len(world.dispatcher.served) == PIPELINED_PRODUCES_MAX
    for number in range(count):
        world.complete(number)
    assert world.answers() == list(range(count))


def test_a_produce_in_line_may_close_the_connection(world: World) -> None:
    pipelined(world, 0, 1)
    world.receive(numbered(0, 3, api_key=PRODUCE))
    world.complete(1, CLOSE_CONNECTION)
    assert not world.transport.is_aborted
    world.complete(0)
    assert world.answers() == [0]
    assert world.transport.is_aborted


def test_nothing_is_served_behind_a_close_in_line(world: World) -> None:
    pipelined(world, 0)
    world.dispatcher.handlers[1] = lambda _connection: CLOSE_CONNECTION
    world.receive(numbered(0, 3, api_key=PRODUCE))
    assert world.dispatcher.served == [0, 1]
    world.complete(0)
    assert world.answers() == [0]
    assert world.transport.is_aborted
    assert world.dispatcher.served == [0, 1]


# -- the end


def test_a_request_may_close_the_connection_behind_earlier_answers(world: World) -> None:
    world.dispatcher.handlers[2] = lambda _connection: CLOSE_CONNECTION
    world.receive(numbered(0, 4))
    assert world.answers() == [0, 1]
    assert world.transport.is_aborted
    assert not world.socket.is_open
    assert world.dispatcher.served == [0, 1, 2]


@pytest.mark.parametrize("is_early", [True, False])
def test_a_pending_request_may_close_the_connection(world: World, is_early: bool) -> None:
    def handler(connection: Any) -> Any:
        if is_early:
            connection.complete(1, CLOSE_CONNECTION)
        return PENDING

    world.dispatcher.handlers[1] = handler
    world.receive(numbered(0, 3))
    if not is_early:
        assert not world.transport.is_aborted
        world.complete(1, CLOSE_CONNECTION)
    assert world.answers() == [0]
    assert world.transport.is_aborted
    assert world.connection.closed


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (struct.pack(">i", -1), "a frame of -1 bytes (socket.request.max.bytes=5000)"),
        (struct.pack(">i", 5001), "a frame of 5001 bytes (socket.request.max.bytes=5000)"),
        (struct.pack(">i", 3) + b"abc", "a request that cannot be read: no header"),
        (request(1, UNREADABLE), "a request that cannot be read: API key 999 is not served"),
    ],
)
def test_what_is_no_request_closes_the_connection_behind_earlier_answers(
    frame: bytes, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(**{"socket.request.max.bytes": "5000"})
    world.receive(request(0) + frame + request(2))
    assert world.answers() == [0]
    assert world.transport.is_aborted
    assert world.dispatcher.served == [0]
    (said,) = caplog.messages
    assert said == f"closing connection of 127.0.0.1:1 on PLAINTEXT: {says}"


def test_a_handler_that_fails_closes_the_connection_behind_earlier_answers(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(_connection: Any) -> Any:
        raise RuntimeError("a defect")

    world.dispatcher.handlers[1] = handler
    world.receive(numbered(0, 3))
    assert world.answers() == [0]
    assert world.transport.is_aborted
    (said,) = caplog.records
    assert said.levelname == "ERROR"
    assert said.exc_info is not None


def test_an_answer_without_an_encoding_closes_the_connection(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.dispatcher.handlers[0] = lambda _connection: PENDING
    world.receive(request(0))
    world.complete(2**40)  # is no correlation id
    assert world.transport.is_aborted
    assert "cannot be sent; closing" in caplog.text


def test_a_client_that_has_gone_ends_its_connection(world: World) -> None:
    world.socket.error = ConnectionResetError()
    world.receive(request(0))
    assert world.transport.is_aborted
    assert world.connection.closed


def test_a_node_that_takes_the_port_for_a_controllers_is_refused_in_its_own_protocol(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.receive(PREFACE + bytes(20))
    ((kind, payload),) = FrameReader().read(bytes(world.socket.sent))
    assert kind == REFUSED
    assert "PLAINTEXT is a listener for clients" in decode(payload, Refused).reason
    assert world.transport.is_aborted
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_lost_connection_gives_up_its_descriptors_at_once(world: World, is_waiting: bool) -> None:
    """The transport closes its own next, and the number is that of another connection then."""
    if is_waiting:
        world.socket.room = 0
        world.receive(request(0))
        assert world.socket.dups == 1
    world.connection.connection_lost(None)
    assert not world.socket.is_open
    assert world.socket.dups == 0
    assert not world.loop.writers


def test_a_connection_with_one_of_the_last_descriptors_is_a_warning(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world._connect()
    assert not caplog.messages
    world.shared.files_max = 60
    world._connect()
    world._connect()
    (said,) = caplog.messages
    assert "may have 60 descriptors open" in said


def test_a_tls_handshake_is_refused(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.receive(b"\x16\x03\x01\x02\x00" + bytes(100))
    assert world.transport.is_aborted
    assert not world.socket.sent
    (said,) = caplog.messages
    assert said.startswith("127.0.0.1: a TLS handshake on the listener PLAINTEXT")


def test_idle_connections_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "barnabas.connection")
    world = World(**{"connections.max.idle.ms": "10000"})
    world.receive(request(0))
    world.loop.moment += 9
    world.connection.close_if_idle_since(world.loop.moment - 10)
    assert not world.transport.is_aborted
    world.receive(request(1))
    world.loop.moment += 9
    world.connection.close_if_idle_since(world.loop.moment - 10)
    assert not world.transport.is_aborted
    world.loop.moment += 2
    world.connection.close_if_idle_since(world.loop.moment - 10)
    assert world.transport.is_aborted
    assert caplog.messages == ["closing idle connection of 127.0.0.1:1 on PLAINTEXT"]


# -- limits


def test_a_connection_that_is_not_admitted_is_read_and_served_later() -> None:
    world = World(**{"max.connections": "1"})
    first = world.connection, world.transport
    world.socket, world.transport, world.connection = world._connect()
    world.receive(numbered(0, 3))
    assert world.dispatcher.served == []
    first[0].close()
    first[0].connection_lost(None)
    assert world.answers() == [0, 1, 2]


def test_a_frame_waits_for_memory_and_goes_on_where_it_was() -> None:
    world = World(**{"queued.max.request.bytes": "1000", "socket.request.max.bytes": "1000000"})
    memory = world.shared.memory
    assert memory.grant(1000)
    frame = request(1, padding=500_000)
    world.receive(frame)
    assert not world.transport.is_reading
    assert len(world.unread) >= len(frame) - SHARED_BUFFER_BYTES
    memory.give_back(1000)
    assert world.transport.is_reading
    world.receive_all(world.unread)
    assert world.answers() == [1]
    assert memory.granted == 0


# -- everything together

KINDS = st.sampled_from(["answer", "answer", "pending", "pipelined", "early", "no response", "large"])


@pytest.mark.slow
@given(
    st.lists(st.tuples(KINDS, st.booleans(), st.sampled_from([0, 12, 3000, 70_000, 300_000])), max_size=25),
    st.randoms(use_true_random=False),
    st.sampled_from([0.0, TURN_S / 3, TURN_S * 2]),
    st.sampled_from(["-1", "100000"]),
)
def test_every_request_is_answered_once_and_in_order(
    requests: list[tuple[str, bool, int]], random: Any, cost_s: float, memory_limit: str
) -> None:
    world = World(**{"queued.max.request.bytes": memory_limit})
    world.dispatcher.cost_s = cost_s
    open_requests: list[int] = []

    def handler(number: int, kind: str) -> Any:
        def handle(connection: Any) -> Any:
            if kind == "early":
                connection.complete(number, None)
                return PENDING
            if kind == "no response":
                return NO_RESPONSE
            if kind == "large":
                return [answer(number), bytes(LARGE_ANSWER_BYTES - LARGE_ANSWER_BYTES % 8)]
            open_requests.append(number)
            if kind == "pipelined":
                connection.allow_pipelined_produces(number)
            return PENDING

        return handle

    data = b""
    expected: list[int] = []
    for number, (kind, is_produce, padding) in enumerate(requests, 1):
        if kind != "answer":
            world.dispatcher.handlers[number] = handler(number, kind)
        is_produce = is_produce or kind == "pipelined"
        data += request(number, PRODUCE if is_produce else FETCH, padding)
        expected += [] if kind == "no response" else [number]
    while len([number for number in world.answers() if number]) < len(expected) or data:
        steps = [world.turns, world.drain, lambda: world.drain(random.randrange(40_000))]
        if data and world.transport.is_reading:

            def receive() -> None:
                nonlocal data
                count = random.choice([1, 10, 1000, 200_000])
                world.receive(data[:count])
                data = world.unread + data[count:]

            steps += [receive] * 5
        if open_requests:
            steps.append(lambda: world.complete(open_requests.pop(random.randrange(len(open_requests)))))
        random.choice(steps)()
        assert not world.transport.is_aborted
    world.drain()
    world.turns()
    assert [number for number in world.answers() if number] == expected
    assert world.transport.is_reading
    assert world.connection._received is None or not world.connection._received.filled
    assert world.shared.memory.granted == 0
