"""Until when everything has come in: a question that is put to the server once a second.

The server answers PING behind all messages that it took before, so what was taken before an answered PING was sent is
here. When the connection ends, a gap begins there and not when the end was noticed: what was on its way is lost.

A question that is put late says that this process stood still (stopped, swapped out, busy): if the server then ends the
connection, it has cut off a slow consumer, though it says no word.
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
STANDSTILL_S: Final = 3.0  # so late is no question of a busy moment
EXPLAINS_WITHIN_S: Final = 15.0  # the server's end of the connection, which comes behind what it had sent


class Heartbeat(ClientListener):
    """Of one client. `on_beat` is called with each new `until_ms`."""

    def __init__(self, runtime: Runtime, client: NatsClient) -> None:
        self.until_ms = 0  # wall clock: what the server had taken by then has come here; 0: nothing is known
        self.on_beat: list[Callable[[int], object]] = []
        self._runtime = runtime
        self._client = client
        self._timer: Timer | None = None
        self._expected_s = 0.0
        self._is_asking = False
        self._stood_still_s = 0.0
        self._noticed_s = 0.0
        client.listeners.append(self)

    def start(self) -> None:
        self._wait()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connected(self, info: ServerInfo) -> None:  # noqa: ARG002 - the listener's shape
        """What was taken before belongs to the gap that ends here."""
        self._is_asking = False
        self._stood_still_s = 0.0  # what that has led to has happened
        self.until_ms = self._runtime.time_ms()

    def explained(self, cause: Cause) -> Cause:
        """Why the connection has ended, if this process was the reason and the server did not say so."""
        self._notice()
        recently = self._runtime.monotonic() - self._noticed_s < EXPLAINS_WITHIN_S
        if cause.kind != SERVER_GONE or not self._stood_still_s or not recently:
            return cause
        return Cause(
            SLOW_CONSUMER,
            f"this broker stood still for {self._stood_still_s:.1f} s, and the server has ended the connection"
            f" ({cause.detail})",
        )

    def ask(self, done: Callable[[], object]) -> None:
        """Put the question now; `done()` when it is answered and `until_ms` is that, or when there is no answer."""
        asked_ms = self._runtime.time_ms()

        def answered(error: NatsError | None) -> None:
            if error is None:
                self.until_ms = max(self.until_ms, asked_ms)
            self._runtime.call_soon(done)  # when what was read together with the answer has been appended

        self._client.flush(answered)

    def _wait(self) -> None:
        self._expected_s = self._runtime.monotonic() + EVERY_S
        self._timer = self._runtime.call_later(EVERY_S, self._ask)

    def _notice(self) -> None:
        now_s = self._runtime.monotonic()
        late_s = now_s - self._expected_s
        if self._expected_s and late_s >= STANDSTILL_S:
            self._stood_still_s, self._noticed_s = late_s, now_s
            self._expected_s = now_s

    def _ask(self) -> None:
        self._notice()
        self._wait()
        if self._client.is_connected and not self._is_asking:
            self._is_asking = True
            asked_ms = self._runtime.time_ms()
            self._client.flush(lambda error: self._answered(asked_ms, error))

    def _answered(self, asked_ms: int, error: NatsError | None) -> None:
        self._is_asking = False
        if error is None:
            self.until_ms = max(self.until_ms, asked_ms)
            self._runtime.call_soon(
                self._tell
            )  # when what was read together with the answer has been appended

    def _tell(self) -> None:
        for tell in tuple(self.on_beat):
            tell(self.until_ms)
