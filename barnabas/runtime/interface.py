"""The one runtime: clock, timers, randomness, threads and network, injected into everything that needs them.

Nothing below the composition root imports `time`, `random`, `threading` or `asyncio` (ruff TID251 keeps
them out), so the same code runs for real (barnabas/runtime/asyncio_runtime.py), under a virtual clock
(compat_tests/virtual/runtime.py) and under a simulator that decides the order of events (compat_tests/simulation).
"""

from __future__ import annotations

import random  # noqa: TID251 - the type only; instances come from the runtime
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")


class Timer(Protocol):
    """A callback that has been scheduled and may still be cancelled. Cancelling twice is harmless."""

    def cancel(self) -> None: ...


class Connecting(Protocol):
    """A connection that is being made. Once it is there, or has failed, cancelling does nothing."""

    def cancel(self) -> None: ...


class Server(Protocol):
    """A listening socket."""

    port: int  # the real one, when 0 was asked for

    def close(self) -> None: ...


class Runtime(Protocol):
    """What the outside world gives to the broker. All callbacks run on the one event loop's thread."""

    random: random.Random

    def time_ms(self) -> int:
        """Wall clock, milliseconds since the epoch; may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""
        ...

    def random_bytes(self, count: int) -> bytes: ...

    def call_soon(self, callback: Callable[[], object]) -> None: ...

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer: ...

    def run_in_thread(
        self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], object]
    ) -> None:
        """Run blocking `work` off the loop; `done(result, error)` comes back on the loop, one of them None."""
        ...

    def run_all(self, works: Sequence[Callable[[], object]]) -> list[BaseException | None]:
        """Do pieces of blocking work, several at a time in threads, and wait for all of them: for starting and
        stopping, when the loop serves no requests. Returns what each has raised, in their order."""
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
        """Listen on host:port (0 picks one), with the system's buffers of each connection of these sizes (-1:
        the system's choice), under TLS if given. OSError when the address is in use or not ours."""
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
        data_received or get_buffer and buffer_updated, at last connection_lost. `failed(error)` instead, once, when there is no connection
        (ConnectionRefusedError where there is no listener); neither after `cancel`."""
        ...

    def start_tls(
        self,
        transport: Any,
        protocol: Any,
        tls: ssl.SSLContext,
        server_name: str,
        done: Callable[[Any, OSError | None], object],
    ) -> None:
        """Go on under TLS on a connection that `connect` has made. `done(transport, None)`: the protocol reads and
        writes through this transport from now on; or `done(None, error)`, and the connection is closed, with or without a
        call of connection_lost. In between nothing may be done with the transport. `server_name` is what the certificate
        is compared with."""
        ...

    def add_writer(self, descriptor: int, callback: Callable[[], object]) -> None:
        """Call back whenever `descriptor` can be written; one callback per descriptor, until removed."""
        ...

    def remove_writer(self, descriptor: int) -> None: ...
