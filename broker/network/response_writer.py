"""Writes the responses of a connection: bytes and file regions, in order.

It sends beside the transport, on the same descriptor, as uvloop has no sendfile; nothing is written through the transport, which would
mix the order. uvloop does not wait for a descriptor that belongs to a transport, so one that has had to wait for its socket has a dup to
wait with, which must be closed with the connection, or the peer never sees the end of the stream.

A small response with one region is read into a shared buffer and sent in one piece; anything larger goes by sendfile.

sendfile blocks the loop while a region is read from the disk. So before a region is sent the writer checks that it is in the
page cache, unless it was written a moment ago, and a thread loads what is missing; it checks again after the region has
waited for a slow client.
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

CHECK_BYTES: Final = 1024 * 1024  # of a region, between two checks that it is in the page cache
# A response of at most this size with one region is read and sent in one piece: that costs half of two sends with a
# sendfile between them, and the read checks the page cache as well. From 100 KB on sendfile is cheaper.
COPY_BYTES: Final = 64 * 1024
LOAD_BYTES: Final = 4 * 1024 * 1024  # that a thread loads at a time

# Linux delays a segment until more follows; on other systems the header leaves on its own.
_MORE: Final = getattr(socket, "MSG_MORE", 0)


class ResponseWriter:
    """Sends parts in order. While the socket's buffer is full or a thread reads the disk, the rest waits here; `drained` is
    called when all of it has been sent, or cannot be (`closed`)."""

    __slots__ = (
        "_cached_until", "_copy_buffer", "_drained", "_is_late", "_loading", "_region_sent", "_runtime", "_socket",
        "_socket_send", "_watched", "_watching", "closed", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        runtime: Runtime,
        transport: Any,
        copy_buffer: memoryview,
        drained: Callable[[], object],
    ) -> None:
        """`copy_buffer` (COPY_BYTES) may be shared by all writers: it is empty between calls."""
        self._runtime = runtime
        self._copy_buffer = copy_buffer
        self._socket: socket.socket = runtime.sending_socket(transport)
        self._socket_send: Callable[..., int] = self._socket.send
        self._drained = drained
        self.waiting: deque[Part] | None = None  # what the socket has not taken yet
        self._watched: socket.socket | None = None  # the dup, once it was needed
        self._watching = False  # whether the loop calls `_writable` when the socket takes more
        self._loading = False  # whether a thread loads what comes next
        self._is_late = False  # whether what waits has waited for the socket
        self._region_sent = 0  # bytes of the first waiting region that have been sent
        self._cached_until = 0  # of the first waiting region, known to be in the page cache up to here
        self.closed = False

    def send(self, parts: list[Part]) -> None:
        """Send the parts, as far as the socket takes them now. OSError when the connection is lost, or the rest can't wait as no
        descriptor is left."""
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
        self._send_more()

    def _send_copied(self, head: bytes, region: FileRegion, tail: bytes) -> list[Part]:
        """Read the region and send all in one piece. Returns the parts that have not been sent, the region as a region."""
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
        """As `send`, for bytes alone."""
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
        """Drop what waits and release the descriptors, before the transport closes. A second call does nothing."""
        if self.closed:
            return
        self.closed = True
        self._watch(False)
        self.waiting = None
        if self._watched is not None:
            self._watched.close()
        self._socket.detach()

    def _watch(self, wanted: bool) -> None:
        if wanted == self._watching:
            return
        if self._watched is None:
            self._watched = self._socket.dup()
        self._watching = wanted
        if wanted:
            self._runtime.add_writer(self._watched.fileno(), self._writable)
        else:
            self._runtime.remove_writer(self._watched.fileno())

    def _send_more(self) -> None:
        """Send what waits as far as the socket takes it, and the rest when it takes more."""
        is_all_sent = self._send_waiting()
        self._watch(not is_all_sent and not self._loading)

    def _writable(self) -> None:
        self._is_late = True
        try:
            self._send_more()
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
        """Send until nothing waits (True), or until the socket is full or a thread has to load a region (False)."""
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
            return first, bool(waiting)  # type: ignore[return-value]  # a region is never first
        pieces = [first]
        while waiting and not isinstance(waiting[0], FileRegion):
            pieces.append(waiting.popleft())
        return b"".join(pieces), bool(waiting)  # type: ignore[arg-type]  # without regions

    def _send_region(self, region: FileRegion) -> bool:
        """sendfile from the page cache. Whether the whole region has been sent."""
        length = len(region)
        start = self._region_sent
        cached_until = length if region.is_hot and not self._is_late else self._cached_until
        while start < length:
            if start >= cached_until:
                cached_until = min(start + CHECK_BYTES, length)
                if not region.is_cached(start, cached_until - start):
                    self._load(region, start)
                    return False
            try:
                sent = region.send_to(self._socket.fileno(), start, cached_until - start)
            except (BlockingIOError, InterruptedError):
                self._cached_until = 0  # the page cache may evict it meanwhile
                return False
            if sent == 0:
                raise ConnectionAbortedError("the log is shorter than the region that is to be sent")
            start = self._region_sent = start + sent
        self._region_sent = self._cached_until = 0
        return True

    def _load(self, region: FileRegion, start: int) -> None:
        """Have a thread load the next part into the page cache, then continue."""
        count = min(LOAD_BYTES, len(region) - start)

        def done(_result: None, error: BaseException | None) -> None:
            self._loading = False
            if self.closed:
                return
            if error is not None:
                log.error("records of a response cannot be read: %s", error)
                self.close()
                self._drained()
                return
            self._cached_until = start + count
            self._writable()

        self._loading = True
        self._runtime.run_in_thread(partial(region.load, start, count), done)
