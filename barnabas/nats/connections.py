"""The connections of this broker to NATS systems, made when a binding needs them, and ended when none has for a while.

Each named connection (nats.servers is the one without a name) is up to three clients: core messages come in on one, which
stops reading when the log takes nothing; messages of streams come in on another one, as they are requested; the third one
publishes. The latter two go on while the first one does not read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from barnabas.nats.client.client import ClientListener, NatsClient
from barnabas.nats.client.heartbeat import Heartbeat
from barnabas.runtime.repeated_warnings import RepeatedWarnings

if TYPE_CHECKING:
    from barnabas.nats.client.connection_settings import ConnectionSettings
    from barnabas.nats.client.errors import Cause, NatsError
    from barnabas.nats.client.protocol import ServerInfo
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.nats")

IDLE_S: Final = 30.0  # without a binding, or twice as long


class Intake(ClientListener):
    """A client that messages come in on. `closers` are called after each piece of data that was read."""

    def __init__(self, runtime: Runtime, settings: ConnectionSettings, name: str) -> None:
        self.client = NatsClient(runtime, settings, name, self._close)
        self.heartbeat = Heartbeat(runtime, self.client)  # the first listener that is called
        self.closers: list[Callable[[], object]] = []
        self._failures = RepeatedWarnings(runtime, log)  # it may fail with each piece of data
        self.is_unreachable = False
        self._is_behind = False  # the server may not know the subscriptions yet
        self._waiting: list[Callable[[], object]] = []
        self._holding: set[object] = set()  # bindings that can take no more for now
        self.client.listeners.append(self)

    def subscriptions_changed(self) -> None:
        self._is_behind = True

    def stop(self) -> None:
        self.heartbeat.stop()
        self.client.stop()

    @property
    def is_shared(self) -> bool:
        """Whether several bindings read from it."""
        return len(self.closers) > 1

    def hold(self, holder: object) -> None:
        """`holder` can take no more for now: nothing is read until all holders have called `let_go`."""
        if not self._holding:
            self.client.pause()
        self._holding.add(holder)

    def let_go(self, holder: object) -> None:
        if holder in self._holding:
            self._holding.discard(holder)
            if not self._holding:
                self.client.resume()

    def when_flushed(self, callback: Callable[[], object]) -> None:
        """Calls back when the server knows the subscriptions, or can't be reached."""
        if not self._is_behind or self.is_unreachable:
            callback()
            return
        self._waiting.append(callback)
        if self.client.is_connected:
            self._is_behind = False
            self.client.flush(self._flushed)

    def connected(self, _info: ServerInfo) -> None:
        self.is_unreachable = False
        if self._waiting:
            self._is_behind = False
            self.client.flush(self._flushed)

    def disconnected(self, _cause: Cause) -> None:
        self._call_waiting()

    def unreachable(self, _cause: Cause) -> None:
        self.is_unreachable = True
        self._call_waiting()

    def _flushed(self, _error: NatsError | None) -> None:
        self._call_waiting()

    def _call_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    def _close(self) -> None:
        for closer in self.closers:
            try:
                closer()
            except Exception as error:  # noqa: BLE001 - of one binding; the others go on
                name = self.client.name
                line = f"{name}: processing what was read has failed"
                self._failures.warn(name, type(error).__name__, line, level=logging.ERROR, error=error)


class NatsConnections:
    """All clients of this broker, by the name of their connection, which has to be configured."""

    def __init__(
        self, runtime: Runtime, settings: Mapping[str, ConnectionSettings], node_id: int, cluster_id: str
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._node_id = node_id
        self.cluster_id = cluster_id
        self._intakes: dict[str, Intake] = {}
        self._streams: dict[str, Intake] = {}
        self._outlets: dict[str, NatsClient] = {}
        self._idle: set[Intake] = set()  # at the last check
        self._timer: Timer | None = None

    def __contains__(self, name: str) -> bool:
        return name in self._settings

    def intake(self, name: str) -> Intake:
        """The client of core bindings' subscriptions."""
        found = self._intakes.get(name)
        if found is None:
            found = self._intakes[name] = self._make_intake(name, "in")
            found.heartbeat.start()
        return found

    def streams(self, name: str) -> Intake:
        """The client that messages of streams come in on. It is never paused: a consumer that can take no more requests
        none."""
        found = self._streams.get(name)
        if found is None:
            found = self._streams[name] = self._make_intake(name, "streams")
        return found

    def outlet(self, name: str) -> NatsClient:
        """The client that publishes."""
        found = self._outlets.get(name)
        if found is None:
            found = NatsClient(self._runtime, self._settings[name], self._client_name(name, "out"))
            self._outlets[name] = found
            found.start()
        return found

    def clients(self) -> list[tuple[str, str, NatsClient]]:
        """All clients, each with its connection's name and its way (in, streams, out)."""
        found = [(name, "in", each.client) for name, each in self._intakes.items()]
        found += [(name, "streams", each.client) for name, each in self._streams.items()]
        found += [(name, "out", each) for name, each in self._outlets.items()]
        return sorted(found, key=lambda each: each[:2])

    def max_payload(self, name: str) -> int:
        """`max_payload` of a connection's server; 0 while there is no connection."""
        intakes = (self._intakes.get(name), self._streams.get(name))
        infos = [each.client.info for each in intakes if each is not None]
        return max((info.max_payload for info in infos if info is not None), default=0)

    def names(self) -> list[str]:
        return sorted(self._settings)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for intakes in (self._intakes, self._streams):
            for name in sorted(intakes):
                intakes[name].stop()
        for name in sorted(self._outlets):
            self._outlets[name].stop()

    def _make_intake(self, name: str, way: str) -> Intake:
        found = Intake(self._runtime, self._settings[name], self._client_name(name, way))
        found.client.start()
        if self._timer is None:
            self._timer = self._runtime.call_later(IDLE_S, self._end_idle)
        return found

    def _end_idle(self) -> None:
        """Ends clients that were without a binding at two checks in a row: bindings come and go with partitions."""
        self._timer = self._runtime.call_later(IDLE_S, self._end_idle)
        idle: set[Intake] = set()
        for intakes in (self._intakes, self._streams):
            for name, intake in sorted(intakes.items()):
                if intake.closers:
                    continue
                if intake in self._idle:
                    del intakes[name]
                    intake.stop()
                else:
                    idle.add(intake)
        self._idle = idle

    def when_flushed(self, timeout_s: float, callback: Callable[[], object]) -> None:
        """Calls back when all servers that can be reached know the subscriptions; after `timeout_s` in any case."""
        flushes = [self._intakes[name].when_flushed for name in sorted(self._intakes)]
        when_all(self._runtime, flushes, timeout_s, lambda _are_all: callback())

    def _client_name(self, name: str, way: str) -> str:
        return f"barnabas-{self._node_id}-{way}" + (f"-{name}" if name else "")


def when_all(
    runtime: Runtime,
    calls: Sequence[Callable[[Callable[[], object]], object]],
    timeout_s: float,
    done: Callable[[bool], object],
) -> None:
    """Makes `calls`, and calls `done(True)` when all of them have called back, or `done(False)` after `timeout_s`."""
    missing = len(calls)
    if not missing:
        done(True)
        return

    def one_is_done() -> None:
        nonlocal missing
        missing -= 1
        if not missing:
            timer.cancel()
            done(True)

    def is_late() -> None:
        nonlocal missing
        missing = 0
        done(False)

    timer = runtime.call_later(timeout_s, is_late)
    for call in calls:
        call(one_is_done)
