"""Answers that leave later than they are ready, in order: one outbox for each connection that has any.

An answer that is never to come holds up all that follow on its connection, as in TCP.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

from barnabas.broker.requests.context import Outcome, Peer, Requester
from barnabas.wire.primitives import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.broker.requests.context import RequestContext
    from barnabas.broker.requests.dispatch import Answer
    from barnabas.runtime.interface import Runtime, Timer

ANSWERS_MAX: Final = 10_000  # that may wait of one connection, then it is closed
NEVER: Final = math.inf


class ClientConnection(Requester, Protocol):
    """What the broker gives for a connection (barnabas.broker.network.connection)."""

    def send(self, answer: Answer) -> None: ...

    def close(self, reason: str = "") -> None: ...


class OwnRequest:
    """A request of a broker to itself in place of a connection: what would be sent becomes its response."""

    def __init__(
        self, context: RequestContext[Any], decode: Callable[[Answer], Any], received_at: float
    ) -> None:
        """`received_at`: now, on the monotonic clock."""
        self.caller = context.caller
        self.peer = Peer()
        self.peer.received_at = received_at
        self.closed = False  # it has its response, or gets none
        self._context = context
        self._decode = decode

    def complete(self, _context: object, response: Any) -> None:
        """`response`: Encoded, or an outcome. But for CLOSE the response comes later, if at all."""
        if not isinstance(response, Outcome):
            self.send(response.frame)
        elif response is Outcome.CLOSE:
            self.close()

    def send(self, answer: Answer) -> None:
        if not self.closed:
            self.closed = True
            try:
                response = self._decode(answer)
            except DecodeError:  # it is truncated
                response = Outcome.CLOSE
            self._context.complete(response)

    def close(self, _reason: str = "") -> None:
        if not self.closed:
            self.closed = True
            self._context.complete(Outcome.CLOSE)

    def on_disconnect(self, callback: Callable[[], object]) -> None: ...

    def on_next_request(self, callback: Callable[[int], object]) -> None: ...

    def allow_pipelined_produces(self, context: RequestContext[Any]) -> None: ...

    def throttle(self, _delay_s: float) -> None: ...


class Waiting:
    """An answer in the outbox."""

    __slots__ = ("answer", "closes", "due", "sent")

    def __init__(self, answer: Answer | None, due: float, closes: bool, sent: Callable[[], object]) -> None:
        self.answer = answer
        self.due = due  # on the monotonic clock
        self.closes = closes  # the connection, behind it
        self.sent = sent


class Outbox:
    """See the module. On the loop's thread."""

    def __init__(self, runtime: Runtime, connection: ClientConnection) -> None:
        self.connection: Any = connection
        self._runtime = runtime
        self._waiting: deque[Waiting] = deque()
        self._timer: Timer | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, waiting: Waiting) -> None:
        if len(self._waiting) >= ANSWERS_MAX:
            self.drop()
            self.connection.close(f"{ANSWERS_MAX} answers wait to be let go")
            return
        self._waiting.append(waiting)
        if len(self._waiting) == 1:
            self.schedule()

    def schedule(self) -> None:
        """Look at the oldest again: when it is due it leaves."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting and self._waiting[0].due != NEVER:
            wait_s = max(0.0, self._waiting[0].due - self._runtime.monotonic())
            self._timer = self._runtime.call_later(wait_s, self._pump)

    def drop(self) -> None:
        """Nothing of it leaves."""
        self._waiting.clear()
        self.schedule()

    def _pump(self) -> None:
        self._timer = None
        while (
            self._waiting and not self.connection.closed and self._waiting[0].due <= self._runtime.monotonic()
        ):
            first = self._waiting.popleft()
            first.sent()
            if first.answer is not None:
                self.connection.send(first.answer)
            if first.closes:
                self.connection.close()
        if self.connection.closed:
            self._waiting.clear()
        self.schedule()
