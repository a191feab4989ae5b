"""The HTTP server in virtual time, without sockets: its bounds."""

from __future__ import annotations

import pytest

from barnabas.runtime.http import Head, HttpError
from barnabas.runtime.http_server import Bounds, HttpRequest, HttpServer
from compat_tests.virtual.runtime import VirtualRuntime

PORT = 8080
BOUNDS = Bounds(
    connections=5,
    unfinished=3,
    head_bytes=200,
    body_bytes=100,
    held_bytes=150,
    request_s=60,
    idle_s=10,
    answer_s=30,
)


class Transport:
    def __init__(self) -> None:
        self.written = b""
        self.is_closing = False
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        assert not self.is_closing
        self.written += data

    def close(self) -> None:
        self.is_closing = True

    def abort(self) -> None:
        self.is_aborted = True


class World:
    """A server whose service answers when the test says so."""

    def __init__(self) -> None:
        self.runtime = VirtualRuntime()
        self.server = HttpServer(self.runtime, "", PORT, self, BOUNDS)
        self.waiting: list[HttpRequest] = []

    def check(self, head: Head) -> None:
        if head.target == "/forbidden":
            raise HttpError(403, "forbidden")

    def serve(self, request: HttpRequest) -> None:
        self.waiting.append(request)

    def refuse(self, request: HttpRequest, error: HttpError) -> None:
        request.respond(error.status, "text/plain", str(error).encode())


class Client:
    def __init__(self, world: World, data: bytes = b"") -> None:
        self.transport = Transport()
        self.request: HttpRequest = world.runtime.listening[PORT]()
        self.request.connection_made(self.transport)
        self.request.data_received(data)

    @property
    def status(self) -> int:
        """Of its answer; 0: none."""
        return int(self.transport.written.split(b" ")[1]) if self.transport.written else 0


def post(length: int, sent: int, target: str = "/") -> bytes:
    return f"POST {target} HTTP/1.1\r\nContent-Length: {length}\r\n\r\n".encode() + bytes(sent)


@pytest.fixture
def world() -> World:
    return World()


def test_a_request_is_served_once_it_is_whole_and_answered_later(world: World) -> None:
    client = Client(world, post(10, 4))
    assert world.waiting == []
    client.request.data_received(b"123456")
    assert client.request.eof_received(), "its answer is still to come"
    (request,) = world.waiting
    assert request.head.method == "POST"
    assert request.take_body() == bytes(4) + b"123456"
    request.respond(200, "text/plain", b"done")
    assert client.transport.written.endswith(b"\r\n\r\ndone")
    assert client.transport.is_closing
    request.respond(500, "text/plain", b"again")
    assert client.status == 200


def test_a_head_may_be_refused_before_its_body_arrives(world: World) -> None:
    assert Client(world, post(10, 0, "/forbidden")).status == 403
    assert Client(world, b"nonsense\n\n").status == 400
    assert world.waiting == []


def test_a_client_that_ends_its_request_early_gets_no_answer(world: World) -> None:
    client = Client(world, post(10, 4))
    assert not client.request.eof_received()
    client.request.connection_lost(None)
    assert client.status == 0
    assert not world.server.requests


def test_an_answer_to_a_client_that_has_left_is_dropped(world: World) -> None:
    client = Client(world, post(0, 0))
    client.request.connection_lost(None)
    world.waiting[0].respond(200, "text/plain", b"")
    assert client.status == 0


def test_the_oldest_unfinished_request_makes_room(world: World) -> None:
    clients = [Client(world) for _ in range(BOUNDS.unfinished + 1)]
    assert [client.transport.is_aborted for client in clients] == [True, False, False, False]


def test_the_oldest_answer_that_is_not_read_makes_room(world: World) -> None:
    clients = [Client(world, post(0, 0)) for _ in range(BOUNDS.connections)]
    assert Client(world).transport.is_aborted, "all others are being served"
    for request in world.waiting[2:4]:
        request.respond(200, "text/plain", b"")
    assert not Client(world).transport.is_aborted
    assert [client.transport.is_aborted for client in clients] == [False, False, True, False, False]


