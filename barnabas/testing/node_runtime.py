"""The runtime of one node of an in-process broker: its share of an event loop that others use, too.

It remembers what it has scheduled, listens on and is connected with, so that `end` takes all of it away: after a stop
nothing of the node is left in a loop that goes on, and a kill is a kill.

- Listening begins at once, without a turn of the loop, and on a socket that was bound before if there is one (`reserve`):
  the nodes of a cluster must know each other's ports before the first one starts.
- Where the disk is in memory no thread is needed: what would be one's work is done on the loop, in a turn of its own.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - this file is a runtime
import time  # noqa: TID251 - as above
from typing import TYPE_CHECKING, Any, TypeVar

from barnabas.runtime.asyncio_runtime import AsyncioRuntime, bind_socket, refused_everywhere

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Sequence

    from barnabas.runtime.interface import Connecting, Server, Timer

T = TypeVar("T")

_PRUNE_AT = 64  # transports, before those that have closed are forgotten


class Clock:
    """The clock of all nodes of a broker: the machine's, and `ahead_s` seconds ahead of it. These grow only, until a reset, when no
    node runs."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def reset(self) -> None:
        """The machine's time again."""
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s

    def time_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000 + round(self.ahead_s * 1000)


class Event:
    """A callback that has been scheduled: a `storage.runtime.Timer`."""

    __slots__ = ("_callback", "_events", "_runtime", "due", "handle", "is_soon")

    def __init__(
        self,
        runtime: NodeRuntime,
        events: dict[Event, None],
        callback: Callable[[], object],
        due: float | None = None,
    ) -> None:
        self._runtime = runtime
        self._events = events
        self.is_soon = due is None  # at the loop's next turn
        self.due = due  # on the runtime's monotonic clock
        self._callback: Callable[[], object] | None = callback
        self.handle: asyncio.Handle | None = None
        events[self] = None

    def __call__(self) -> None:
        if self._runtime.is_paused:
            self._runtime.keep(self)
            return
        callback, self._callback = self._callback, None
        self.handle = None
        self._events.pop(self, None)
        if callback is not None:
            callback()

    def fire_soon(self) -> None:
        """At the loop's next turn, whenever it was due."""
        if self.handle is not None:
            self.handle.cancel()
            self.handle = self._runtime.loop.call_soon(self)
            self.due = None

    def cancel(self) -> None:
        self._callback = None
        self._events.pop(self, None)
        handle, self.handle = self.handle, None
        if handle is not None:
            handle.cancel()


class _NoEvent:
    """What is scheduled on a runtime that has ended."""

    def cancel(self) -> None:
        """It never happens anyway."""


class NodeServer:
    """A listening socket. `close` stops accepting; connections already open live on."""

    def __init__(
        self,
        runtime: NodeRuntime,
        sock: socket.socket,
        protocol_factory: Callable[[], Any],
        tls: ssl.SSLContext | None,
    ) -> None:
        self.port: int = sock.getsockname()[1]
        self._runtime = runtime
        self._sock = sock
        self._protocol_factory = protocol_factory
        self._tls = tls
        self.is_closed = False
        self.resume()

    def resume(self) -> None:
        """Accept connections."""
        if not self.is_closed:
            self._runtime.loop.add_reader(self._sock.fileno(), self._accept)

    def pause(self) -> None:
        """Let them wait."""
        if not self.is_closed:
            self._runtime.loop.remove_reader(self._sock.fileno())

    def _accept(self) -> None:
        try:
            accepted, _ = self._sock.accept()
        except OSError:  # gone again, or no descriptor is left
            return
        accepted.setblocking(False)
        self._runtime.adopt(accepted, self._protocol_factory, self._tls)

    def socket(self) -> socket.socket:
        """The same one, under a descriptor of its own."""
        return self._sock.dup()

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._runtime.loop.remove_reader(self._sock.fileno())
            self._sock.close()


