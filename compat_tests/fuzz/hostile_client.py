"""Sends a case: writes and reads at the same time, until all requests are answered, the broker closes the connection,
or `stop` is called."""

from __future__ import annotations

import selectors
import socket
import struct
import threading
from collections.abc import Callable, Sequence

from compat_tests.fuzz.case import Pace


class HostileClient:
    """One connection, in its own thread."""

    def __init__(
        self,
        address: str,
        pieces: Sequence[bytes],
        pace: Pace,
        begin: Callable[[socket.socket], object] = lambda _connection: None,
    ) -> None:
        """`begin` is called with the new connection, before anything is sent."""
        host, port = address.rsplit(":", 1)
        self._address = (host, int(port))
        self._pieces = pieces
        self._pace = pace
        self._begin = begin
        self._stopping = threading.Event()
        self.socket: socket.socket | None = None
        self.answers = 0
        self.received_bytes = 0
        self.done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Closes the socket, except in a silent case: then the socket stays open until `close`."""
        self._stopping.set()
        self._thread.join(30)
        if self._pace is not Pace.SILENT:
            self.close()

    def close(self) -> None:
        """Closes the socket."""
        if self.socket is not None:
            self.socket.close()

    def _run(self) -> None:
        try:
            self.socket = socket.create_connection(self._address, timeout=30)
            self._begin(self.socket)
            self.socket.setblocking(False)
            self._exchange(self.socket)
        except OSError:
            pass  # the broker closed the connection
        finally:
            self.done.set()

    def _exchange(self, connection: socket.socket) -> None:
        together = self._pace is not Pace.ONE_BY_ONE
        waiting = [b"".join(self._pieces)] if together else list(reversed(self._pieces))
        expected = len(self._pieces)
        out = memoryview(waiting.pop())
        sent = 0 if together else 1
        answers = _Answers()
        with selectors.DefaultSelector() as selector:
            selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
            while not self._stopping.is_set():
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if out else 0)
                selector.modify(connection, events)
                for _, ready in selector.select(0.02):
                    if ready & selectors.EVENT_WRITE and out:
                        out = out[connection.send(out[: 1 << 18]) :]
                    if ready & selectors.EVENT_READ:
                        data = connection.recv(1 << 20)
                        if not data:
                            return
                        self.received_bytes += len(data)
                        self.answers = answers.feed(data)
                if self.answers >= expected and not out:
                    return
                if waiting and not out and self.answers >= sent:
                    out = memoryview(waiting.pop())
                    sent += 1


class _Answers:
    """Counts frames without keeping them."""

    def __init__(self) -> None:
        self._head = b""
        self._missing = 0
        self._count = 0

    def feed(self, data: bytes) -> int:
        """Number of complete frames so far."""
        view = memoryview(data)
        while view:
            if self._missing:
                taken = min(self._missing, len(view))
                self._missing -= taken
                view = view[taken:]
                if not self._missing:
                    self._count += 1
                continue
            take = 4 - len(self._head)
            self._head += view[:take]
            view = view[take:]
            if len(self._head) == 4:
                self._missing = max(0, struct.unpack(">i", self._head)[0])
                self._head = b""
                if not self._missing:
                    self._count += 1
        return self._count
