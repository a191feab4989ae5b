"""An HTTP/1.1 server on a runtime: one request per connection, bounded in number, bytes and time.

The service gets a complete request, and responds then or later, with a response of a known length or with a stream that it
writes for as long as the client stays. At the limits the connection with the oldest unfinished request is closed for a new
one, or else the one with the oldest response that the client has not read.
"""

from __future__ import annotations

import enum
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from barnabas.runtime.http import Head, HttpError, RequestParser, encode_head, encode_response

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.runtime.interface import Runtime, Server, Timer


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one server."""

    connections: int
    unfinished: int  # connections with unfinished requests
    head_bytes: int
    body_bytes: int | None = None  # of one request; None: requests have no body
    held_bytes: int = 0  # bodies of all requests without a response
    request_s: float  # for a whole request to arrive
    idle_s: float  # between two reads of a request
    answer_s: float  # for a response to be read


class Service(Protocol):
    """The handler of a server's requests."""

    def check(self, head: Head) -> None:
        """Check the head of a request before its body arrives. HttpError."""
        ...

    def serve(self, request: HttpRequest) -> None:
        """Respond to a complete request, now or later. HttpError."""
        ...

    def refuse(self, request: HttpRequest, error: HttpError) -> None:
        """Respond with an error."""
        ...


class State(enum.Enum):
    """The state of a request."""

    READING = enum.auto()
    SERVING = enum.auto()
    STREAMING = enum.auto()
    ANSWERED = enum.auto()  # until the client has read it
    CLOSED = enum.auto()


class HttpServer:
    """A listening server. OSError when the address cannot be listened on."""

    def __init__(self, runtime: Runtime, host: str, port: int, service: Service, bounds: Bounds) -> None:
        self.runtime = runtime
        self.service = service
        self.bounds = bounds
        self.requests: dict[HttpRequest, None] = {}  # in the order of their connections
        self._held_bytes = 0
        self._server: Server = runtime.listen(host, port, partial(HttpRequest, self))
        self.port = self._server.port

    def close(self) -> None:
        """Stop listening, and end all connections."""
        self._server.close()
        for request in tuple(self.requests):
            request.abort()

    def admit(self, request: HttpRequest) -> bool:
        """Whether there is room for one more connection, if necessary by closing another."""
        unfinished = self._in_state(State.READING)
        if len(unfinished) >= self.bounds.unfinished:
            unfinished[0].abort()
        elif len(self.requests) >= self.bounds.connections:
            ended = unfinished or self._in_state(State.ANSWERED)
            if not ended:
                return False
            ended[0].abort()
        self.requests[request] = None
        return True

    def hold(self, request: HttpRequest, count: int) -> None:
        """Count more bytes of a body. At the limit the oldest unfinished requests are closed, or else HttpError."""
        request.held_bytes += count
        self._held_bytes += count
        for other in self._in_state(State.READING):
            if self._held_bytes <= self.bounds.held_bytes:
                return
            if other is not request:
                other.abort()
        if self._held_bytes > self.bounds.held_bytes:
            raise HttpError(503, f"requests hold {self.bounds.held_bytes} bytes already")

    def release(self, request: HttpRequest) -> None:
        """Release the bytes of its body."""
        self._held_bytes -= request.held_bytes
        request.held_bytes = 0

    def _in_state(self, state: State) -> list[HttpRequest]:
        return [each for each in self.requests if each.state is state]


