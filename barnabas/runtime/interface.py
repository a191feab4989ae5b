"""The runtime: clock, timers, randomness, threads and network, passed to everything that needs them.

No other module imports `time`, `random`, `threading` or `asyncio` (ruff TID251), so the same code runs on asyncio
(barnabas/runtime/asyncio_runtime.py), on a virtual clock (compat_tests/virtual/runtime.py) and in a simulator that decides
the order of events (compat_tests/simulation).
"""

from __future__ import annotations

import random  # noqa: TID251 - the type only; instances come from the runtime
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")


class Timer(Protocol):
    """A scheduled callback. Cancelling it again, or after it has run, has no effect."""

    def cancel(self) -> None: ...


class Connecting(Protocol):
    """An attempt to connect. Once it has succeeded or failed, cancelling has no effect."""

    def cancel(self) -> None: ...


class Server(Protocol):
    """A listening socket."""

    port: int  # the actual one, when 0 was asked for

    def close(self) -> None: ...


class Runtime(Protocol):
    """All that the broker uses of the system. All callbacks run on the thread of the event loop."""

    random: random.Random

    def time_ms(self) -> int:
        """Wall-clock time in milliseconds since the epoch; may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds on a monotonic clock."""
        ...

    def random_bytes(self, count: int) -> bytes: ...

    def call_soon(self, callback: Callable[[], object]) -> None: ...

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer: ...

    def run_in_thread(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], object],
        *,
        remote: bool = False,
        background: bool = False,
    ) -> None:
        """Run blocking `work` in a thread; then `done(result, error)` on the loop, one of them None. `remote`: the work waits for
        another machine; it gets one of other threads, so that it delays no sync however long that machine takes. `background`: of remote
        work, what no request waits for: its threads are others again."""
        ...

    def limit_remote_threads(self, count: int) -> None:
        """At most `count` pieces of remote work that requests wait for are done at a time from now on; others wait."""
        ...

    def run_all(self, works: Sequence[Callable[[], object]]) -> list[BaseException | None]:
        """Do pieces of blocking work, several at a time in threads, and wait for all of them: at the start and the stop, when the
        loop serves no requests. Returns the exception of each, in their order."""
        ...

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
        """Listen on host:port (0: any free port), with socket buffers of these sizes (-1: the system's default), with TLS if given.
        OSError when the address is in use or not this machine's."""
        ...

    def connect(
        self,
        host: str,
        port: int,
        protocol_factory: Callable[[], Any],
        failed: Callable[[OSError], object],
        *,
        tls: ssl.SSLContext | None = None,
    ) -> Connecting:
        """Connect to host:port. The protocol is called as asyncio's are: connection_made(transport), then
        data_received or get_buffer and buffer_updated, at last connection_lost. `failed(error)` instead, once, when the attempt
        fails (ConnectionRefusedError where there is no listener). No callback after `cancel`."""
        ...

    def start_tls(
        self,
        transport: Any,
        protocol: Any,
        tls: ssl.SSLContext,
        server_name: str,
        done: Callable[[Any, OSError | None], object],
    ) -> None:
        """Start TLS on a connection of `connect`. `done(transport, None)`: the protocol reads and writes through this transport from
        now on; or `done(None, error)`: the connection is closed, with or without a call of connection_lost. In between the
        transport must not be used. `server_name`: the name that the certificate must have."""
        ...

    def sending_socket(self, transport: Any) -> Any:
        """A socket on the transport's own descriptor, to send with in place of the transport. The transport closes it after
        `connection_lost`: call `detach` until then, and never `close`. `dup` makes one that may be waited for (`add_writer`)."""
        ...

    def add_writer(self, descriptor: int, callback: Callable[[], object]) -> None:
        """Call back whenever `descriptor` is writable; one callback per descriptor, until removed."""
        ...

    def remove_writer(self, descriptor: int) -> None: ...
