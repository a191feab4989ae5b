"""Flow control of a NATS connection in both directions.

`Output` collects what the connection writes until the turn of the loop ends, up to a size, and bounds it together with what
the socket has not taken yet. `Pausing` measures for how long the connection has not been read from: a server disconnects a
reader after 10 s without progress, or when 64 MiB wait, mostly without an error message. So an end of the connection soon
after long pauses counts as SLOW_CONSUMER.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from barnabas.nats.client.errors import OutputFull

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.runtime.interface import Runtime, Timer

WRITE_AT_ONCE_BYTES: Final = 256 * 1024  # from this size on, output does not wait for the end of the turn


class Output:
    """Output of one connection. `open` gives it each transport; after `close` nothing is written."""

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
        """Bytes that wait to be written."""
        if self._transport is None:
            return 0
        return self._part_bytes + int(self._transport.get_write_buffer_size())

    def send(self, data: bytes) -> None:
        """Writes messages. OutputFull when too much waits already."""
        waiting = self._part_bytes + len(data)
        if waiting > self._room:
            self._update_room()
            if waiting > self._room:
                raise OutputFull(f"{self.waiting_bytes} bytes wait to be written, {self._bytes_max} may")
        self.send_line(data)

    def send_line(self, data: bytes) -> None:
        """Writes lines that have to be sent even when too much waits, such as SUB and PONG."""
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
        """Passes what was collected to the transport."""
        if self._parts:
            parts = self._parts
            self._parts, self._part_bytes = [], 0
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))
            self._update_room()

    def _write_later(self) -> None:
        self._write_is_due = False
        self.write()

    def _update_room(self) -> None:
        waiting = 0 if self._transport is None else int(self._transport.get_write_buffer_size())
        self._room = self._bytes_max - waiting


SLOW_AFTER_S: Final = 2.0  # a pause this long is logged, and again each time
HALF_LIFE_S: Final = 5.0


class Pausing:
    """Pauses of one connection's reading. Calls `slow(seconds)` while a pause lasts."""

    def __init__(self, runtime: Runtime, slow: Callable[[float], object]) -> None:
        self._runtime = runtime
        self._slow = slow
        self._began_at: float | None = None
        self._ended_at = 0.0
        self._before_s = 0.0  # `recent_s` as of then
        self._timer: Timer | None = None

    @property
    def is_paused(self) -> bool:
        return self._began_at is not None

    def begin(self) -> None:
        self._began_at = self._runtime.monotonic()
        self._timer = self._runtime.call_later(SLOW_AFTER_S, self._is_slow)

    def end(self) -> None:
        self._before_s = self.recent_s()
        self._ended_at = self._runtime.monotonic()
        self._began_at = None
        self.cancel()

    def cancel(self) -> None:
        """Calls `slow` no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def recent_s(self) -> float:
        """Seconds of pauses; after HALF_LIFE_S they count half."""
        now = self._runtime.monotonic()
        since_s = now - self._began_at if self._began_at is not None else 0.0
        return float(self._before_s * 0.5 ** ((now - self._ended_at) / HALF_LIFE_S)) + since_s

    def _is_slow(self) -> None:
        if self._began_at is not None:
            self._timer = self._runtime.call_later(SLOW_AFTER_S, self._is_slow)
            self._slow(self._runtime.monotonic() - self._began_at)