class HttpRequest:
    """One connection with its request. Called by the event loop as asyncio's protocols are."""

    def __init__(self, server: HttpServer) -> None:
        self.state = State.READING
        self.held_bytes = 0
        self._on_end: Callable[[], object] | None = None  # of a stream
        self._is_congested = False
        self._server = server
        self._transport: Any = None
        self._parser = RequestParser(server.bounds.head_bytes, server.bounds.body_bytes)
        self._timer: Timer | None = None
        self._arrived_at = self._read_at = server.runtime.monotonic()

    @property
    def head(self) -> Head:
        """The head; it must have arrived."""
        assert self._parser.head is not None
        return self._parser.head

    def take_body(self) -> bytes:
        """The body, once."""
        body, self._parser.body = bytes(self._parser.body), bytearray()
        return body

    def respond(self, status: int, content_type: str, body: bytes, headers: str = "") -> None:
        """Send the response, and close the connection once it is read. Without effect when the connection has ended."""
        if self.state in (State.STREAMING, State.ANSWERED, State.CLOSED):
            return
        self._end(State.ANSWERED)
        self._transport.write(encode_response(status, content_type, body, headers))
        self._close()

    def stream(self, content_type: str, headers: str, on_end: Callable[[], object]) -> None:
        """Begin a response that `write` continues and `end_stream` ends. `on_end()`: once, when it has ended in any way."""
        if self.state in (State.STREAMING, State.ANSWERED, State.CLOSED):
            on_end()
            return
        self._end(State.STREAMING)
        self._on_end = on_end
        self._transport.write(encode_head(200, content_type, headers))

    @property
    def is_congested(self) -> bool:
        """Whether the client of a stream has not read enough of it: what is written now waits in memory. The connection is closed
        when that takes longer than the server's answer_s."""
        return self._is_congested

    def write(self, data: bytes) -> None:
        """The next part of a stream. Without effect when it has ended."""
        if self.state is State.STREAMING:
            self._transport.write(data)

    def end_stream(self) -> None:
        """End a stream once the client has read it."""
        if self.state is State.STREAMING:
            self._end(State.ANSWERED)
            self._close()

    def _close(self) -> None:
        self._transport.close()
        self._timer = self._server.runtime.call_later(self._server.bounds.answer_s, self._transport.abort)

    def abort(self) -> None:
        """End the connection at once."""
        self._end(State.CLOSED)
        self._server.requests.pop(self, None)
        self._transport.abort()

    # -- called by the event loop

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if self._server.admit(self):
            self._check_time()
        else:
            self.abort()

    def data_received(self, data: bytes) -> None:
        if self.state is not State.READING:
            return
        self._read_at = self._server.runtime.monotonic()
        parser, service = self._parser, self._server.service
        is_checked = parser.head is not None
        try:
            is_whole = parser.feed(data)
            if parser.head is not None and not is_checked:
                service.check(parser.head)
            self._server.hold(self, len(parser.body) - self.held_bytes)
            if is_whole:
                self.state = State.SERVING
                self._cancel()
                service.serve(self)
        except HttpError as error:
            service.refuse(self, error)

    def eof_received(self) -> bool:
        return self.state is State.SERVING  # the response is still to come

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the loop's shape
        self._end(State.CLOSED)
        self._server.requests.pop(self, None)

    def pause_writing(self) -> None:
        """A response of a known length is written at once; a stream waits."""
        self._is_congested = True
        if self.state is State.STREAMING:
            self._timer = self._server.runtime.call_later(self._server.bounds.answer_s, self.abort)

    def resume_writing(self) -> None:
        self._is_congested = False
        if self.state is State.STREAMING:
            self._cancel()

    # -- time

    def _check_time(self) -> None:
        """Refuse a request that has not arrived in time; otherwise check again at its deadline."""
        bounds, now = self._server.bounds, self._server.runtime.monotonic()
        left_s = min(self._arrived_at + bounds.request_s, self._read_at + bounds.idle_s) - now
        if left_s > 0:
            self._timer = self._server.runtime.call_later(left_s, self._check_time)
        else:
            text = f"a request must come without pauses, within {bounds.request_s:g} s"
            self._server.service.refuse(self, HttpError(408, text))

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, state: State) -> None:
        self.state = state
        self._cancel()
        self._server.release(self)
        self._parser.body = bytearray()
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()
