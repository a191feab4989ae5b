"""Heartbeat of a NATS connection: a PING a second, which says until when all messages have arrived.

The server answers a PING behind all messages that it took before, so what it took before an answered PING was sent is here.
When the connection ends, a gap begins there, and not when the end was noticed: messages that were on their way are lost.

A PING that is sent late shows that this process stood still (stopped, swapped out, busy). If the server ends the connection
then, it has cut off a slow consumer, though its answer may not say so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.nats.client.client import ClientListener
from barnabas.nats.client.errors import SERVER_GONE, SLOW_CONSUMER, Cause

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.nats.client.client import NatsClient
    from barnabas.nats.client.errors import NatsError
    from barnabas.nats.client.protocol import ServerInfo
    from barnabas.runtime.interface import Runtime, Timer

EVERY_S: Final = 1.0
STANDSTILL_S: Final = 3.0  # a busy moment does not make a PING so late
# The server's end of the connection arrives behind what the server sent before.
EXPLAINS_WITHIN_S: Final = 15.0


class Heartbeat(ClientListener):
    """The heartbeat of one client. Calls `on_beat` with each new `until_ms`."""

    def __init__(self, runtime: Runtime, client: NatsClient) -> None:
        self.until_ms = 0  # wall clock: what the server took until then has arrived; 0: unknown
        self.on_beat: list[Callable[[int], object]] = []
        self._runtime = runtime
        self._client = client
        self._timer: Timer | None = None
        self._expected_s = 0.0
        self._awaits_answer = False
        self._stood_still_s = 0.0
        self._noticed_s = 0.0
        client.listeners.append(self)

    def start(self) -> None:
        self._expected_s = self._runtime.monotonic() + EVERY_S
        self._timer = self._runtime.call_later(EVERY_S, self._beat)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connected(self, info: ServerInfo) -> None:  # noqa: ARG002 - the listener's shape
        """What the server took before belongs to the gap that ends here."""
        self._awaits_answer = False
        self._stood_still_s = 0.0  # it explains the connection that has ended, not this one
        self.until_ms = self._runtime.time_ms()

    def explained(self, cause: Cause) -> Cause:
        """The cause of a connection's end: SLOW_CONSUMER if this process stood still and the server did not say so."""
        self._notice_standstill()
        is_recent = self._runtime.monotonic() - self._noticed_s < EXPLAINS_WITHIN_S
        if cause.kind != SERVER_GONE or not self._stood_still_s or not is_recent:
            return cause
        return Cause(
            SLOW_CONSUMER,
            f"this broker stood still for {self._stood_still_s:.1f} s, and the server has ended the connection"
            f" ({cause.detail})",
        )

    def ask(self, done: Callable[[], object]) -> None:
        """Sends a PING now. Calls `done()` when it is answered and `until_ms` is this moment, or when there is no answer."""
        self._ping(lambda _error: self._runtime.call_soon(done))

    def _beat(self) -> None:
        self._notice_standstill()
        self.start()
        if self._client.is_connected and not self._awaits_answer:
            self._awaits_answer = True
            self._ping(self._answered)

    def _ping(self, answered: Callable[[NatsError | None], object]) -> None:
        """`answered` defers what it does to the next turn: by then, what was read together with the PONG is appended."""
        sent_ms = self._runtime.time_ms()

        def flushed(error: NatsError | None) -> None:
            if error is None:
                self.until_ms = max(self.until_ms, sent_ms)
            answered(error)

        self._client.flush(flushed)

    def _answered(self, error: NatsError | None) -> None:
        self._awaits_answer = False
        if error is None:
            self._runtime.call_soon(self._call_back)

    def _call_back(self) -> None:
        for callback in tuple(self.on_beat):
            callback(self.until_ms)

    def _notice_standstill(self) -> None:
        now_s = self._runtime.monotonic()
        late_s = now_s - self._expected_s
        if self._expected_s and late_s >= STANDSTILL_S:
            self._stood_still_s, self._noticed_s = late_s, now_s
            self._expected_s = now_s
