"""Writes the responses of a TLS connection: as ResponseWriter, but all bytes are encrypted first.

File regions are read into the shared copy buffer, since the kernel can't send them from the page cache. Plaintext is encrypted in
slices of at most 64 KB, and what the socket does not take of a slice waits as ciphertext; so a connection holds one slice of it.

All connections share one outgoing BIO, which is emptied after every call of OpenSSL: a BIO keeps the capacity of the most that
it ever held.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.network.response_writer import COPY_BYTES, ResponseWriter
from barnabas.storage.disk.disk import FileRegion

if TYPE_CHECKING:
    import ssl

    from barnabas.runtime.interface import Runtime
    from barnabas.wire.primitives import Part

log = logging.getLogger("barnabas.connection")

TURN_BYTES: Final = 1024 * 1024  # that are encrypted in one turn, some 1 ms
CIPHERTEXT_BYTES_MAX: Final = (
    256 * 1024
)  # that OpenSSL may want to send beside the answers, while the peer reads nothing


class _Ciphertext:
    """Encrypted bytes that the socket has not taken."""

    __slots__ = ("data",)

    def __init__(self, data: memoryview) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)


class TlsResponseWriter(ResponseWriter):
    """Encrypts and sends parts in order. `tls` is set when the handshake begins."""

    __slots__ = ("_outgoing", "is_established", "tls")

    def __init__(
        self,
        runtime: Runtime,
        transport: Any,
        copy_buffer: memoryview,
        drained: Callable[[], object],
        outgoing: ssl.MemoryBIO,
    ) -> None:
        super().__init__(runtime, transport, copy_buffer, drained)
        self._outgoing = outgoing
        self.tls: ssl.SSLObject | None = None
        self.is_established = False  # whether the handshake has succeeded

    def send(self, parts: list[Part]) -> None:
        if self.closed:
            return
        if self.waiting:
            self.waiting.extend(parts)
            return
        self.waiting = deque(parts)
        self._is_late = False
        self._send_more()

    def send_bytes(self, data: bytes) -> None:
        if self.waiting or self.closed or len(data) > COPY_BYTES:
            self.send([data])
            return
        ciphertext = self._encrypt(data)
        sent = self._send_bytes(ciphertext, 0)
        if sent != len(ciphertext):
            self._wait_with(ciphertext, sent)

    def send_tls(self) -> None:
        """Send what OpenSSL has left in the outgoing BIO: handshakes, alerts, session tickets. OSError when the connection is lost,
        or the peer takes none of it."""
        if not self._outgoing.pending:
            return
        ciphertext = self._outgoing.read()
        if self.closed:
            return
        held = sum(len(part) for part in self.waiting or () if type(part) is _Ciphertext)
        if self.waiting:
            if held > CIPHERTEXT_BYTES_MAX:
                raise ConnectionAbortedError("the peer reads nothing")
            self._insert(_Ciphertext(memoryview(ciphertext)))
            return
        sent = self._send_bytes(ciphertext, 0)
        if sent != len(ciphertext):
            self._wait_with(ciphertext, sent)

    def close(self) -> None:
        """Also tells the peer that no more follows, if the socket takes that now."""
        if self.closed:
            return
        if self.is_established and not self.waiting and self.tls is not None:
            try:
                self.tls.unwrap()
            except (OSError, ValueError):  # it wants the peer's answer, which is not waited for
                pass
            try:
                self._send_bytes(self._outgoing.read(), 0)
            except OSError:
                pass
        self.tls = None
        super().close()

    def _insert(self, ciphertext: _Ciphertext) -> None:
        """Behind the ciphertext that waits, before all plaintext: records are numbered as they are encrypted."""
        waiting: deque[Any] | None = self.waiting
        assert waiting is not None
        index = 0
        while index < len(waiting) and type(waiting[index]) is _Ciphertext:
            index += 1
        waiting.insert(index, ciphertext)

    def _wait_with(self, ciphertext: bytes, sent: int) -> None:
        waiting: deque[Any] = deque([_Ciphertext(memoryview(ciphertext)[sent:])])
        self.waiting = waiting
        self._watch(True)

    def _encrypt(self, data: bytes | memoryview) -> bytes:
        tls = self.tls
        assert tls is not None
        written = tls.write(data)
        while written < len(data):
            written += tls.write(memoryview(data)[written:])
        return self._outgoing.read()

    def _send_waiting(self) -> bool:
        waiting: deque[Any] | None = self.waiting
        in_turn = 0
        while waiting:
            first = waiting[0]
            if type(first) is _Ciphertext:
                waiting.popleft()
                data: bytes | memoryview = first.data
            else:
                if in_turn >= TURN_BYTES:
                    return False
                plaintext = self._next_slice(waiting)
                if plaintext is None:
                    return False
                in_turn += len(plaintext)
                data = self._encrypt(plaintext)
            sent = self._send_bytes(data, 0)
            if sent != len(data):
                waiting.appendleft(_Ciphertext(memoryview(data)[sent:]))
                return False
        return True

    def _next_slice(self, waiting: deque[Any]) -> bytes | memoryview | None:
        """The next bytes to encrypt, at most COPY_BYTES; None while a thread loads them from the disk."""
        first = waiting[0]
        if not isinstance(first, FileRegion) and (len(waiting) == 1 or len(first) >= COPY_BYTES):
            waiting.popleft()
            if len(first) <= COPY_BYTES:
                return first  # type: ignore[no-any-return]
            view = memoryview(first)
            waiting.appendleft(view[COPY_BYTES:])
            return view[:COPY_BYTES]
        copy, filled = self._copy_buffer, 0
        while waiting and filled < COPY_BYTES:
            part = waiting[0]
            if type(part) is _Ciphertext:
                break
            room = COPY_BYTES - filled
            if isinstance(part, FileRegion):
                count = self._read_region(
                    part, copy[filled : filled + min(room, part.length - self._region_sent)]
                )
                if count == 0:  # not in memory
                    if filled:
                        break
                    self._load(part, self._region_sent)
                    return None
                self._region_sent += count
                filled += count
                if self._region_sent == part.length:
                    self._region_sent = 0
                    waiting.popleft()
                continue
            count = min(room, len(part))
            copy[filled : filled + count] = part[:count]
            filled += count
            waiting.popleft()
            if count < len(part):
                waiting.appendleft(memoryview(part)[count:])
        return copy[:filled]

    def _read_region(self, region: FileRegion, buffer: memoryview) -> int:
        """Reads on in the region: the number of bytes, 0 when they are not in memory."""
        if not buffer:
            return 0
        try:
            count = region.file.pread_into_now(buffer, region.position + self._region_sent)
        except BlockingIOError:
            return 0
        if count == 0:
            raise ConnectionAbortedError("the log is shorter than the region that is to be sent")
        return count
