"""The driver: blocking sockets that send prepared bytes and read whole responses.

Every loop checks that the broker did the work (error codes, offsets that add up, sizes of fetched batches), so
that a fast refusal is not measured as a fast answer.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable

from compat_tests.bench import prepared

_RECEIVE_BUFFER = 4 << 20

# Secures a connected socket: a TLS handshake, a login, or both.
Secure = Callable[[socket.socket], socket.socket]


class Connection:
    """One connection to a broker at host:port."""

    def __init__(
        self, address: str, receive_buffer: int = _RECEIVE_BUFFER, secure: Secure | None = None
    ) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if secure is not None:
            self.socket = secure(self.socket)
        self._buffer = memoryview(bytearray(receive_buffer))

    def send(self, request: bytes) -> None:
        """Hand all of it to the kernel."""
        self.socket.sendall(request)

    def receive(self) -> memoryview:
        """The next whole response, its size included; valid until the next call."""
        received = self._receive_until(0, 4)
        (size,) = struct.unpack_from(">i", self._buffer)
        end = 4 + size
        self._receive_until(received, end)
        return self._buffer[:end]

    def ask(self, request: bytes) -> memoryview:
        """Send one request and wait for its response."""
        self.socket.sendall(request)
        return self.receive()

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def _receive_until(self, received: int, wanted: int) -> int:
        while received < wanted:
            count = self.socket.recv_into(self._buffer[received:wanted])
            if not count:
                raise ConnectionError("the broker closed the connection")
            received += count
        return received


def produce_many(
    address: str,
    topic: str,
    batch: bytes,
    records: int,
    requests: int,
    *,
    acks: int = 1,
    connections: int = 1,
    secure: Secure | None = None,
    first_offset: int = 0,
) -> float:
    """Produce the same batch of `records` records `requests` times, in turn over the connections; seconds taken.

    Five are in flight on one connection, one on each of several. `first_offset`: the end of the log before.
    """
    opened = [Connection(address, secure=secure) for _ in range(connections)]
    request = prepared.produce(topic, batch, acks)
    window = 5 if connections == 1 else connections
    offset = -1
    started = time.perf_counter()
    for sent in range(requests + window):
        connection = opened[sent % connections]
        if sent >= window:
            offset = max(offset, _acknowledged(topic, connection.receive()))
        if sent < requests:
            connection.send(request)
    seconds = time.perf_counter() - started
    for connection in opened:
        connection.close()
    assert offset == first_offset + (requests - 1) * records, f"the last batch got offset {offset}"
    return seconds


def fetch_many(
    address: str,
    topic: str,
    batch_size: int,
    records: int,
    requests: int,
    in_flight: int,
    secure: Secure | None = None,
) -> float:
    """Fetch `requests` batches of `batch_size` bytes and `records` records, one a request; seconds taken."""
    connection = Connection(address, secure=secure)
    prepared_requests = [prepared.fetch(topic, i * records, batch_size) for i in range(requests)]
    started = time.perf_counter()
    for sent in range(requests + in_flight):
        if sent >= in_flight:
            response = connection.receive()
            error = prepared.fetched_error(topic, response)
            assert error == 0, f"error {error}"
            assert batch_size < len(response) < batch_size + 500, f"a response of {len(response)} bytes"
        if sent < requests:
            connection.send(prepared_requests[sent])
    seconds = time.perf_counter() - started
    connection.close()
    return seconds


def produce_small(
    address: str,
    topic: str,
    batch: bytes,
    requests: int,
    connections: int,
    in_flight: int,
    secure: Secure | None = None,
    receive_buffer: int = _RECEIVE_BUFFER,
) -> float:
    """Produce a batch of one record `requests` times, evenly over the connections; seconds taken.

    Responses are all of one size, so they are counted by their bytes; as many requests as were answered go
    out again in one send, as a busy client's do.
    """
    opened = [Connection(address, receive_buffer, secure) for _ in range(connections)]
    request = prepared.produce(topic, batch)
    size = len(opened[0].ask(request))
    share = (requests - 1) // connections
    left = {c.socket.fileno(): share - in_flight for c in opened}
    unanswered = {c.socket.fileno(): share * size for c in opened}
    sockets = {c.socket.fileno(): c.socket for c in opened}
    tails = dict.fromkeys(sockets, b"")
    poll = select.epoll()
    for number in sockets:
        poll.register(number, select.EPOLLIN)
    started = time.perf_counter()
    for one in sockets.values():
        one.sendall(request * in_flight)
    while sockets:
        for number, _ in poll.poll(30):
            data = sockets[number].recv(65536)
            assert data, "the broker closed the connection"
            before = unanswered[number]
            unanswered[number] = after = before - len(data)
            tails[number] = (tails[number] + data)[-size:]
            # whole responses among what was received, counted from the end of the run
            answered = -(-before // size) - -(-after // size)
            more = min(answered, left[number])
            if more:
                left[number] -= more
                sockets[number].sendall(request * more)
            if after == 0:
                poll.unregister(number)
                del sockets[number]
    seconds = time.perf_counter() - started
    last = max(_acknowledged(topic, tail) for tail in tails.values())
    for connection in opened:
        connection.close()
    assert last == share * connections, f"the last record got offset {last} of {share * connections}"
    return seconds


def feed_tail(address: str, topic: str, batch: bytes, records: int, batches: int, consumers: int) -> float:
    """Produce batches one by one to consumers whose fetches wait for them; seconds taken.

    Two batches are in flight: while the consumers receive one, the next comes in.
    """
    producer = Connection(address)
    opened = [Connection(address) for _ in range(consumers)]
    request = prepared.produce(topic, batch)
    started = time.perf_counter()
    producer.send(request)
    for number in range(batches):
        fetch = prepared.fetch(topic, number * records, len(batch), max_wait_ms=10_000)
        for consumer in opened:
            consumer.send(fetch)
        if number + 1 < batches:
            producer.send(request)
        for consumer in opened:
            response = consumer.receive()
            assert prepared.fetched_error(topic, response) == 0
            assert len(response) > len(batch), "the fetch came back empty"
        _acknowledged(topic, producer.receive())
    seconds = time.perf_counter() - started
    for connection in (producer, *opened):
        connection.close()
    return seconds


def wait_until_served(address: str, topic: str, timeout: float = 30) -> None:
    """Wait until the topic's partition answers, which in Kafka takes a moment after the topic's creation."""
    connection = Connection(address)
    request = prepared.fetch(topic, 0, 1, max_wait_ms=0)
    deadline = time.perf_counter() + timeout
    while prepared.fetched_error(topic, connection.ask(request)) != 0:
        assert time.perf_counter() < deadline, f"{topic} is not served after {timeout} s"
        time.sleep(0.01)
    connection.close()


def first_produce(address: str, topic: str, batch: bytes, timeout: float = 60) -> None:
    """Wait until the broker, which may still be starting, has acknowledged a record in a topic that it creates."""
    deadline = time.perf_counter() + timeout
    while True:
        try:
            connection = Connection(address)
            connection.ask(prepared.metadata(topic))
            error, _ = prepared.produced(topic, connection.ask(prepared.produce(topic, batch)))
            connection.close()
            if error == 0:
                return
        except OSError:
            pass
        assert time.perf_counter() < deadline, f"no produce was acknowledged within {timeout} s"
        time.sleep(0.001)


def _acknowledged(topic: str, response: bytes | memoryview) -> int:
    error, offset = prepared.produced(topic, response)
    assert error == 0, f"the produce was refused with error {error}"
    return offset
