"""The one way out of a connection: bytes and file regions, in order, through one descriptor.

It owns a dup of the socket, because uvloop has no sendfile and refuses add_writer on a descriptor that
belongs to a transport; mixing its own writes with transport.write would put bytes out of order. Whoever
closes the connection must close the dup too, or the peer never sees the end.

A small answer around one region is read into a shared buffer and leaves in one piece; anything larger goes by
sendfile.

sendfile waits for the disk where a region is not in memory, and everybody would wait with it. So a region is
looked at before it is sent, unless it was written a moment ago, and a thread loads what is missing; the same
when it has waited for a slow reader meanwhile.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from barnabas.storage.disk.disk import FileRegion

if TYPE_CHECKING:
    from barnabas.runtime.interface import Runtime
    from barnabas.wire.primitives import Part

log = logging.getLogger("barnabas.connection")

LOOK_BYTES: Final = 1024 * 1024  # of a region, before each of which it is looked whether it is in memory
# An answer with so little around one region is read and sent in one piece: that costs half of what two sends and a
# sendfile between them do, and asks on the way whether it is in memory. From 100 KB on sendfile is cheaper.
COPY_BYTES: Final = 64 * 1024
LOAD_BYTES: Final = 4 * 1024 * 1024  # what a thread loads at a time

# Linux holds a segment back until more follows; elsewhere the header simply goes out on its own.
_MORE: Final = getattr(socket, "MSG_MORE", 0)


class ResponseWriter:
    """Sends parts in order. When the socket's buffer is full or the disk is asked, the rest waits here, and
    `drained` is called when all of it has gone, or when it never will (`closed`)."""

    __slots__ = (
        "_copy_buffer", "_drained", "_is_late", "_loading", "_region_sent", "_runtime", "_socket", "_socket_send",
        "_sure_until", "_watching", "closed", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        runtime: Runtime,
        transport_socket: Any,
        copy_buffer: memoryview,
        drained: Callable[[], object],
    ) -> None:
        """`copy_buffer` (COPY_BYTES) may be everybody's: nothing stays in it."""
        self._runtime = runtime
        self._copy_buffer = copy_buffer
        self._socket: socket.socket = transport_socket.dup()
        self._socket.setblocking(False)
        self._socket_send: Callable[..., int] = self._socket.send
        self._drained = drained
        self.waiting: deque[Part] | None = None  # what the socket has not taken yet
        self._watching = False  # whether the loop tells us when the socket takes more
        self._loading = False  # whether a thread loads what comes next
        self._is_late = False  # whether what waits has waited for the socket
        self._region_sent = 0  # bytes of the first waiting region that have gone already
        self._sure_until = 0  # and up to where it is in memory
        self.closed = False

    def send(self, parts: list[Part]) -> None:
        """Send the parts, now as far as the socket takes them. OSError when the connection is gone."""
        if self.closed:
            return
        if self.waiting:
            self.waiting.extend(parts)
            return
        if len(parts) == 3:
            head, region, tail = parts
            if (
                type(region) is FileRegion
                and type(head) is bytes
                and type(tail) is bytes
                and len(head) + region.length + len(tail) <= COPY_BYTES
            ):
                parts = self._send_copied(head, region, tail)
                if not parts:
                    return
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.extend(parts)
        self._is_late = False
        self._go_on()

    def _send_copied(self, head: bytes, region: FileRegion, tail: bytes) -> list[Part]:
        """Read the region and send all in one piece; what has not gone is left, the region as a region."""
        start = len(head)
        stop = start + region.length
        end = stop + len(tail)
        copy = self._copy_buffer
        copy[:start] = head
        copy[stop:end] = tail
        try:
            if region.file.pread_into_now(copy[start:stop], region.position) != region.length:
                return [head, region, tail]
        except BlockingIOError:
            return [head, region, tail]
        sent = self._send_bytes(copy[:end], 0)
        if sent == end:
            return []
        if sent < start:
            return [memoryview(head)[sent:], region, tail]
        if sent < stop:
            self._region_sent = sent - start
            return [region, tail]
        return [memoryview(tail)[sent - stop :]]

    def send_bytes(self, data: bytes) -> None:
        """As `send` with nothing but bytes."""
        if self.waiting or self.closed:
            self.send([data])
            return
        try:
            sent = self._socket_send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        if sent != len(data):
            self.waiting = deque([memoryview(data)[sent:]])
            self._watch(True)

    def close(self) -> None:
        """Drop what waits and release the descriptor. Twice is harmless."""
        if self.closed:
            return
        self.closed = True
        self._watch(False)
        self.waiting = None
        self._socket.close()

    def _watch(self, wanted: bool) -> None:
        if wanted == self._watching:
            return
        self._watching = wanted
        if wanted:
            self._runtime.add_writer(self._socket.fileno(), self._writable)
        else:
            self._runtime.remove_writer(self._socket.fileno())

    def _go_on(self) -> None:
        """Send what waits as far as it goes, and see to it that the rest will."""
        everything = self._send_waiting()
        self._watch(not everything and not self._loading)

    def _writable(self) -> None:
        self._is_late = True
        try:
            self._go_on()
        except OSError:
            self.close()
        if not self.waiting:
            self._drained()

    def _send_bytes(self, data: bytes | memoryview, flags: int) -> int:
        try:
            return self._socket_send(data, flags)
        except (BlockingIOError, InterruptedError):
            return 0

    def _send_waiting(self) -> bool:
        """Send until nothing waits (True), or the socket is full or a thread has to load something (False)."""
        waiting = self.waiting
        while waiting:
            if isinstance(waiting[0], FileRegion):
                if not self._send_region(waiting[0]):
                    return False
                waiting.popleft()
                continue
            data, more = self._take_bytes(waiting)
            sent = self._send_bytes(data, _MORE if more else 0)
            if sent != len(data):
                waiting.appendleft(memoryview(data)[sent:])
                return False
        return True

    @staticmethod
    def _take_bytes(waiting: deque[Part]) -> tuple[bytes | memoryview, bool]:
        """Everything up to the next region as one piece, and whether a region follows."""
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
        start = self._region_sent
        sure_until = length if region.is_hot and not self._is_late else self._sure_until
        while start < length:
            if start >= sure_until:
                sure_until = min(start + LOOK_BYTES, length)
                if not region.is_cached(start, sure_until - start):
                    self._load(region, start)
                    return False
            try:
                sent = region.send_to(self._socket.fileno(), start, sure_until - start)
            except (BlockingIOError, InterruptedError):
                self._sure_until = 0  # memory may be needed for something else meanwhile
                return False
            if sent == 0:
                raise ConnectionAbortedError("the log is shorter than the region that was promised")
            start = self._region_sent = start + sent
        self._region_sent = self._sure_until = 0
        return True

    def _load(self, region: FileRegion, start: int) -> None:
        """Let a thread bring what comes next into memory, and go on then."""
        count = min(LOAD_BYTES, len(region) - start)

        def done(_result: None, error: BaseException | None) -> None:
            self._loading = False
            if self.closed:
                return
            if error is not None:
                log.error("records that were promised cannot be read: %s", error)
                self.close()
                self._drained()
                return
            self._sure_until = start + count
            self._writable()

        self._loading = True
        self._runtime.run_in_thread(partial(region.load, start, count), done)
