"""Stock clients that publish, and a publisher that runs in the background."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable

import nats
from nats.aio.client import Client as NatsClient

from compat_tests.harness.eventually import eventually
from compat_tests.harness.nats_server import NatsServer

Sent = dict[str, list[bytes]]  # payloads by subject, in the order of publication


def publish(server: NatsServer, work: Callable[[NatsClient], Awaitable[None]]) -> None:
    """Runs `work` with a stock client, and waits until the server has handled all messages."""

    async def run() -> None:
        client = await nats.connect(server.url)
        await work(client)
        await settled(client)
        await client.close()

    asyncio.run(run())


async def settled(client: NatsClient) -> None:
    """Waits until the server has handled all messages: nats-py's flush sends the first PING before buffered
    messages."""
    await client.flush()
    await client.flush()


_ends: list[threading.Event] = []


def new_end() -> threading.Event:
    """An event that stops its publisher, set at the end of the test at the latest: the next test uses the same
    server."""
    _ends.append(threading.Event())
    return _ends[-1]


def end_publishers() -> None:
    """Stops the publishers of a failed test."""
    while _ends:
        _ends.pop().set()


class SteadyPublisher:
    """Publishes numbered messages, and some identical ones, in small bursts over several subjects, until `finish`.

    It speaks the protocol itself: a burst in a single write reaches the broker with smaller intervals than any
    client's messages. `finish` returns the messages that the server has accepted.
    """

    def __init__(
        self,
        server: NatsServer,
        subject: Callable[[int], str],
        *,
        per_second: int = 4000,
        alike: str = "",
        burst: int = 20,
        name: str = "p",
    ) -> None:
        """`subject(number)` is the subject of a message; `alike` is a subject with identical messages."""
        self.sent: Sent = {}
        self._subject = subject
        self._alike = alike
        self._burst = burst
        self._pause_s = burst / per_second
        self._name = name
        self._server = server
        self._ends = new_end()
        self._socket = socket.create_connection(("127.0.0.1", server.port), 10)
        self._reader = self._socket.makefile("rb")
        self._reader.readline()  # INFO
        self._socket.sendall(b'CONNECT {"verbose":false,"name":"publisher"}\r\n')
        self._await_pong()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def count(self) -> int:
        return sum(map(len, tuple(self.sent.values())))

    def await_more(self, count: int, timeout: float = 60) -> None:
        """Waits until `count` more messages have been sent."""
        wanted = self.count + count
        eventually(lambda: self.count >= wanted, timeout, message=lambda: f"{self.count} are sent")

    def finish(self) -> Sent:
        self._ends.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        self._await_pong()
        self._socket.close()
        return self.sent

    def _run(self) -> None:
        number = 0
        while not self._ends.is_set():
            pieces: list[bytes] = []
            for _ in range(self._burst):
                subject, payload = self._subject(number), f"{self._name}-{number}".encode()
                if self._alike and number % 7 == 0:
                    subject, payload = self._alike, b"the same again"
                self.sent.setdefault(subject, []).append(payload)
                pieces.append(b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(payload), payload))
                number += 1
            self._socket.sendall(b"".join(pieces))
            time.sleep(self._pause_s)  # the rate

    def _await_pong(self) -> None:
        self._socket.sendall(b"PING\r\n")
        while True:
            line = self._reader.readline()
            assert line, "the server has closed the publisher's connection"
            if line.startswith(b"PING"):
                self._socket.sendall(b"PONG\r\n")
            if line.startswith(b"PONG"):
                return
