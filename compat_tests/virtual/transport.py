"""One side of a connection in a virtual network: the kernel's socket (`Endpoint`), and the transport and sockets of
the process.

Data that was sent is in flight until it arrives, and then waits until the process reads it. Both together are at most
`WINDOW_BYTES`, so a reader that does not read makes the writer wait. The peer sees the end when the transport and
every dup of its socket are closed, as with real descriptors.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from compat_tests.virtual.network import Host, VirtualNetwork

WINDOW_BYTES: Final = 256 * 1024
HIGH_WATER_BYTES: Final = 64 * 1024  # buffered bytes above which a transport pauses its protocol
_END, _RESET = "end", "reset"


class VirtualSocket:
    """A descriptor of a connection."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._descriptor = endpoint.network.open_descriptor(endpoint)

    def fileno(self) -> int:
        return self._descriptor

    def dup(self) -> VirtualSocket:
        if self._descriptor < 0 or self._endpoint.is_closed:
            raise OSError(errno.EBADF, "the socket is closed")
        return VirtualSocket(self._endpoint)

    def send(self, data: bytes | memoryview, flags: int = 0) -> int:
        if self._descriptor < 0:
            raise OSError(errno.EBADF, "the socket is closed")
        return self._endpoint.send(data)

    def detach(self) -> int:
        """Does nothing: it is the transport's own socket."""
        return self._descriptor

    def setsockopt(self, *_: object) -> None:
        """Does nothing: there are no options."""

    def getsockname(self) -> tuple[str, int]:
        return self._endpoint.name

    def getpeername(self) -> tuple[str, int]:
        return self._endpoint.peer_name

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            self._endpoint.network.close_descriptor(descriptor, self._endpoint)


class Endpoint:
    """One side of a connection. `peer` is the other."""

    def __init__(
        self, network: VirtualNetwork, owner: Host, name: tuple[str, int], peer_name: tuple[str, int]
    ) -> None:
        self.network = network
        self.owner = owner
        self.host, self.peer_host = name[0], peer_name[0]
        self.name = name
        self.peer_name = peer_name
        self.peer: Endpoint
        self.number = 0  # unique in its network
        self.descriptors: list[int] = []
        self.transport: VirtualTransport | None = None
        self.is_closed = False  # no descriptor is left
        self.is_reading = True
        self.error: OSError | None = None  # why the connection is broken
        self._on_the_way: deque[tuple[float, bytearray | str]] = (
            deque()
        )  # to the peer: (time of sending, data)
        self._arrives_at = 0.0  # arrival time of the last data in flight
        self._stalled_since: float | None = None
        self._unread = 0  # bytes in flight or not read by the peer
        self._received = bytearray()
        self._end_received = False
        self._read_is_due = False

    # -- process

    def start(self, protocol_factory: Callable[[], Any]) -> None:
        """Starts the protocol of an established connection."""
        protocol = protocol_factory()
        self.transport = VirtualTransport(self, protocol)
        protocol.connection_made(self.transport)
        if self.error is not None:
            self.transport.lose(self.error)
        else:
            self.want_read()

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Number of bytes that the kernel has taken; BlockingIOError for none, OSError on a broken connection."""
        if self.error is not None:
            raise self.error
        room = WINDOW_BYTES - self._unread
        if room <= 0:
            raise BlockingIOError(errno.EAGAIN, "the socket takes no more")
        count = min(room, len(data))
        self._unread += count
        now = self.network.world.now
        if self._on_the_way:
            sent_at, last = self._on_the_way[-1]
            if sent_at == now and isinstance(last, bytearray):
                last += data[:count]
                return count
        self._push(bytearray(data[:count]))
        return count

    def takes_bytes(self) -> bool:
        """Whether `send` would not block."""
        return self.error is not None or self._unread < WINDOW_BYTES

    def want_read(self) -> None:
        """Schedules a read of the process, if data has arrived and its transport reads."""
        if (
            not self._read_is_due
            and self.is_reading
            and self.transport is not None
            and (self._received or self._end_received)
        ):
            self._read_is_due = True
            self.network.world.schedule(self.network.world.now, self.owner, self._read)

    def _read(self) -> None:
        self._read_is_due = False
        transport = self.transport
        if transport is None or not self.is_reading or transport.is_closing():
            return
        received = self._received
        if received:
            cuts = self.network.cuts_pieces
            count = len(received) if cuts is None else cuts(len(received))
            taken = transport.feed(received, count)
            del received[:taken]
            self.peer.bytes_were_read(taken)
            self.want_read()
        elif self._end_received:
            self._end_received = False
            transport.feed_end()

    # -- kernel

    def all_closed(self) -> None:
        """The last descriptor is closed: the peer sees the end after all sent data, or a reset instead."""
        self.is_closed = True
        if self.error is None:
            self._send_end()
        self._received.clear()

    def owner_ended(self, *, is_silent: bool) -> None:
        """The process has ended."""
        self.is_closed = True
        self.transport = None
        if is_silent:
            self._on_the_way.clear()
        elif self.error is None:
            self._send_end()

    def _send_end(self) -> None:
        self.error = BrokenPipeError(errno.EPIPE, "the connection is closed")
        if self.network.resets() or self._received:
            self._on_the_way.clear()
            self._push(_RESET)
        else:
            self._push(_END)

    def _push(self, what: bytearray | str) -> None:
        world = self.network.world
        is_first = not self._on_the_way
        self._on_the_way.append((world.now, what))
        if is_first:
            at = max(world.now + self.network.delay(self.host, self.peer_host), self._arrives_at)
            world.schedule(at, self.network, self._arrive)

    def _arrive(self) -> None:
        """Moves the first data in flight to the peer's kernel, unless it is blocked."""
        if not self._on_the_way:
            return
        network, world = self.network, self.network.world
        if network.is_blocked(self.host, self.peer_host) or self.peer_host in network.without_power:
            if self._stalled_since is None:
                self._stalled_since = world.now
            stalled_s = world.now - self._stalled_since
            if stalled_s > network.kernel_timeout_s:
                self._on_the_way.clear()
                self.lose(TimeoutError(errno.ETIMEDOUT, "connection timed out"))
            else:
                world.schedule(world.now + network.retry_after(stalled_s), network, self._arrive)
            return
        self._stalled_since = None
        self._arrives_at = world.now
        _, what = self._on_the_way.popleft()
        if self._on_the_way:
            sent_at = self._on_the_way[0][0]
            at = max(world.now, sent_at + network.delay(self.host, self.peer_host))
            world.schedule(at, network, self._arrive)
        self.peer.receive(what)

    def receive(self, what: bytearray | str) -> None:
        """Data or an end from the peer has arrived."""
        if self.is_closed:
            if isinstance(what, bytearray):  # the process has closed: the sender gets a reset
                reset = ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
                if not self.network.is_blocked(self.host, self.peer_host):
                    self.network.later(
                        self.host, self.peer_host, self.network, partial(self.peer.lose, reset)
                    )
        elif what is _RESET:
            self.lose(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))
        elif what is _END:
            self._end_received = True
            self.want_read()
        else:
            assert isinstance(what, bytearray)
            self._received += what
            self.want_read()

    def bytes_were_read(self, count: int) -> None:
        """The peer has read so many bytes."""
        was_full = self._unread >= WINDOW_BYTES
        self._unread -= count
        if was_full:
            self.network.later(self.peer_host, self.host, self.network, partial(self.network.may_write, self))

    def lose(self, error: OSError) -> None:
        """Breaks the connection."""
        if self.error is not None:
            return
        self.error = error
        self._received.clear()
        self.network.may_write(self)
        if self.transport is not None and not self.owner.ended:
            self.network.world.schedule(
                self.network.world.now, self.owner, partial(self.transport.lose, error)
            )


