"""A TCP proxy between one broker and the nats-server, to break the connection of that broker alone."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from barnabas.testing.ports import free_port
from compat_tests.harness.nats_server import NatsServer

_PIECE = 1 << 16


class Relay:
    """Listens at `url`, and copies bytes to the server and back."""

    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self._port = free_port()
        self.url = f"nats://127.0.0.1:{self._port}"
        self._sockets: set[socket.socket] = set()
        self._is_refusing = False
        self._listener = socket.create_server(("127.0.0.1", self._port))
        threading.Thread(target=self._accept, daemon=True).start()

    def break_off(self) -> None:
        """Ends the connections; new ones are accepted."""
        for each in tuple(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def refuse(self, is_refusing: bool = True) -> None:
        """Ends the connections, and each new one at once, until `refuse(False)`."""
        self._is_refusing = is_refusing
        if is_refusing:
            self.break_off()

    def close(self) -> None:
        self._is_refusing = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.break_off()

    def _accept(self) -> None:
        while True:
            try:
                front, _ = self._listener.accept()
            except OSError:
                return
            if self._is_refusing:
                front.close()
                continue
            back = socket.create_connection(("127.0.0.1", self._server.port), 10)
            back.settimeout(None)
            self._sockets |= {front, back}
            for source, target in ((front, back), (back, front)):
                threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                target.sendall(piece)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._sockets -= {source, target}
