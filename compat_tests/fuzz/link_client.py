"""Sends a case as a node that has the cluster's secret: the handshake, then frames with valid MACs."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence

from barnabas.controller.link import messages
from barnabas.controller.link.auth import Seal, seals
from barnabas.controller.link.framing import FRAME_BYTES_MAX, PREFACE, FrameReader, encode_frame
from barnabas.controller.link.messages import Hello, Identity, MalformedMessage, encode


class LinkClient:
    """One link, in its own thread; the interface is HostileClient's."""

    def __init__(
        self, address: str, secret: bytes | None, identity: Identity, pieces: Sequence[bytes]
    ) -> None:
        host, port = address.rsplit(":", 1)
        self._address = (host, int(port))
        self._secret = secret
        self._identity = identity
        self._pieces = pieces
        self._stopping = threading.Event()
        self._heard: list[tuple[int, bytes]] = []
        self.socket: socket.socket | None = None
        self.linked = False
        self.done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Closes the connection."""
        self._stopping.set()
        self._thread.join(30)
        self.close()

    def close(self) -> None:
        """Closes the socket."""
        if self.socket is not None:
            self.socket.close()

    def _run(self) -> None:
        try:
            self.socket = socket.create_connection(self._address, timeout=30)
            self._exchange(self.socket)
        except (OSError, MalformedMessage):
            pass  # the node closed the connection
        finally:
            self.done.set()

    def _exchange(self, connection: socket.socket) -> None:
        reader = FrameReader()
        kind = messages.AUTHENTICATION_NONE if self._secret is None else messages.AUTHENTICATION_SECRET
        hello = encode(Hello(messages.PROTOCOL_VERSION_MIN, messages.PROTOCOL_VERSION, kind, os.urandom(16)))
        connection.sendall(PREFACE + encode_frame(messages.HELLO, hello, None))
        theirs = self._await(connection, reader, messages.HELLO)
        sending: Seal | None = None
        if self._secret is not None:
            sending, reader.seal = seals(self._secret, hello, theirs, dialed=True)
        reader.bytes_max = FRAME_BYTES_MAX
        connection.sendall(encode_frame(messages.IDENTITY, encode(self._identity), sending))
        self._await(connection, reader, messages.WELCOME)
        self.linked = True
        for piece in self._pieces:
            connection.sendall(encode_frame(piece[0], piece[1:], sending))
        # a ping after them: its answer shows that they were handled
        connection.sendall(encode_frame(messages.PING, b"done", sending))
        while (messages.PONG, b"done") not in self._heard:
            self._read(connection, reader)

    def _await(self, connection: socket.socket, reader: FrameReader, kind: int) -> bytes:
        while True:
            for heard, payload in self._heard:
                if heard == kind:
                    return payload
                if heard == messages.REFUSED:
                    raise ConnectionResetError(f"refused: {payload!r}")
            self._read(connection, reader)

    def _read(self, connection: socket.socket, reader: FrameReader) -> None:
        if self._stopping.is_set():
            raise ConnectionAbortedError
        connection.settimeout(0.05)
        try:
            data = connection.recv(1 << 20)
        except TimeoutError:
            return
        if not data:
            raise ConnectionResetError
        self._heard.extend(reader.read(data))
