"""A runtime with a virtual clock, which only the test moves, for tests that would otherwise wait.

- `run_until_idle` runs everything that is due; `advance` moves the clock and runs what becomes due on the way,
  each callback at its own time.
- There are no threads: `run_in_thread` does its work in the next turn, or after `thread_delay_s`, and delivers the
  result one turn later, so the order of events is the same in every run.
- Randomness comes from a seed.
- Several runtimes in one `VirtualWorld` share its time and its network (network.py), each as a host of its own. A
  runtime without a given world creates one, in which it can connect to its own ports only. `listening` holds the
  protocol factories by port, so a test can create a connection's protocol itself.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from barnabas.runtime.interface import Connecting, Runtime
from compat_tests.virtual.network import VirtualNetwork
from compat_tests.virtual.tls import client_side, server_side
from compat_tests.virtual.world import VirtualEvent, VirtualWorld

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")

VirtualTimer = VirtualEvent
FIRST_PORT = 40_000  # the first port for listeners and clients that request port 0


class VirtualServer:
    """A port that accepts connections until it is closed."""

    def __init__(self, listening: dict[int, Callable[[], Any]], port: int) -> None:
        self.port = port
        self._listening = listening

    def close(self) -> None:
        self._listening.pop(self.port, None)


class VirtualRuntime(Runtime):
    """See the module. Wall clock and monotonic clock move together, unless `wall_offset_ms` is changed; the wall
    clock starts at `start_ms`. `host` is the name for other runtimes of the world."""

    def __init__(
        self,
        seed: int = 0,
        start_ms: int = 1_700_000_000_000,
        *,
        network: VirtualNetwork | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.network = network if network is not None else VirtualNetwork(VirtualWorld(seed))
        self.world = self.network.world
        self.random = random.Random(seed)
        self.host = host
        self.listening: dict[int, Callable[[], Any]] = {}
        self.ended = False
        self.held_until = 0.0
        self.wall_offset_ms = 0  # by how much the wall clock has jumped
        self.thread_delay_s: Callable[[], float] | None = None  # duration of a thread's work
        self._start_ms = start_ms
        self._ready: deque[Callable[[], object]] = deque()
        self._turn_is_due = False
        self._next_port = FIRST_PORT
        self.network.add(self)

    # -- for the test

    def advance(self, seconds: float) -> None:
        """Moves the clock, stopping at every timer on the way, and runs everything that is due at the end."""
        assert seconds >= 0
        self.world.run_until(self.world.now + seconds)

    def run_until_idle(self) -> None:
        """Runs what is due now, and what that makes due, without moving the clock."""
        self.world.run_until_idle()

    def step(self) -> bool:
        """Runs one callback that is due now; False when there is none."""
        return self.world.step(self.world.now)

    def next_timer_at(self) -> float | None:
        """The moment of the next timer, on the monotonic clock; None when nothing is scheduled."""
        return self.world.next_at()

    def hold_until(self, moment: float) -> None:
        """Pauses the process until that time of the world, as SIGSTOP does; the host's kernel continues."""
        self.held_until = max(self.held_until, moment)

    def end(self, *, power_fails: bool = False) -> None:
        """Ends the process, as kill -9 does: its events never run, and the host's kernel closes its connections.
        After a power failure the kernel does not, and the peers notice later."""
        if not self.ended:
            self.ended = True
            self.listening.clear()
            self._ready.clear()
            self.network.process_ended(self, power_fails=power_fails)

    # -- Runtime

    def time_ms(self) -> int:
        return self._start_ms + round(self.world.now * 1000) + self.wall_offset_ms

    def monotonic(self) -> float:
        return self.world.now

    def random_bytes(self, count: int) -> bytes:
        return self.random.randbytes(count)

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._ready.append(callback)
        if not self._turn_is_due:
            self._turn_is_due = True
            self.world.schedule(self.world.now, self, self._turn, is_turn=True)

    def _turn(self) -> None:
        """Runs one callback of call_soon, so that other events can happen between two callbacks."""
        callback = self._ready.popleft()
        if self._ready:
            self.world.schedule(self.world.now, self, self._turn, is_turn=True)
        else:
            self._turn_is_due = False
        callback()

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> VirtualEvent:
        return self.world.schedule(self.world.now + delay_s, self, callback)

    def run_in_thread(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], object],
        *,
        remote: bool = False,
        background: bool = False,
    ) -> None:
        def run() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - as in a thread: any exception goes to `done`
                failure = error
                self.call_soon(lambda: done(None, failure))
            else:
                self.call_soon(lambda: done(result, None))

        if self.thread_delay_s is None:
            self.call_soon(run)
        else:
            self.world.schedule(self.world.now + self.thread_delay_s(), self, run)

    def run_all(self, works: Sequence[Callable[[], object]]) -> list[BaseException | None]:
        return [_error_of(work) for work in works]

    def limit_remote_threads(self, count: int) -> None:
        """Does nothing: there is no limit."""

    def listen(
        self,
        host: str,
        port: int,
        protocol_factory: Callable[[], Any],
        *,
        send_buffer_bytes: int = -1,
        receive_buffer_bytes: int = -1,
        tls: ssl.SSLContext | None = None,
    ) -> VirtualServer:
        if port in self.listening:
            raise OSError(98, f"address {host}:{port} in use")
        if port == 0:
            port = self.free_port()
        self.listening[port] = protocol_factory if tls is None else server_side(tls, protocol_factory)
        return VirtualServer(self.listening, port)

    def free_port(self) -> int:
        """A port that was not assigned before."""
        self._next_port += 1
        return self._next_port

    def connect(
        self,
        host: str,
        port: int,
        protocol_factory: Callable[[], Any],
        failed: Callable[[OSError], object],
        *,
        tls: ssl.SSLContext | None = None,
    ) -> Connecting:
        if tls is not None:
            protocol_factory = client_side(tls, host, protocol_factory, failed)
        return self.network.connect(self, host, port, protocol_factory, failed)

    def start_tls(
        self,
        transport: Any,
        protocol: Any,
        tls: ssl.SSLContext,
        server_name: str,
        done: Callable[[Any, OSError | None], object],
    ) -> None:
        self.call_soon(lambda: done(transport, None))

    def sending_socket(self, transport: Any) -> Any:
        return transport.get_extra_info("socket")

    def add_writer(self, descriptor: int, callback: Callable[[], object]) -> None:
        self.network.add_writer(descriptor, callback)

    def remove_writer(self, descriptor: int) -> None:
        self.network.remove_writer(descriptor)


def _error_of(work: Callable[[], object]) -> BaseException | None:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - passed on, as a thread pool does
        return error
    return None
