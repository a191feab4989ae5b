"""The session of one client: which request is served next, and in which order answers leave.

It has no sockets and no buffers: `connection.py` passes received bytes to it and sends the responses that it has collected.

- Requests are served one at a time, as in Kafka: while one is pending, later ones wait in the buffer. So responses keep the
  order of the requests without a queue.
- Produces whose records are appended and wait for other replicas are the exception: produces behind them are served, and
  their responses wait in line. (A producer in Kafka has one batch per round trip of the replicas, whatever its
  max.in.flight.requests.per.connection.)
- A pending request may ask for the API key of the request behind it, and complete early: a consumer's fetch does for a
  ListOffsets, a follower's fetch for any request.
- A client that has exceeded a quota is not served for a time (broker/quotas); until then its requests are not read.
- A session that has served for TURN_S ends its turn, so that other connections are served before it continues.
- Nothing is served while a large response waits to be sent. `serve` returns, and the connection calls it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from barnabas.broker.requests.context import Outcome
from barnabas.wire.frame import SIZE_BYTES, FrameSizeError, unpack_size

if TYPE_CHECKING:
    from barnabas.broker.requests.context import RequestContext, Requester
    from barnabas.broker.requests.dispatch import Answer
    from barnabas.wire.primitives import Part

PIPELINED_PRODUCES_MAX: Final = 128  # of one connection that wait for other replicas at a time
ANSWERS_MAX: Final = 256  # parts that are collected before they are sent
LARGE_ANSWER_BYTES: Final = 16 * 1024  # an answer of this size, or with file regions, is sent at once
TURN_S: Final = 0.002
CLOCK_CHECK_MASK: Final = 4096 - 1  # so many bytes of requests are served between two checks of the clock


class IllegalTransition(RuntimeError):
    """An event that the table does not list for the state: a bug of the broker, such as a request answered twice."""


class State:
    """What the session does, or what its next request waits for. It has an attribute for each event that may happen in it:
    the state that follows. (Attributes, because transitions happen at each read: a dict's lookup costs four times as much.)"""

    __slots__ = (
        "admit", "begin_turn", "close", "complete", "end", "hold_back", "name", "pause", "pipeline", "serve", "wait", "yield_",
    )  # fmt: skip

    name: str
    admit: State  # the broker has room for the connection
    serve: State  # requests have been received
    pause: State  # none of them is left, or none may be served now
    wait: State  # a handler has returned PENDING
    complete: State  # the current request is answered, after its handler has returned or before
    pipeline: State  # the current request gets a place in line
    hold_back: State  # the next request may be served only after those in line are answered
    yield_: State  # the session has used its share of the turn
    begin_turn: State
    end: State  # a request is to be answered by the end of the connection
    close: State

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name

    def __getattr__(self, event: str) -> State:
        raise IllegalTransition(f"{event} in state {self.name}")


NOT_ADMITTED: Final = State("NOT_ADMITTED")  # there are too many connections already
READY: Final = State("READY")
SERVING: Final = State("SERVING")  # a handler is at work
SETTLED: Final = State("SETTLED")  # and its request has its answer, or its place in line, already
PENDING: Final = State("PENDING")  # the current request has no answer yet
HELD_BACK: Final = State("HELD_BACK")  # the next request waits for the answers in line
YIELDED: Final = State("YIELDED")  # until the next turn, or until a throttle's end
CLOSING: Final = State("CLOSING")  # as soon as the collected answers are sent
CLOSED: Final = State("CLOSED")

# Every state with every event that may happen in it. Anything else is an error.
TRANSITIONS: Final[dict[State, dict[str, State]]] = {
    NOT_ADMITTED: {"admit": READY, "close": CLOSED},
    READY: {"serve": SERVING, "yield_": YIELDED, "end": CLOSING, "close": CLOSED},
    SERVING: {
        "pause": READY,
        "wait": PENDING,
        "complete": SETTLED,
        "pipeline": SETTLED,
        "hold_back": HELD_BACK,
        "yield_": YIELDED,
        "end": CLOSING,
        "close": CLOSED,
    },
    SETTLED: {"wait": SERVING, "end": CLOSING, "close": CLOSED},
    PENDING: {"pause": PENDING, "complete": READY, "pipeline": READY, "end": CLOSING, "close": CLOSED},
    HELD_BACK: {"pause": HELD_BACK, "serve": SERVING, "end": CLOSING, "close": CLOSED},
    YIELDED: {"pause": YIELDED, "begin_turn": READY, "end": CLOSING, "close": CLOSED},
    CLOSING: {"pause": CLOSING, "wait": CLOSING, "end": CLOSING, "close": CLOSED},
    CLOSED: {"pause": CLOSED, "wait": CLOSED, "close": CLOSED},
}
for _state, _following in TRANSITIONS.items():
    for _event, _next in _following.items():
        setattr(_state, _event, _next)


class RequestServer(Protocol):
    """Serves the requests of a session: the dispatcher, or what authenticates its client (sasl_authenticator.py)."""

    def dispatch(
        self, connection: Requester, buffer: memoryview, start: int, end: int
    ) -> Answer | Outcome: ...

    def encode(self, context: RequestContext[Any], response: msgspec.Struct) -> Answer: ...


class _InLine(msgspec.Struct):
    """A place in the line of answers. One whose request was answered at once has no context."""

    context: RequestContext[Any] | None
    answer: Answer | Outcome | None


class Session:
    """`state`, `answers` and `frame_max_bytes` are read by the connection; only this class changes `state`."""

    __slots__ = (
        "_line", "_monotonic", "_on_disconnect", "_on_next_request", "_requester", "_server", "answers", "frame_max_bytes",
        "has_regions", "state", "throttled_s",
    )  # fmt: skip

    def __init__(
        self,
        requester: Requester,
        server: RequestServer,
        frame_max_bytes: int,
        monotonic: Callable[[], float],
    ) -> None:
        self.state = NOT_ADMITTED
        self.answers: list[Part] = []  # to be sent, in this order; the connection takes them out
        self.has_regions = False  # whether anything but bytes is among them
        # For how long nothing is served once the current request is answered; the connection resets it.
        self.throttled_s = 0.0
        self._requester = requester
        self._server = server
        self.frame_max_bytes = frame_max_bytes
        self._monotonic = monotonic
        self._line: deque[_InLine] | None = None  # the first has no answer yet
        # Of the pending request:
        self._on_disconnect: Callable[[], object] | None = None
        self._on_next_request: Callable[[int], object] | None = None

    @property
    def is_serving(self) -> bool:
        """Whether a handler is at work, further down the stack."""
        return self.state is SERVING or self.state is SETTLED

    def admit(self) -> None:
        """The broker has room for the connection."""
        self.state = self.state.admit

    def serve(self, data: memoryview, position: int, turn_began: float) -> int:
        """Serve the whole requests in data[position:] until the state forbids it, or answers should be sent: where the
        first request begins that has not been served. FrameSizeError; DecodeError for what is not a request."""
        self.state = self.state.serve
        end = len(data)
        answers = self.answers
        dispatch = self._server.dispatch
        check_clock_behind = position | CLOCK_CHECK_MASK
        while self.state is SERVING:
            start = position + SIZE_BYTES
            if start > end:
                break
            (size,) = unpack_size(data, position)
            stop = start + size
            if not 0 <= size <= self.frame_max_bytes:
                raise FrameSizeError(size, self.frame_max_bytes)
            if stop > end:
                break
            if self._line and not self._may_pipeline(data, start, stop):
                self.state = self.state.hold_back
                break
            position = stop
            answer = dispatch(self._requester, data, start, stop)
            if type(answer) is bytes and not self._line:
                answers.append(answer)
                is_large = len(answer) > LARGE_ANSWER_BYTES
            else:
                self._take(answer)
                is_large = self.has_regions
            if self.throttled_s and self.state is SERVING:
                self.state = self.state.yield_
            if position > check_clock_behind:
                if position < end and self.state is SERVING and self._monotonic() - turn_began > TURN_S:
                    self.state = self.state.yield_
                check_clock_behind = position | CLOCK_CHECK_MASK
            if is_large or len(answers) > ANSWERS_MAX:
                break
        self.state = self.state.pause
        return position

    def serve_by(self, server: RequestServer, frame_max_bytes: int) -> None:
        """Serve the requests behind the current one by `server`. To be called while that is served, or pending."""
        self.frame_max_bytes = frame_max_bytes
        if server is not self._server:
            self._server = server
            if self.state is SERVING:
                self.state = self.state.yield_  # `serve` looks its server up once

    def end_turn(self) -> None:
        """Serve nothing more before `begin_turn`."""
        self.state = self.state.yield_

    def throttle(self, delay_s: float) -> None:
        """Serve nothing for this long, once the current request is answered (quotas)."""
        self.throttled_s = max(self.throttled_s, delay_s)
        if self.state is READY:
            self.state = self.state.yield_

    def begin_turn(self) -> None:
        self.state = self.state.begin_turn

    def complete(self, context: RequestContext[Any], response: msgspec.Struct | Outcome) -> None:
        """Take the answer of the pending request, or of one that waits in line."""
        line = self._line
        if line:
            for waiting in line:
                if waiting.context is context:
                    if isinstance(response, Outcome):
                        waiting.answer = response
                    else:
                        waiting.answer = self._server.encode(context, response)
                    self._release(line)
                    return
        self.state = self.state.complete
        self._on_disconnect = self._on_next_request = None
        if isinstance(response, Outcome):
            self._take(response)
        elif line:
            line.append(_InLine(None, self._server.encode(context, response)))
        else:
            self._append(self._server.encode(context, response))
        if self.throttled_s and self.state is READY:
            self.state = self.state.yield_

    def answer(self, answer: Answer) -> None:
        """Take the answer of the pending request, where no context stands for it."""
        self.state = self.state.complete
        self._on_disconnect = self._on_next_request = None
        self._append(answer)

    def end(self, answer: Answer | None) -> None:
        """Answer the pending request, or not, and end the connection."""
        if answer is not None:
            self._append(answer)
        self.state = self.state.end

    def send(self, answer: Answer) -> None:
        """Take the answer to a request for which the dispatcher has returned NO_RESPONSE."""
        if self._line:
            self._line.append(_InLine(None, answer))
        else:
            self._append(answer)

    def allow_pipelined_produces(self, context: RequestContext[Any]) -> None:
        """Serve produces behind the current request before its answer; theirs leave after it."""
        self.state = self.state.pipeline
        if self._line is None:
            self._line = deque()
        self._line.append(_InLine(context, None))

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        """Call back if the connection ends before the current request is answered."""
        self._on_disconnect = callback

    def on_next_request(self, callback: Callable[[int], object]) -> None:
        """Call back with the API key of the next request if it arrives before the current one is answered."""
        self._on_next_request = callback

    def note_next_request(self, api_key: int) -> None:
        """The connection has received a request behind the pending one."""
        callback, self._on_next_request = self._on_next_request, None
        if callback is not None and self.state is PENDING:
            callback(api_key)

    def close(self) -> None:
        """Serve and answer nothing more."""
        self.state = self.state.close
        self.answers.clear()
        self._line = self._on_next_request = None

    def disconnect(self) -> None:
        """The connection has ended: close, and notify the pending request."""
        self.close()
        callback, self._on_disconnect = self._on_disconnect, None
        if callback is not None:
            callback()

    def _take(self, answer: Answer | Outcome) -> None:
        """Take what the dispatcher or a handler has returned for a request."""
        if answer is Outcome.PENDING:
            self.state = self.state.wait
        elif answer is Outcome.CLOSE:
            if self._line:
                self._line.append(_InLine(None, answer))
            else:
                self.state = self.state.end
        elif not isinstance(answer, Outcome):
            self.send(answer)

    def _append(self, answer: Answer) -> None:
        if isinstance(answer, bytes):
            self.answers.append(answer)
        else:
            self.answers.extend(answer)
            self.has_regions = True

    def _may_pipeline(self, data: memoryview, start: int, stop: int) -> bool:
        """Whether a request may be served while earlier answers wait in line: it is a Produce."""
        line = self._line
        assert line is not None
        return (
            len(line) < PIPELINED_PRODUCES_MAX
            and line[-1].answer is not Outcome.CLOSE
            and stop - start >= 2
            and data[start] == 0 == data[start + 1]
        )

    def _release(self, line: deque[_InLine]) -> None:
        """Take the answers out of the line, up to the first that is still missing."""
        while line and (answer := line[0].answer) is not None:
            line.popleft()
            if answer is Outcome.CLOSE:
                self.state = self.state.end
                return
            if not isinstance(answer, Outcome):
                self._append(answer)
        if not line:
            self._line = None
