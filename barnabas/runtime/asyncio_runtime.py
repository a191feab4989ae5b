"""The runtime on asyncio: the system's clock, one event loop (uvloop's or asyncio's own), a few threads, sockets.

All other modules see `runtime.interface.Runtime`; only the owner of the loop (barnabas/server.py, the in-process fixtures,
tests) uses this class and its run, stop and close.

- `listen` binds before it returns, so that an address in use is an OSError at the caller and the port is known at once; the
  loop accepts from its next turn on, and the kernel's backlog holds connections until then.
- Results of `run_in_thread` come back as events on the loop. After `close` they are dropped.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - this file is the runtime
import errno
import os
import random  # noqa: TID251 - this file is the runtime
import socket
import sys
import time  # noqa: TID251 - this file is the runtime
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from barnabas.runtime.interface import Connecting, Runtime, Server, Timer

if TYPE_CHECKING:
    import ssl
    from concurrent.futures import Future, ThreadPoolExecutor  # noqa: TID251 - this file is the runtime

T = TypeVar("T")

LISTEN_BACKLOG = 1024
# Threads wait for the disk, which serves many requests at a time; one slow read must not delay the sync of an
# acknowledgement. They are started as needed.
WORKER_THREADS = 16
TLS_HANDSHAKE_SECONDS_MAX = 10.0  # on an established connection


class _SendingSocket(socket.socket):
    """Its descriptor belongs to a transport. When it is forgotten the number may be another connection's already."""

    __slots__ = ()

    def __del__(self) -> None:
        self.detach()

    def dup(self) -> Any:  # one of its own, which may be closed
        return socket.socket(self.family, self.type, self.proto, fileno=os.dup(self.fileno()))


def new_event_loop(prefer_uvloop: bool = True) -> asyncio.AbstractEventLoop:
    """uvloop's loop where it is installed and preferred, otherwise asyncio's own."""
    if prefer_uvloop:
        try:
            import uvloop
        except ImportError:
            pass
        else:
            return uvloop.new_event_loop()
    return asyncio.new_event_loop()