class VirtualTransport:
    """The transport of a protocol, as asyncio's transports are."""

    def __init__(self, endpoint: Endpoint, protocol: Any) -> None:
        self._endpoint = endpoint
        self._protocol = protocol
        self._socket = VirtualSocket(endpoint)
        self._buffer = bytearray()  # bytes that the socket has not taken yet
        self._is_closing = False
        self._is_lost = False
        self._protocol_paused = False
        self._is_buffered = hasattr(protocol, "get_buffer")

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket":
            return self._socket
        if name == "peername":
            return self._endpoint.peer_name
        return self._endpoint.name if name == "sockname" else default

    def get_protocol(self) -> Any:
        return self._protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._endpoint.is_reading = False

    def resume_reading(self) -> None:
        if not self._is_closing:
            self._endpoint.is_reading = True
            self._endpoint.want_read()

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Does nothing: the limits are fixed."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or not data:
            return
        if not self._buffer:
            try:
                data = data[self._endpoint.send(data) :]
            except BlockingIOError:
                pass
            except OSError as error:
                self.lose(error)
                return
            if not data:
                return
            self._endpoint.network.add_writer(self._socket.fileno(), self._flush)
        self._buffer += data
        if len(self._buffer) > HIGH_WATER_BYTES and not self._protocol_paused:
            self._protocol_paused = True
            self._protocol.pause_writing()

    def writelines(self, pieces: list[bytes]) -> None:
        self.write(b"".join(pieces))

    def close(self) -> None:
        """Ends the stream after the buffered bytes."""
        if not self._is_closing:
            self._is_closing = True
            self._endpoint.is_reading = False
            if not self._buffer:
                self._end_soon(None)

    def abort(self) -> None:
        self.lose(None)

    # -- for the network

    def feed(self, received: bytearray, count: int) -> int:
        """Passes at most `count` received bytes to the protocol; returns their number."""
        if not self._is_buffered:
            self._protocol.data_received(bytes(memoryview(received)[:count]))
            return count
        buffer = self._protocol.get_buffer(-1)
        count = min(count, len(buffer))
        assert count, "get_buffer() returned an empty buffer"
        buffer[:count] = memoryview(received)[:count]
        self._protocol.buffer_updated(count)
        return count

    def feed_end(self) -> None:
        if not self._protocol.eof_received():
            self.close()

    def lose(self, error: Exception | None) -> None:
        """Ends the connection now, and drops buffered bytes."""
        self._buffer.clear()
        self._is_closing = True
        self._endpoint.is_reading = False
        self._end_soon(error)

    def _end_soon(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._endpoint.owner.call_soon(partial(self._end, error))

    def _end(self, error: Exception | None) -> None:
        self._protocol.connection_lost(error)
        self._socket.close()

    def _flush(self) -> None:
        try:
            del self._buffer[: self._endpoint.send(self._buffer)]
        except BlockingIOError:
            return
        except OSError as error:
            self.lose(error)
        if not self._buffer:
            self._endpoint.network.remove_writer(self._socket.fileno())
            if self._protocol_paused:
                self._protocol_paused = False
                self._protocol.resume_writing()
            if self._is_closing:
                self._end_soon(None)
