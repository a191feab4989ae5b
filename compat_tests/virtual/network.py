"""The network between the runtimes of one virtual world: reachability, delays and faults.

- Each runtime is a host, with its name as the host name; names of the loopback interface mean the connecting host.
  A host may have one runtime after the other, as processes start and end.
- A connection is TCP: bytes in order, in pieces of any size, or an end of stream. It loses nothing: what a `block`
  stops is retransmitted when the way is open again. So a duplicate or late message always comes over another
  connection, possibly one that its peer gave up.
- A process that ends closes its connections. A host whose power fails sends nothing, and its peers get a reset when
  they hear from it again.
- A connection to a port without a listener is refused; without an answer it is retried until `CONNECT_TIMEOUT_S`.

The caller may replace `delay_s` and `cuts_pieces`. By default messages take no time and arrive in the pieces in which
they were sent, so `run_until_idle` delivers them.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

from compat_tests.virtual.transport import Endpoint, VirtualTransport
from compat_tests.virtual.world import Process, VirtualEvent, VirtualWorld

LOOPBACK = ("", "127.0.0.1", "localhost", "::1", "0.0.0.0", "::")
CONNECT_TIMEOUT_S = 30.0
RETRY_FIRST_S = 0.2  # the first retransmission timeout, doubled each time
RETRY_MAX_S = 3.0
KERNEL_TIMEOUT_S = 15.0  # of retransmissions, after which a connection ends
FIRST_DESCRIPTOR = 1_000_000  # higher than any descriptor of the real process


class Host(Process, Protocol):
    """A runtime, as seen by the network."""

    host: str
    listening: dict[int, Callable[[], Any]]

    def free_port(self) -> int: ...

    def call_soon(self, callback: Callable[[], object]) -> None: ...


class VirtualConnecting:
    """A pending connection attempt."""

    def __init__(self, failed: Callable[[OSError], object]) -> None:
        self.failed = failed
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class VirtualNetwork:
    """See the module."""

    def __init__(self, world: VirtualWorld) -> None:
        self.world = world
        self.delay_s: Callable[[str, str], float] | None = (
            None  # (from host, to host) -> delay of one message
        )
        self.cuts_pieces: Callable[[int], int] | None = None  # bytes that arrived -> length of the next piece
        self.resets: Callable[[], bool] = lambda: False  # whether an abort drops data in flight
        self.hosts: dict[str, Host] = {}  # the newest runtime of each name
        self.without_power: set[str] = set()
        self.kernel_timeout_s = KERNEL_TIMEOUT_S
        self.ended = False  # the network is itself the process of its hosts' kernels
        self.held_until = 0.0
        self._endpoints: dict[int, Endpoint] = {}  # all open endpoints, by their first descriptor
        self._by_descriptor: dict[int, Endpoint] = {}
        self._blocked: set[tuple[str, str]] = set()
        self._writers: dict[int, VirtualEvent] = {}
        self._callbacks: dict[int, Callable[[], object]] = {}
        self._next_descriptor = FIRST_DESCRIPTOR
        self._next_endpoint = 0

    # -- reachability

    def add(self, host: Host) -> None:
        """Adds a host whose process starts."""
        self.hosts[host.host] = host
        self.without_power.discard(host.host)

    def block(self, source: str, target: str) -> None:
        """Blocks all messages from source to target."""
        self._blocked.add((source, target))

    def unblock(self, source: str, target: str) -> None:
        self._blocked.discard((source, target))

    def unblock_all(self) -> None:
        self._blocked.clear()

    def is_blocked(self, source: str, target: str) -> bool:
        return (source, target) in self._blocked

    def reset(self, first: str, second: str) -> int:
        """Resets every connection between two hosts, as a router that drops its table does; returns their number."""
        found = [
            endpoint
            for endpoint in self._endpoints.values()
            if (endpoint.host, endpoint.peer_host) == (first, second)
        ]
        for endpoint in found:
            error = ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
            for side in (endpoint, endpoint.peer):
                self.later(first, second, self, partial(side.lose, error))
        return len(found)

    def end(self) -> None:
        """Does nothing: kernels do not end."""

    def retry_after(self, stalled_s: float) -> float:
        """Seconds until the next retransmission of data that has been blocked for `stalled_s`."""
        spread = self.world.random.uniform(0.8, 1.2) if self.world.shuffles else 1.0
        return min(max(stalled_s, RETRY_FIRST_S), RETRY_MAX_S) * spread

    def delay(self, source: str, target: str) -> float:
        if self.delay_s is None or source == target:
            return 0.0
        return self.delay_s(source, target)

    def later(self, source: str, target: str, owner: Process, callback: Callable[[], object]) -> VirtualEvent:
        """Schedules a callback after the delay of a message from source to target, ignoring blocks."""
        return self.world.schedule(self.world.now + self.delay(source, target), owner, callback)

    # -- processes

    def process_ended(self, owner: Host, *, power_fails: bool) -> None:
        """See VirtualRuntime.end."""
        if power_fails:
            self.without_power.add(owner.host)
        for endpoint in [endpoint for endpoint in self._endpoints.values() if endpoint.owner is owner]:
            self._forget(endpoint)
            endpoint.owner_ended(is_silent=power_fails)

    # -- connections

    def connect(
        self,
        client: Host,
        host: str,
        port: int,
        protocol_factory: Callable[[], Any],
        failed: Callable[[OSError], object],
    ) -> VirtualConnecting:
        connecting = VirtualConnecting(failed)
        target = client.host if host in LOOPBACK else host
        give_up_at = self.world.now + CONNECT_TIMEOUT_S
        waits = _retries()
        name = f"{host}:{port}"

        def attempt() -> None:
            if connecting.cancelled:
                return
            if self.world.now >= give_up_at:
                failed(TimeoutError(errno.ETIMEDOUT, f"connection to {name} timed out"))
                return
            is_lost = (
                target not in self.hosts
                or target in self.without_power
                or self.is_blocked(client.host, target)
                or self.is_blocked(target, client.host)
            )
            if is_lost:
                self.world.schedule(self.world.now + next(waits), client, attempt)
                return
            self.later(client.host, target, client, arrive)

        def arrive() -> None:
            if connecting.cancelled:
                return
            server = self.hosts[target]
            factory = server.listening.get(port)
            if server.ended or factory is None:
                refused = ConnectionRefusedError(errno.ECONNREFUSED, f"{name} refuses connections")
                self.later(target, client.host, client, lambda: connecting.cancelled or failed(refused))
                return
            near, far = self._join(client, server, port)
            # The kernel accepts; the process handles that at its next turn, perhaps after bytes have arrived.
            self.world.schedule(self.world.now, server, partial(far.start, factory))
            self.later(target, client.host, client, partial(start, near))

        def start(near: Endpoint) -> None:
            if connecting.cancelled:
                near.start(_CancelledConnection)  # which closes the connection
            else:
                near.start(protocol_factory)

        self.world.schedule(self.world.now, client, attempt)
        return connecting

    def _join(self, client: Host, server: Host, port: int) -> tuple[Endpoint, Endpoint]:
        client_name, server_name = (client.host, client.free_port()), (server.host, port)
        near = self._open(client, client_name, server_name)
        far = self._open(server, server_name, client_name)
        near.peer, far.peer = far, near
        return near, far

    def _open(self, owner: Host, name: tuple[str, int], peer_name: tuple[str, int]) -> Endpoint:
        endpoint = Endpoint(self, owner, name, peer_name)
        self._next_endpoint += 1
        self._endpoints[self._next_endpoint] = endpoint
        endpoint.number = self._next_endpoint
        return endpoint

    def _forget(self, endpoint: Endpoint) -> None:
        for descriptor in endpoint.descriptors:
            self.remove_writer(descriptor)
            self._by_descriptor.pop(descriptor)
        endpoint.descriptors.clear()
        self._endpoints.pop(endpoint.number, None)

    # -- descriptors

    def open_descriptor(self, endpoint: Endpoint) -> int:
        """A new descriptor of an endpoint."""
        self._next_descriptor += 1
        self._by_descriptor[self._next_descriptor] = endpoint
        endpoint.descriptors.append(self._next_descriptor)
        return self._next_descriptor

    def close_descriptor(self, descriptor: int, endpoint: Endpoint) -> None:
        if descriptor not in self._by_descriptor:  # its process has ended
            return
        self.remove_writer(descriptor)
        del self._by_descriptor[descriptor]
        endpoint.descriptors.remove(descriptor)
        if not endpoint.descriptors:
            self._forget(endpoint)
            endpoint.all_closed()

    def send(self, descriptor: int, data: bytes | bytearray | memoryview) -> int:
        """Like `os.write` to a non-blocking socket; for `MemoryDisk.write_descriptor`."""
        return self._by_descriptor[descriptor].send(data)

    def add_writer(self, descriptor: int, callback: Callable[[], object]) -> None:
        self._callbacks[descriptor] = callback
        self._may_write(descriptor)

    def remove_writer(self, descriptor: int) -> None:
        self._callbacks.pop(descriptor, None)
        event = self._writers.pop(descriptor, None)
        if event is not None:
            event.cancel()

    def may_write(self, endpoint: Endpoint) -> None:
        """Schedules the writers that wait for the socket, if it takes bytes; repeated until they are removed."""
        for descriptor in endpoint.descriptors:
            self._may_write(descriptor)

    def _may_write(self, descriptor: int) -> None:
        if descriptor in self._callbacks and self._writers.get(descriptor) is None:
            endpoint = self._by_descriptor[descriptor]
            if endpoint.takes_bytes():
                self._writers[descriptor] = self.world.schedule(
                    self.world.now, endpoint.owner, partial(self._notify_writer, descriptor)
                )

    def _notify_writer(self, descriptor: int) -> None:
        self._writers.pop(descriptor, None)
        callback = self._callbacks.get(descriptor)
        if callback is not None and self._by_descriptor[descriptor].takes_bytes():
            callback()
            self._may_write(descriptor)


def _retries() -> Iterator[float]:
    wait = RETRY_FIRST_S
    while True:
        yield wait
        wait = min(2 * wait, RETRY_MAX_S)


class _CancelledConnection:
    """Protocol of a connection that its client has cancelled: it closes the transport."""

    def connection_made(self, transport: VirtualTransport) -> None:
        transport.abort()

    def data_received(self, data: bytes) -> None: ...

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None: ...