def bind_socket(
    host: str, port: int, *, send_buffer_bytes: int = -1, receive_buffer_bytes: int = -1
) -> socket.socket:
    """A bound TCP socket; an empty host means every interface, including IPv6. Accepted connections inherit the sizes of the
    socket's buffers; -1 means the system's default.

    OSError (errno kept) when the name does not resolve or the address is in use or not this machine's.
    """
    if host in ("", "::") and socket.has_dualstack_ipv6():
        family, address = socket.AF_INET6, ("::", port)
    elif not host:
        family, address = socket.AF_INET, ("0.0.0.0", port)
    else:
        # As bytes: for text Python loads its tables of international names, which takes a millisecond
        name = host.encode() if host.isascii() else host
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # As in Java, a name with both kinds of address means its IPv4 address.
        found.sort(key=lambda entry: entry[0] != socket.AF_INET)
        family, address = found[0][0], (str(found[0][4][0]), port)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if send_buffer_bytes >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        if receive_buffer_bytes >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        if family == socket.AF_INET6:
            # Kafka's wildcard address serves both families; an explicit IPv6 address only its own.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if address[0] == "::" else 1)
        sock.bind(address)
        # Without SO_REUSEPORT a second listener on the port fails here, not later on the loop.
        sock.listen(LISTEN_BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


class AsyncioServer:
    """A listening socket on the loop. `close` stops accepting; open connections stay."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        self.port: int = sock.getsockname()[1]
        self._sock = sock
        self._tls = tls
        self._closed = False
        self._server: asyncio.AbstractServer | None = None
        self._starting = loop.create_task(self._start(loop, protocol_factory))

    async def _start(
        self, loop: asyncio.AbstractEventLoop, protocol_factory: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        if self._closed:
            return
        # In two steps, of which the first takes no turn of the loop: `close` must find what the loop watches.
        self._server = await loop.create_server(
            protocol_factory, sock=self._sock, backlog=LISTEN_BACKLOG, ssl=self._tls, start_serving=False
        )
        await self._server.start_serving()

    def close(self) -> None:
        self._closed = True
        if self._server is not None:
            self._server.close()
            self._server = None
        self._sock.close()


def refused_everywhere(error: OSError) -> OSError:
    """ConnectionRefusedError where all addresses of a name refused: asyncio reports them in one error without an errno."""
    text = str(error)
    refused = text.count(f"[Errno {errno.ECONNREFUSED}]")
    if error.errno is None and refused and refused == text.count("[Errno "):
        return ConnectionRefusedError(errno.ECONNREFUSED, text)
    return error


class AsyncioConnecting:
    """An attempt to connect."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        host: str,
        port: int,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        failed: Callable[[OSError], object],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._failed = failed
        self._cancelled = False
        self._task = loop.create_task(self._connect(loop, host, port, protocol_factory, tls))

    async def _connect(
        self,
        loop: asyncio.AbstractEventLoop,
        host: str,
        port: int,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        try:
            transport, _ = await loop.create_connection(protocol_factory, host, port, ssl=tls)
        except OSError as error:  # also for names that do not resolve and for failures of TLS
            if not self._cancelled:
                self._failed(refused_everywhere(error))
            return
        if self._cancelled:
            transport.abort()

    def cancel(self) -> None:
        self._cancelled = True
        self._task.cancel()


class AsyncioRuntime(Runtime):
    """The runtime of a process. `run` until `stop`; `close` once, after `run` has returned."""

    def __init__(self, prefer_uvloop: bool = True, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """`loop`: a new one unless given."""
        self.loop = new_event_loop(prefer_uvloop) if loop is None else loop
        self.random = random.Random()
        self._threads: dict[
            tuple[bool, bool], ThreadPoolExecutor
        ] = {}  # by run_in_thread's (remote, background)
        self._remote_threads = WORKER_THREADS
        self._former_threads: list[ThreadPoolExecutor] = []  # that finish what they have
        self._upgrades: set[asyncio.Task[None]] = set()

    # -- clock and randomness

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # Without a Python frame: it is called for each read of a connection.
    monotonic = staticmethod(time.monotonic)

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    # -- events

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.loop.call_soon(callback)

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> None:
        """`call_soon` for a caller on another thread; a closed loop ignores it."""
        try:
            self.loop.call_soon_threadsafe(callback)
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        return self.loop.call_later(delay_s, callback)

    # -- threads

    def run_in_thread(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], object],
        *,
        remote: bool = False,
        background: bool = False,
    ) -> None:
        def hand_over(future: Future[T]) -> None:
            error = future.exception()
            result = None if error is not None else future.result()
            self.call_soon_threadsafe(lambda: done(result, error))

        threads = self._threads.get((remote, background))
        if threads is None:
            count = self._remote_threads if remote and not background else WORKER_THREADS
            threads = self._threads[remote, background] = self._new_threads(count)
        threads.submit(work).add_done_callback(hand_over)

    def limit_remote_threads(self, count: int) -> None:
        if count == self._remote_threads:
            return
        self._remote_threads = count
        former = self._threads.pop((True, False), None)
        if former is not None:
            former.shutdown(wait=False)
            self._former_threads.append(former)

    def run_all(self, works: Sequence[Callable[[], object]]) -> list[BaseException | None]:
        if len(works) < 2:
            return [_error_of(work) for work in works]
        errors: list[BaseException | None] = [None] * len(works)
        # A future for each of ten thousand logs would take as long as closing them.
        waiting = iter(range(len(works)))

        def work_on() -> None:
            for index in waiting:
                errors[index] = _error_of(works[index])

        with self._new_threads() as threads:
            for _ in range(min(WORKER_THREADS, len(works))):
                threads.submit(work_on)
        return errors

    @staticmethod
    def _new_threads(count: int = WORKER_THREADS) -> ThreadPoolExecutor:
        # Imported late: it takes several milliseconds, and an idle broker needs no thread.
        from concurrent.futures import ThreadPoolExecutor  # noqa: TID251 - this file is the runtime

        return ThreadPoolExecutor(count, thread_name_prefix="barnabas-worker")

    # -- network

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
        sock = bind_socket(
            host, port, send_buffer_bytes=send_buffer_bytes, receive_buffer_bytes=receive_buffer_bytes
        )
        return AsyncioServer(self.loop, sock, protocol_factory, tls)

    def connect(
        self,
        host: str,
        port: int,
        protocol_factory: Callable[[], Any],
        failed: Callable[[OSError], object],
        *,
        tls: ssl.SSLContext | None = None,
    ) -> Connecting:
        return AsyncioConnecting(self.loop, host, port, protocol_factory, failed, tls)

    def start_tls(
        self,
        transport: Any,
        protocol: Any,
        tls: ssl.SSLContext,
        server_name: str,
        done: Callable[[Any, OSError | None], object],
    ) -> None:
        async def upgrade() -> None:
            if transport.is_closing():
                done(None, ConnectionResetError(errno.ECONNRESET, "closed before TLS began"))
                return
            try:
                upgraded = await self.loop.start_tls(
                    transport,
                    protocol,
                    tls,
                    server_hostname=server_name,
                    ssl_handshake_timeout=TLS_HANDSHAKE_SECONDS_MAX,
                )
            except OSError as error:  # also for failures of TLS
                done(None, error)
            else:
                if upgraded is None:
                    done(None, ConnectionResetError(errno.ECONNRESET, "closed while TLS began"))
                else:
                    done(upgraded, None)

        transport.pause_reading()  # bytes from now on are TLS's, which resumes reading
        task = self.loop.create_task(upgrade())
        self._upgrades.add(task)  # the loop holds only weak references to tasks
        task.add_done_callback(self._upgrades.discard)

    def sending_socket(self, transport: Any) -> socket.socket:
        of = transport.get_extra_info("socket")
        made = _SendingSocket(of.family, of.type, of.proto, fileno=of.fileno())
        made.setblocking(False)
        return made

    def add_writer(self, descriptor: int, callback: Callable[[], object]) -> None:
        self.loop.add_writer(descriptor, callback)

    def remove_writer(self, descriptor: int) -> None:
        self.loop.remove_writer(descriptor)

    # -- the process's side

    def on_signal(self, signal_number: int, callback: Callable[[], object]) -> None:
        """Call back on the loop at a POSIX signal; from the main thread only."""
        self.loop.add_signal_handler(signal_number, callback)

    def add_reader(self, descriptor: int, callback: Callable[[], object]) -> None:
        """Call back whenever `descriptor` is readable or at its end, until removed."""
        self.loop.add_reader(descriptor, callback)

    def remove_reader(self, descriptor: int) -> None:
        self.loop.remove_reader(descriptor)

    def run(self) -> None:
        """Run the loop on this thread until `stop`."""
        self.loop.run_forever()

    def stop(self) -> None:
        """End `run` after the current turn. From the loop's thread; others use call_soon_threadsafe(stop)."""
        self.loop.stop()

    def close(self) -> None:
        """Wait for the threads, then close the loop. Callbacks that are still scheduled never run."""
        for (remote, _), threads in self._threads.items():
            threads.shutdown(wait=not remote, cancel_futures=remote)
        for threads in self._former_threads:
            threads.shutdown(wait=False, cancel_futures=True)
        loop = self.loop
        if loop.is_closed():
            return
        pending = asyncio.all_tasks(loop)
        for task in pending:
            task.cancel()
        if pending:
            loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        loop.close()


def _error_of(work: Callable[[], object]) -> BaseException | None:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - handed over
        return error
    return None


def loop_name(runtime: AsyncioRuntime) -> str:
    """`uvloop 0.21.0` or `asyncio`, for the log."""
    module = type(runtime.loop).__module__.partition(".")[0]
    return f"{module} {getattr(sys.modules[module], '__version__', '')}".strip()
