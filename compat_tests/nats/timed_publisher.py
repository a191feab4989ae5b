"""A publisher that records when each of its messages was published, and continues when its server dies."""

from __future__ import annotations

import socket
import threading
import time
from typing import NamedTuple

from compat_tests.harness.eventually import eventually
from compat_tests.harness.nats_server import NatsServer
from compat_tests.nats.publishers import new_end


class Published(NamedTuple):
    """Times (ms since the epoch) between which the server accepted the message, if it did."""

    begin_ms: float
    end_ms: float


class TimedPublisher:
    """Publishes unique messages, a burst at a time, and has the server confirm each burst."""

    def __init__(
        self, server: NatsServer, subject: str, *, size: int = 40, burst: int = 20, pause_s: float = 0.005
    ) -> None:
        self.published: dict[bytes, Published] = {}
        self._server = server
        self._subject = subject.encode()
        self._size = size
        self._burst = burst
        self._pause_s = pause_s
        self._ends = new_end()
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.await_more(1)

    def await_more(self, count: int, timeout: float = 60) -> None:
        """Waits until `count` more messages have been confirmed or lost."""
        wanted = len(self.published) + count
        eventually(lambda: len(self.published) >= wanted, timeout)

    def finish(self) -> dict[bytes, Published]:
        self._ends.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.published

    def _run(self) -> None:
        number = 0
        while not self._ends.is_set():
            payloads = [f"{number + place}".encode().ljust(self._size, b".") for place in range(self._burst)]
            number += self._burst
            begin_ms = time.time() * 1000
            is_sent = False
            try:
                connection = self._connected()
                is_sent = True
                connection.sendall(
                    b"".join(
                        b"PUB %b.%d %d\r\n%b\r\n" % (self._subject, place % 8, len(payload), payload)
                        for place, payload in enumerate(payloads)
                    )
                    + b"PING\r\n"
                )
                self._await_pong(connection)
            except OSError:
                self._socket = None
                time.sleep(0.02)  # a client's pause before it reconnects
            if is_sent:
                published = Published(begin_ms, time.time() * 1000)
                self.published.update(dict.fromkeys(payloads, published))
            time.sleep(self._pause_s)  # the rate
        if self._socket is not None:
            self._socket.close()

    def _connected(self) -> socket.socket:
        if self._socket is None:
            connection = socket.create_connection(("127.0.0.1", self._server.port), 10)
            connection.sendall(b'CONNECT {"verbose":false,"name":"publisher"}\r\nPING\r\n')
            self._await_pong(connection)
            self._socket = connection
        return self._socket

    @staticmethod
    def _await_pong(connection: socket.socket) -> None:
        data = b""
        while b"PONG\r\n" not in data:
            piece = connection.recv(4096)
            if not piece:
                raise ConnectionResetError("closed by the server")
            if b"PING\r\n" in piece:
                connection.sendall(b"PONG\r\n")
            data += piece
