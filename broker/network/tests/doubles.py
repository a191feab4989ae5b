"""A connection without a socket: its loop, its transport and its dispatcher are the test's."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import Any

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.network.connection import Connection, Connections
from barnabas.broker.requests.context import Outcome
from barnabas.wire.primitives import DecodeError
from compat_tests.virtual.runtime import VirtualRuntime

PRODUCE, FETCH, LIST_OFFSETS, API_VERSIONS = 0, 1, 2, 18
UNREADABLE = 999  # an API key that the dispatcher refuses


def request(number: int = 7, api_key: int = API_VERSIONS, padding: int = 12) -> bytes:
    """A frame whose correlation id is `number`."""
    return struct.pack(">ihhi", 8 + padding, api_key, 0, number) + bytes(padding)


def answer(number: int) -> bytes:
    return struct.pack(">ii", 4, number)


class ManualLoop(VirtualRuntime):
    """The time is what the test sets, and `call_soon` waits for `turns`."""

    def __init__(self) -> None:
        super().__init__()
        self.moment = 100.0
        self.soon: deque[Callable[[], object]] = deque()
        self.writers: dict[int, Callable[[], object]] = {}

    def monotonic(self) -> float:
        return self.moment

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.soon.append(callback)

    def add_writer(self, descriptor: int, callback: Callable[[], object]) -> None:
        self.writers[descriptor] = callback

    def remove_writer(self, descriptor: int) -> None:
        del self.writers[descriptor]


class ScriptedDispatcher:
    """Answers every request with its number, unless `handlers` has something else for that number.

    A context is the request's number."""

    def __init__(self, loop: ManualLoop) -> None:
        self.loop = loop
        self.cost_s = 0.0  # of every request
        self.served: list[int] = []
        self.handlers: dict[int, Callable[[Any], bytes | list[Any] | Outcome]] = {}

    def dispatch(self, connection: Any, data: memoryview, start: int, stop: int) -> Any:
        if stop - start < 8:
            raise DecodeError("no header")
        api_key, _, number = struct.unpack_from(">hhi", data, start)
        if api_key == UNREADABLE:
            raise DecodeError(f"API key {api_key} is not served")
        self.served.append(number)
        self.loop.moment += self.cost_s
        handler = self.handlers.get(number)
        return answer(number) if handler is None else handler(connection)

    def encode(self, context: int, _response: object) -> bytes:
        return answer(context)


class Socket:
    """Takes `room` bytes more; the rest waits until the test makes room."""

    def __init__(self) -> None:
        self.room = 1 << 60
        self.sent = bytearray()
        self.is_open = True
        self.dups = 0
        self.error: OSError | None = None

    def dup(self) -> Socket:
        self.dups += 1
        return self

    def detach(self) -> None:
        self.is_open = False

    def fileno(self) -> int:
        return 3

    def send(self, data: bytes | memoryview, _flags: int = 0) -> int:
        if self.error is not None:
            raise self.error
        if not self.room:
            raise BlockingIOError
        count = min(self.room, len(data))
        self.room -= count
        self.sent += data[:count]
        return count

    def close(self) -> None:
        self.dups -= 1


class Transport:
    """Of the socket, as far as a connection uses it."""

    def __init__(self, socket: Socket) -> None:
        self.socket = socket
        self.is_reading = True
        self.is_aborted = False

    def get_extra_info(self, name: str, _default: Any = None) -> Any:
        return self.socket if name == "socket" else ("127.0.0.1", 1)

    def pause_reading(self) -> None:
        assert not self.is_aborted, "uvloop refuses this on a closed transport"
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_aborted, "uvloop refuses this on a closed transport"
        self.is_reading = True

    def abort(self) -> None:
        self.is_aborted = True


class World:
    """One connection, and what its client and the loop do."""

    def __init__(self, **properties: str) -> None:
        self.loop = ManualLoop()
        self.dispatcher = ScriptedDispatcher(self.loop)
        config = BrokerConfig.from_properties({"connections.max.idle.ms": "-1", **properties})
        self.shared = Connections(self.loop, self.dispatcher, config)  # type: ignore[arg-type]  # a double
        self.unread = b""  # of what `receive` was given: the connection does not read
        self.socket, self.transport, self.connection = self._connect()

    def _connect(self) -> tuple[Socket, Transport, Connection]:
        socket = Socket()
        transport = Transport(socket)
        connection = Connection(self.shared, "PLAINTEXT")
        connection.connection_made(transport)
        return socket, transport, connection

    def receive(self, data: bytes) -> None:
        """The loop reads all of it, as far as the connection wants to read."""
        while data and self.transport.is_reading and not self.transport.is_aborted:
            room = self.connection.get_buffer(-1)
            assert room, "an empty buffer is fatal to the loop"
            count = min(len(room), len(data))
            room[:count] = data[:count]
            data = data[count:]
            self.connection.buffer_updated(count)
        self.unread = data

    def receive_all(self, data: bytes) -> None:
        """The loop reads all of it, in as many turns as that takes."""
        self.unread = data
        while self.unread:
            self.receive(self.unread)
            served = self.turns()
            assert served or not self.unread, "it does not read on"

    def complete(self, number: int, response: Outcome | None = None) -> None:
        self.connection.complete(number, response)  # type: ignore[arg-type]  # a context is a number here

    def turns(self) -> list[int]:
        """Let the loop run until nothing is scheduled: how many requests were served in each turn."""
        served: list[int] = []
        while self.loop.soon:
            before = len(self.dispatcher.served)
            self.loop.soon.popleft()()
            served.append(len(self.dispatcher.served) - before)
        return served

    def drain(self, room: int = 1 << 60) -> None:
        """The socket takes so much more."""
        self.socket.room = room
        for callback in tuple(self.loop.writers.values()):
            callback()

    def answers(self) -> list[int]:
        """The numbers of the answers that have been sent whole."""
        whole = len(self.socket.sent) // 8 * 8
        return [number for _, number in struct.iter_unpack(">ii", self.socket.sent[:whole])]