class NodeConnecting:
    """A connection on its way."""

    def __init__(
        self,
        runtime: NodeRuntime,
        host: str,
        port: int,
        protocol_factory: Callable[[], Any],
        failed: Callable[[OSError], object],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._runtime = runtime
        self._failed = failed
        self._is_cancelled = False
        self._task = runtime.start_task(self._connect(host, port, protocol_factory, tls))

    async def _connect(
        self, host: str, port: int, protocol_factory: Callable[[], Any], tls: ssl.SSLContext | None
    ) -> None:
        try:
            transport, _ = await self._runtime.loop.create_connection(protocol_factory, host, port, ssl=tls)
        except OSError as error:
            if not self._is_cancelled and not self._runtime.has_ended:
                self._failed(refused_everywhere(error))
            return
        if self._is_cancelled or self._runtime.has_ended:
            transport.abort()
        else:
            self._runtime.add_transport(transport)

    def cancel(self) -> None:
        self._is_cancelled = True
        self._task.cancel()


class NodeRuntime(AsyncioRuntime):
    """See the module. `end` once; the loop is its owner's."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, has_threads: bool, clock: Clock | None = None
    ) -> None:
        super().__init__(loop=loop)
        self.has_ended = False
        self.is_paused = False
        self._clock = clock if clock is not None else Clock()
        self._kept: list[Event] = []  # what came due while it was paused
        self._writers: dict[int, Callable[[], object]] = {}
        self._has_threads = has_threads
        self._events: dict[Event, None] = {}
        self._servers: list[NodeServer] = []
        self._transports: list[Any] = []
        self._was_reading: list[Any] = []  # when it was paused
        self.tasks: set[asyncio.Task[None]] = set()  # of connections that come or go
        self._reserved: dict[int, socket.socket] = {}

    # -- the owner's side

    def reserve(self, sock: socket.socket) -> None:
        """A bound socket that listens already, for the first `listen` on its port."""
        self._reserved[sock.getsockname()[1]] = sock

    def run_soon(self) -> bool:
        """Run the callbacks of the loop's next turn now, for a caller on the loop that can't wait for that turn. Whether there
        were any."""
        due = [event for event in self._events if event.is_soon]
        for event in due:
            handle = event.handle
            event()
            if handle is not None:
                handle.cancel()
        return bool(due)

    def listening(self) -> list[socket.socket]:
        """The sockets it listens on, once more: they go on collecting connections when this runtime ends, for the next one
        that they are reserved for."""
        return [server.socket() for server in self._servers if not server.is_closed]

    def waiting_descriptors(self) -> list[int]:
        """Where clients may be waiting to be heard: for a look from another thread."""
        found = [server.fileno() for server in tuple(self._servers) if not server.is_closed]
        for transport in tuple(self._transports):
            sock = transport.get_extra_info("socket")
            if sock is not None and not transport.is_closing():
                found.append(sock.fileno())
        return [each for each in found if each >= 0]

    def pause(self) -> None:
        """As SIGSTOP: connections stay, new ones wait in the system's queue, and nothing happens."""
        self.is_paused = True
        for server in self._servers:
            server.pause()
        for descriptor in self._writers:
            self.loop.remove_writer(descriptor)
        self._pause_transports()

    def _pause_transports(self) -> None:
        self._was_reading = [each for each in self._transports if not each.is_closing() and each.is_reading()]
        for transport in self._was_reading:
            transport.pause_reading()

    def resume(self) -> None:
        """As SIGCONT."""
        if not self.is_paused:
            return
        self.is_paused = False
        for server in self._servers:
            server.resume()
        for descriptor, callback in self._writers.items():
            self.loop.add_writer(descriptor, callback)
        for transport in self._was_reading:
            if not transport.is_closing():
                transport.resume_reading()
        kept, self._kept = self._kept, []
        for event in kept:
            if event in self._events:
                event.handle = self.loop.call_soon(event)

    def keep(self, event: Event) -> None:
        """It has come due while this runtime is paused."""
        self._kept.append(event)

    def due_times(self) -> list[float]:
        """When the timers come due, on the monotonic clock."""
        if self.is_paused:
            return []
        return [event.due for event in self._events if event.due is not None]

    def due_by(self, moment: float) -> list[Event]:
        """The timers that are due then, on a clock that has jumped."""
        if self.is_paused:
            return []
        return [event for event in self._events if event.due is not None and event.due <= moment]

    def reschedule(self) -> None:
        """The clock has jumped: timers come sooner than the loop knows."""
        now = self._clock.monotonic()
        for event in self._events:
            if event.due is not None and event.handle is not None:
                event.handle.cancel()
                event.handle = self.loop.call_later(max(0.0, event.due - now), event)

    def end(self) -> None:
        """Nothing happens here any more: as if the process was gone. Twice is harmless."""
        self.has_ended = True
        for server in self._servers:
            server.close()
        for sock in self._reserved.values():
            sock.close()
        for event in tuple(self._events):
            event.cancel()
        for transport in self._transports:
            transport.abort()
        for task in tuple(self.tasks):
            task.cancel()
        self._servers.clear()
        self._reserved.clear()
        self._transports.clear()
        threads, self._threads = self._threads, {}
        for each in threads.values():
            each.shutdown(wait=True, cancel_futures=True)
        self.is_paused = False

    # -- what its servers and connections need

    def start_task(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def add_transport(self, transport: Any) -> None:
        """One that `end` shall abort."""
        if len(self._transports) >= _PRUNE_AT:
            self._transports = [each for each in self._transports if not each.is_closing()]
        self._transports.append(transport)

    def adopt(
        self, accepted: socket.socket, protocol_factory: Callable[[], Any], tls: ssl.SSLContext | None
    ) -> None:
        """Serve a connection."""
        is_taken = False  # by a transport, which closes it

        async def serve() -> None:
            nonlocal is_taken
            try:
                transport, _ = await self.loop.connect_accepted_socket(protocol_factory, accepted, ssl=tls)
            except OSError:  # a handshake that failed
                return
            is_taken = True
            if self.has_ended:
                transport.abort()
            else:
                self.add_transport(transport)

        def served(_: asyncio.Task[None]) -> None:
            if not is_taken:  # it may have been cancelled before it began
                accepted.close()

        self.start_task(serve()).add_done_callback(served)

    # -- the runtime

    def time_ms(self) -> int:
        return self._clock.time_ms()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def add_writer(self, descriptor: int, callback: Callable[[], object]) -> None:
        self._writers[descriptor] = callback
        if not self.is_paused:
            self.loop.add_writer(descriptor, callback)

    def remove_writer(self, descriptor: int) -> None:
        self._writers.pop(descriptor, None)
        self.loop.remove_writer(descriptor)

    def call_soon(self, callback: Callable[[], object]) -> None:
        if not self.has_ended:
            event = Event(self, self._events, callback)
            event.handle = self.loop.call_soon(event)

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> None:
        if not self.has_ended:
            super().call_soon_threadsafe(lambda: None if self.has_ended else callback())

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        if self.has_ended:
            return _NoEvent()
        event = Event(self, self._events, callback, self._clock.monotonic() + delay_s)
        event.handle = self.loop.call_later(delay_s, event)
        return event

    def run_in_thread(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], object],
        *,
        remote: bool = False,
        background: bool = False,
    ) -> None:
        if self.has_ended:
            return
        if self._has_threads:
            super().run_in_thread(work, done, remote=remote, background=background)
            return

        def run() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - as a thread does: whatever it is goes to `done`
                done(None, error)
            else:
                done(result, None)

        self.call_soon(run)

    def run_all(self, works: Sequence[Callable[[], object]]) -> list[BaseException | None]:
        if self._has_threads:
            return super().run_all(works)
        return [error for work in works for error in super(NodeRuntime, self).run_all([work])]

    def listen(
        self,
        host: str,
        port: int,
        protocol_factory: Callable[[], Any],
        *,
        send_buffer_bytes: int = -1,
        receive_buffer_bytes: int = -1,
        tls: ssl.SSLContext | None = None,
    ) -> Server:
        sock = self._reserved.pop(port, None) or bind_socket(
            host, port, send_buffer_bytes=send_buffer_bytes, receive_buffer_bytes=receive_buffer_bytes
        )
        server = NodeServer(self, sock, protocol_factory, tls)
        self._servers.append(server)
        return server

    def connect(
        self,
        host: str,
        port: int,
        protocol_factory: Callable[[], Any],
        failed: Callable[[OSError], object],
        *,
        tls: ssl.SSLContext | None = None,
    ) -> Connecting:
        return NodeConnecting(self, host, port, protocol_factory, failed, tls)
