"""A core nats-server on the simulated network, and an application's publish calls.

It implements the part of the protocol that brokers use: INFO, CONNECT, PING, PONG, SUB, UNSUB, PUB and HPUB.
Subscribers get each publisher's messages in the order of publication. As in nats-server each client's commands are
handled by a thread of their own, which may be interrupted between two subscribers: messages of two publishers come in
different orders then. A subscriber whose connection has ended gets nothing, and the server keeps nothing for it.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from compat_tests.virtual.network import VirtualNetwork
from compat_tests.virtual.runtime import VirtualRuntime

HOST, PORT = "nats", 4222
_INFO = {
    "server_id": "S",
    "server_name": "simulated",
    "version": "2.11.0",
    "proto": 1,
    "headers": True,
    "max_payload": 1 << 20,
}
INTERRUPTED: Final = 0.02  # of the deliveries to one subscriber, as where other programs load the machine
INTERRUPTED_S_MAX: Final = 0.03


class SimulatedNats:
    """The server process; it lives as long as the world."""

    def __init__(self, seed: int, network: VirtualNetwork) -> None:
        self.runtime = VirtualRuntime(seed, network=network, host=HOST)
        self.random = random.Random(f"nats-server {seed}")
        self.connections: dict[_Connection, None] = {}
        self._application = _Worker(self)
        self.runtime.listen(HOST, PORT, lambda: _Connection(self))

    def publish(self, subject: bytes, payload: bytes, headers: bytes = b"") -> None:
        self._application.work(self.fan_out(subject, payload, headers, b""))

    def fan_out(self, subject: bytes, payload: bytes, headers: bytes, reply: bytes) -> Iterator[float]:
        """Delivers a message. Yields for how long it is interrupted before each subscriber, mostly 0. Other than from nats-server
        those that connect meanwhile get it as well: brokers do not expect that a message takes longer than a new connection."""
        reached: set[_Connection] = set()
        while missing := [connection for connection in self.connections if connection not in reached]:
            self.random.shuffle(missing)
            for connection in missing:
                yield self.random.uniform(0, INTERRUPTED_S_MAX) if self.random.random() < INTERRUPTED else 0.0
                if connection in self.connections:
                    connection.deliver(subject, payload, headers, reply)
            reached.update(missing)


class _Worker:
    """The thread of one client: its commands, one after the other."""

    def __init__(self, server: SimulatedNats) -> None:
        self._server = server
        self._commands: deque[Iterator[float]] = deque()
        self._is_interrupted = False

    def work(self, command: Iterator[float]) -> None:
        self._commands.append(command)
        if not self._is_interrupted:
            self._go_on()

    def _go_on(self) -> None:
        self._is_interrupted = False
        while self._commands:
            for interrupted_s in self._commands[0]:
                if interrupted_s:
                    self._is_interrupted = True
                    self._server.runtime.call_later(interrupted_s, self._go_on)
                    return
            self._commands.popleft()


class _Connection:
    """Connection of one client."""

    def __init__(self, server: SimulatedNats) -> None:
        self._server = server
        self._worker = _Worker(server)
        self._subscriptions: dict[bytes, list[bytes]] = {}  # tokens by id
        self._received = bytearray()
        self._transport: Any = None

    # -- asyncio.Protocol

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._server.connections[self] = None
        transport.write(b"INFO %b\r\n" % json.dumps(_INFO).encode())

    def connection_lost(self, _error: Exception | None) -> None:
        self._server.connections.pop(self, None)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """Does nothing: a slow reader still gets every message."""

    def resume_writing(self) -> None:
        """Does nothing, as `pause_writing`."""

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while (end := received.find(b"\r\n")) >= 0:
            verb, _, rest = bytes(received[:end]).partition(b" ")
            words = rest.split()
            size = int(words[-1]) + 2 if verb in (b"PUB", b"HPUB") else 0
            if len(received) < end + 2 + size:
                return
            body = bytes(received[end + 2 : end + size])
            del received[: end + 2 + size]
            self._worker.work(self._handle_command(verb, words, body))

    def _handle_command(self, verb: bytes, words: list[bytes], body: bytes) -> Iterator[float]:
        if verb == b"PING":
            self._transport.write(b"PONG\r\n")
        elif verb == b"SUB":
            self._subscriptions[words[-1]] = words[0].split(b".")
        elif verb == b"UNSUB":
            self._subscriptions.pop(words[0], None)
        elif verb in (b"PUB", b"HPUB"):
            sizes = 1 if verb == b"PUB" else 2
            headers = body[: int(words[-2])] if sizes == 2 else b""
            reply = words[1] if len(words) > 1 + sizes else b""
            yield from self._server.fan_out(words[0], body[len(headers) :], headers, reply)

    def deliver(self, subject: bytes, payload: bytes, headers: bytes, reply: bytes) -> None:
        tokens = subject.split(b".")
        for identity, pattern in self._subscriptions.items():
            if _matches(pattern, tokens):
                where = b" ".join(filter(None, (subject, identity, reply)))
                sizes = (
                    b"%d %d" % (len(headers), len(headers) + len(payload))
                    if headers
                    else b"%d" % len(payload)
                )
                verb = b"HMSG" if headers else b"MSG"
                self._transport.write(b"%b %b %b\r\n%b%b\r\n" % (verb, where, sizes, headers, payload))


def _matches(pattern: list[bytes], tokens: list[bytes]) -> bool:
    for place, wanted in enumerate(pattern):
        if wanted == b">":
            return len(tokens) > place
        if place >= len(tokens) or wanted not in (b"*", tokens[place]):
            return False
    return len(pattern) == len(tokens)
