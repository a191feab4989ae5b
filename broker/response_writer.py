"""The one way out of a connection: bytes and file regions, in order, through one descriptor.

It owns a dup of the socket, because uvloop has no sendfile and refuses add_writer on a descriptor that
belongs to a transport; mixing its own writes with transport.write would put bytes out of order. Whoever
closes the connection must close the dup too, or the peer never sees the end.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from barnabas.storage.disk import FileRegion

if TYPE_CHECKING:
    from barnabas.storage.runtime import Runtime
    from barnabas.wire.primitives import Part

# Linux holds a segment back until more follows; elsewhere the header simply goes out on its own.
_MORE = getattr(socket, "MSG_MORE", 0)


class ResponseWriter:
    """Sends parts in order. When the socket's buffer is full the rest waits here, and `drained` is called
    when all of it has gone, or when it never will (`closed`)."""

    def __init__(self, runtime: Runtime, transport_socket: Any, drained: Callable[[], object]) -> None:
        self._runtime = runtime
        self._socket = socket.socket(fileno=os.dup(transport_socket.fileno()))
        self._socket.setblocking(False)
        self._socket_send = self._socket.send
        self._drained = drained
        self._waiting: deque[Part] = deque()  # what the socket has not taken yet
        self._region_sent = 0  # bytes of the first waiting region that have gone already
        self.bytes_sent = 0
        self.closed = False

    @property
    def blocked(self) -> bool:
        """Whether parts wait for the socket to take them."""
        return bool(self._waiting)

    def send(self, parts: list[Part]) -> None:
        """Send the parts, now as far as the socket takes them. OSError when the connection is gone."""
        if self.closed:
            return
        if self._waiting:
            self._waiting.extend(parts)
            return
        self._waiting.extend(parts)
        if not self._send_waiting():
            self._runtime.add_writer(self._socket.fileno(), self._writable)

    def send_bytes(self, data: bytes) -> None:
        """As `send` with nothing but bytes."""
        if self._waiting or self.closed:
            self.send([data])
            return
        try:
            sent = self._socket_send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        self.bytes_sent += sent
        if sent != len(data):
            self._waiting.append(memoryview(data)[sent:])
            self._runtime.add_writer(self._socket.fileno(), self._writable)

    def close(self) -> None:
        """Drop what waits and release the descriptor. Twice is harmless."""
        if self.closed:
            return
        self.closed = True
        self._runtime.remove_writer(self._socket.fileno())
        self._waiting.clear()
        self._socket.close()

    def _send_bytes(self, data: bytes | memoryview, flags: int) -> int:
        try:
            sent = self._socket.send(data, flags)
        except (BlockingIOError, InterruptedError):
            return 0
        self.bytes_sent += sent
        return sent

    def _send_waiting(self) -> bool:
        """Send until nothing waits (True) or the socket is full (False)."""
        waiting = self._waiting
        while waiting:
            if isinstance(waiting[0], FileRegion):
                if not self._send_region(waiting[0]):
                    return False
                waiting.popleft()
                continue
            data, more = self._take_bytes()
            sent = self._send_bytes(data, _MORE if more else 0)
            if sent != len(data):
                waiting.appendleft(memoryview(data)[sent:])
                return False
        return True

    def _take_bytes(self) -> tuple[bytes | memoryview, bool]:
        """Everything up to the next region as one piece, and whether a region follows."""
        waiting = self._waiting
        first = waiting.popleft()
        if not waiting or isinstance(waiting[0], FileRegion):
            return first, bool(waiting)  # type: ignore[return-value]
        pieces = [first]
        while waiting and not isinstance(waiting[0], FileRegion):
            pieces.append(waiting.popleft())
        return b"".join(pieces), bool(waiting)  # type: ignore[arg-type]

    def _send_region(self, region: FileRegion) -> bool:
        """sendfile from the page cache; True when the whole region has gone."""
        length = len(region)
        while self._region_sent < length:
            try:
                sent = region.send_to(self._socket.fileno(), self._region_sent, length - self._region_sent)
            except (BlockingIOError, InterruptedError):
                return False
            if sent == 0:
                raise ConnectionAbortedError("the log is shorter than the region that was promised")
            self._region_sent += sent
            self.bytes_sent += sent
        self._region_sent = 0
        return True

    def _writable(self) -> None:
        try:
            if not self._send_waiting():
                return
        except OSError:
            self.close()
            self._drained()
            return
        self._runtime.remove_writer(self._socket.fileno())
        self._drained()
