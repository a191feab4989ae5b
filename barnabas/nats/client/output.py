"""What a connection writes: collected until the turn of the loop ends, up to a size, and bounded together with what the
socket has not taken yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from barnabas.nats.client.errors import OutputFull

if TYPE_CHECKING:
    from barnabas.runtime.interface import Runtime

WRITE_AT_ONCE_BYTES: Final = 256 * 1024  # so much does not wait for the end of the turn


class Output:
    """`open` with each transport; nothing is written after `close`."""

    def __init__(self, runtime: Runtime, bytes_max: int) -> None:
        self._runtime = runtime
        self._bytes_max = bytes_max
        self._transport: Any = None
        self._parts: list[bytes] = []
        self._part_bytes = 0
        self._room = bytes_max  # for the parts, as of the last write
        self._write_is_due = False

    def open(self, transport: Any) -> None:
        self._transport = transport

    def close(self) -> None:
        self._transport = None
        self._parts, self._part_bytes = [], 0

    @property
    def waiting_bytes(self) -> int:
        """What waits to be written."""
        if self._transport is None:
            return 0
        return self._part_bytes + int(self._transport.get_write_buffer_size())

    def send(self, data: bytes) -> None:
        """Write messages. OutputFull when too much waits already."""
        waiting = self._part_bytes + len(data)
        if waiting > self._room:
            self._measure()
            if waiting > self._room:
                raise OutputFull(f"{self.waiting_bytes} bytes wait to be written, {self._bytes_max} may")
        self.send_line(data)

    def send_line(self, data: bytes) -> None:
        """Write what must not be refused, such as SUB and PONG."""
        if self._transport is None:
            return
        self._parts.append(data)
        self._part_bytes += len(data)
        if self._part_bytes >= WRITE_AT_ONCE_BYTES:
            self.write()
        elif not self._write_is_due:
            self._write_is_due = True
            self._runtime.call_soon(self._write_later)

    def write(self) -> None:
        """Hand over to the socket what was collected."""
        if self._parts:
            parts = self._parts
            self._parts, self._part_bytes = [], 0
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))
            self._measure()

    def _write_later(self) -> None:
        self._write_is_due = False
        self.write()

    def _measure(self) -> None:
        waiting = 0 if self._transport is None else int(self._transport.get_write_buffer_size())
        self._room = self._bytes_max - waiting
