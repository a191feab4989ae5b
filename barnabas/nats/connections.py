"""The connections of this broker to NATS systems, made when a binding needs them, and ended when none has for a while.

Each named connection (nats.servers is the one without a name) is up to three clients: core messages come in on one, which
stops reading when the log takes nothing; what streams hold comes in on another one, as it is asked for; the third one
publishes. None of the latter must stop with the first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from barnabas.nats.client.client import ClientListener, NatsClient
from barnabas.nats.client.heartbeat import Heartbeat

if TYPE_CHECKING:
    from barnabas.nats.client.connection_settings import ConnectionSettings
    from barnabas.nats.client.errors import Cause, NatsError
    from barnabas.nats.client.protocol import ServerInfo
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.nats")

FAILURES_EVERY_S: Final = 10.0  # one of them is logged
IDLE_S: Final = 30.0  # without a binding, or twice as long


class Intake(ClientListener):
    """The client that messages come in on. `closers` are called after each piece of data that was read."""

    def __init__(self, runtime: Runtime, client: NatsClient) -> None:
        self.client = client
        self._runtime = runtime
        self._tell_again_s = 0.0
        self.heartbeat = Heartbeat(runtime, client)  # the first one to be told of the connection
        self.closers: list[Callable[[], object]] = []
        self.is_unreachable = False
        self._is_behind = False  # the server may not know yet what is subscribed to
        self._waiting: list[Callable[[], object]] = []
        self._holding: set[object] = set()  # bindings that can take no more for now
        client.on_read = self._close
        client.listeners.append(self)

    def subscriptions_changed(self) -> None:
        self._is_behind = True

    def stop(self) -> None:
        self.heartbeat.stop()
        self.client.stop()

    @property
    def is_shared(self) -> bool:
        """Whether several bindings read from it."""
        return len(self.closers) > 1

    def hold(self, who: object) -> None:
        """`who` can take no more for now: nothing is read until all have called `let_go`."""
        if not self._holding:
            self.client.pause()
        self._holding.add(who)

    def let_go(self, who: object) -> None:
        if who in self._holding:
            self._holding.discard(who)
            if not self._holding:
                self.client.resume()

    def when_flushed(self, callback: Callable[[], object]) -> None:
        """Call back when the server knows the subscriptions, or can't be reached."""
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
        self._tell()

    def unreachable(self, _cause: Cause) -> None:
        self.is_unreachable = True
        self._tell()

    def _flushed(self, _error: NatsError | None) -> None:
        self._tell()

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    def _close(self) -> None:
        for closer in self.closers:
            try:
                closer()
            except Exception:  # noqa: BLE001 - of one binding; the others do not wait for more
                self._has_failed()

    def _has_failed(self) -> None:
        now_s = self._runtime.monotonic()
        if now_s >= self._tell_again_s:  # it may fail with each piece of data
            self._tell_again_s = now_s + FAILURES_EVERY_S
            log.exception("%s: what was read could not be dealt with", self.client.name)


class NatsConnections:
    """See the module. A name that is not configured gives None."""

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
        self._idle: set[Intake] = set()  # when it was looked at last
        self._timer: Timer | None = None

    def intake(self, name: str) -> Intake | None:
        """Where subscriptions of core bindings live."""
        found = self._intakes.get(name)
        if found is None and name in self._settings:
            found = self._intakes[name] = self._make_intake(name, "in")
            found.heartbeat.start()
        return found

    def streams(self, name: str) -> Intake | None:
        """Where messages of streams come in. It is never paused: a consumer that can take no more requests none."""
        found = self._streams.get(name)
        if found is None and name in self._settings:
            found = self._streams[name] = self._make_intake(name, "streams")
        return found

    def outlet(self, name: str) -> NatsClient | None:
        """Where messages are published."""
        found = self._outlets.get(name)
        if found is None and name in self._settings:
            found = self._outlets[name] = self._client(name, "out")
            found.start()
        return found

    def clients(self) -> list[tuple[str, str, NatsClient]]:
        """All that there are: the connection's name, what it is for (in, streams, out), the client."""
        found = [(name, "in", each.client) for name, each in self._intakes.items()]
        found += [(name, "streams", each.client) for name, each in self._streams.items()]
        found += [(name, "out", each) for name, each in self._outlets.items()]
        return sorted(found, key=lambda each: each[:2])

    def max_payload(self, name: str) -> int:
        """What the server of a connection takes as one message; 0 while there is no connection."""
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
        found = Intake(self._runtime, self._client(name, way))
        found.client.start()
        if self._timer is None:
            self._timer = self._runtime.call_later(IDLE_S, self._end_idle)
        return found

    def _end_idle(self) -> None:
        """Bindings come and go with partitions: one look does not tell."""
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
        """Call back when all servers that can be reached know the subscriptions; after `timeout_s` in any case."""
        missing = len(self._intakes)
        if not missing:
            callback()
            return
        is_done = False

        def done() -> None:
            nonlocal is_done
            if not is_done:
                is_done = True
                timer.cancel()
                callback()

        def one() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                done()

        timer = self._runtime.call_later(timeout_s, done)
        for name in sorted(self._intakes):
            self._intakes[name].when_flushed(one)

    def _client(self, name: str, way: str) -> NatsClient:
        shown = f"barnabas-{self._node_id}-{way}" + (f"-{name}" if name else "")
        return NatsClient(self._runtime, self._settings[name], shown)