def test_bodies_are_bounded_over_all_connections(world: World) -> None:
    first, second = Client(world, post(100, 60)), Client(world, post(100, 60))
    third = Client(world, post(100, 60))
    assert [client.transport.is_aborted for client in (first, second, third)] == [True, False, False]
    second.request.data_received(bytes(40))  # is whole now, and is served
    assert third.transport.is_aborted
    assert Client(world, post(100, 60)).status == 503, "no unfinished request is left to make room"
    world.waiting[0].respond(200, "text/plain", b"")
    Client(world, post(100, 100))
    assert len(world.waiting) == 2


def test_a_request_must_not_pause(world: World) -> None:
    client = Client(world, post(100, 0))
    for _ in range(3):
        world.runtime.advance(BOUNDS.idle_s - 0.1)
        client.request.data_received(b"x")
    assert client.status == 0
    world.runtime.advance(BOUNDS.idle_s + 0.1)
    assert client.status == 408


def test_a_request_must_arrive_in_time(world: World) -> None:
    client = Client(world, post(100, 0))
    for _ in range(int(BOUNDS.request_s)):
        assert client.status == 0
        world.runtime.advance(1.0)
        client.request.data_received(b"x")
    assert client.status == 408


def test_an_answer_must_be_read_in_time(world: World) -> None:
    client = Client(world, post(0, 0))
    world.runtime.advance(2 * BOUNDS.request_s)
    assert client.status == 0, "the service may take its time"
    world.waiting[0].respond(200, "text/plain", b"")
    world.runtime.advance(BOUNDS.answer_s - 0.1)
    assert not client.transport.is_aborted
    world.runtime.advance(0.2)
    assert client.transport.is_aborted


def test_closing_ends_all_connections(world: World) -> None:
    clients = [Client(world), Client(world, post(0, 0))]
    world.server.close()
    assert all(client.transport.is_aborted for client in clients)
    assert not world.runtime.listening


def test_a_stream_goes_on_until_its_client_leaves(world: World) -> None:
    client = Client(world, post(0, 0))
    (request,) = world.waiting
    ends: list[int] = []
    request.stream("text/event-stream", "X: y\r\n", lambda: ends.append(1))
    head, _, body = client.transport.written.partition(b"\r\n\r\n")
    assert b"X: y" in head
    assert b"Content-Length" not in head
    assert body == b""
    world.runtime.advance(10 * BOUNDS.answer_s)
    request.write(b"1")
    request.respond(500, "text/plain", b"an error")
    request.write(b"2")
    assert client.transport.written.endswith(b"\r\n\r\n12")
    assert not client.request.eof_received(), "the connection is closed"
    client.request.connection_lost(None)
    request.write(b"3")
    assert client.transport.written.endswith(b"12")
    assert ends == [1]


def test_a_stream_may_end(world: World) -> None:
    client = Client(world, post(0, 0))
    ends: list[int] = []
    world.waiting[0].stream("text/plain", "", lambda: ends.append(1))
    world.waiting[0].end_stream()
    assert client.transport.is_closing
    world.waiting[0].end_stream()
    world.waiting[0].write(b"late")
    world.runtime.advance(BOUNDS.answer_s + 0.1)
    assert client.transport.is_aborted
    assert ends == [1]


def test_a_stream_of_a_client_that_does_not_read_ends(world: World) -> None:
    client = Client(world, post(0, 0))
    (request,) = world.waiting
    request.stream("text/plain", "", lambda: None)
    client.request.pause_writing()
    assert request.is_congested
    world.runtime.advance(BOUNDS.answer_s - 1)
    client.request.resume_writing()
    assert not request.is_congested
    client.request.pause_writing()
    world.runtime.advance(BOUNDS.answer_s - 1)
    assert not client.transport.is_aborted
    world.runtime.advance(2)
    assert client.transport.is_aborted


def test_a_stream_for_a_client_that_has_left_ends_at_once(world: World) -> None:
    client = Client(world, post(0, 0))
    client.request.connection_lost(None)
    ends: list[int] = []
    world.waiting[0].stream("text/plain", "", lambda: ends.append(1))
    assert (client.status, ends) == (0, [1])
