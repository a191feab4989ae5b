"""One client connection: bytes in, frames to the dispatcher, answers out in the order of the requests.

The rules:
- All connections read into one shared buffer. Only a connection that holds an unfinished frame, or one
  that waits for an answer while more requests arrive, has a buffer of its own, grown no faster than bytes
  arrive; so nobody makes us allocate what he has not sent.
- One request at a time per connection, as Kafka: while one waits (PENDING), later ones stay in the buffer,
  and reading pauses when that is full. That keeps answers in order without a queue. Except that produces which wait
  for other replicas let produces behind them on: they have appended, and their answers wait in line. (In Kafka a
  producer has one batch per round trip of the replicas under way, whatever max.in.flight says.)
- A request that waits may ask what has arrived behind it, and end its waiting: a consumer's fetch does for a
  ListOffsets, a follower's for whatever comes.
- Small answers to the requests of one read leave together, large ones and those with regions at once. A
  connection that has served much ends its turn, so that the others come in between. While the socket does not take our answers, no further
  request is served: a client that sends and never reads costs a bounded amount.
- Views of the receive buffer die when the handler returns; handlers append or detach before that.
"""

from __future__ import annotations

import logging
import struct
from asyncio import BufferedProtocol  # noqa: TID251 - loops know a buffered protocol by this base alone
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from barnabas.broker.network.connection_limits import ConnectionLimits
from barnabas.broker.network.receive_memory import RequestMemory
from barnabas.broker.network.response_writer import COPY_BYTES, ResponseWriter
from barnabas.broker.requests.context import Outcome
from barnabas.runtime.repeated_warnings import RepeatedWarnings
from barnabas.wire.primitives import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.network.wrong_protocol import ForeignCallers
    from barnabas.broker.requests.context import RequestContext
    from barnabas.broker.requests.dispatch import Answer, Dispatcher
    from barnabas.runtime.interface import Runtime, Timer
    from barnabas.wire.primitives import Part

log = logging.getLogger("barnabas.connection")

SHARED_BUFFER_BYTES = 128 * 1024  # larger reads hold the loop too long (a full 256 KB is 10 ms of requests)
STASH_LIMIT_BYTES = 128 * 1024  # pipelined requests kept while one waits, before reading pauses
LINE_MAX = 128  # produces of one connection that may wait for other replicas at once
_unpack_size = struct.Struct(">i").unpack_from
NODES_SIZE = _unpack_size(b"BARN")[0]  # how a node that takes this for a controller listener begins
TLS_SIZE_BEGIN = 0x1603  # a handshake
KEPT_BUFFER_BYTES = 2 * 1024 * 1024  # a connection keeps its own buffer between frames up to this size
OUTPUT_BATCH_PARTS = 256  # answers collected before they are sent, within one read
TURN_S = 0.002  # in which one connection is served before the others come in between,
TURN_LOOK_BYTES = 4096  # as seen on the clock after so many bytes of requests
LARGE_ANSWER_BYTES = 16 * 1024  # one of this size, or with regions, is sent at once: little is collected


class Connections:
    """What the connections of one broker share: the buffers, the limits, and the list of them."""

    def __init__(self, runtime: Runtime, dispatcher: Dispatcher, config: BrokerConfig) -> None:
        self.runtime = runtime
        self.dispatcher = dispatcher
        self.request_max_bytes = config.socket_request_max_bytes
        self.memory = RequestMemory(config.queued_max_request_bytes)
        self.limits = ConnectionLimits(config, runtime)
        self.warnings = RepeatedWarnings(runtime, log)
        self.receive_buffer = memoryview(bytearray(SHARED_BUFFER_BYTES))
        self.copy_buffer = memoryview(bytearray(COPY_BYTES))
        self.open: dict[Connection, None] = {}  # in the order in which they came
        self._idle_max_s = config.connections_max_idle_ms / 1000
        self._idle_timer: Timer | None = None
        self._foreign_callers: ForeignCallers | None = None  # once there has been one
        if self._idle_max_s > 0:
            self._schedule_idle_check()

    def _schedule_idle_check(self) -> None:
        self._idle_timer = self.runtime.call_later(min(self._idle_max_s / 4, 30.0), self._close_idle)

    def _close_idle(self) -> None:
        oldest = self.runtime.monotonic() - self._idle_max_s
        for connection in tuple(self.open):
            connection.close_if_idle_since(oldest)
        self._schedule_idle_check()

    def foreign_callers(self) -> ForeignCallers:
        if self._foreign_callers is None:  # late: it needs what a single node does not load
            from barnabas.broker.network.wrong_protocol import ForeignCallers

            self._foreign_callers = ForeignCallers(self.warnings)
        return self._foreign_callers

    def close_all(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self.limits.stop()
        for connection in tuple(self.open):
            connection.close()


class _Waiting(msgspec.Struct):
    """A request in line: its answer, once it is there. Of one that was answered at once nobody needs the context."""

    context: RequestContext[Any] | None
    answer: Answer | Outcome | None


class Connection(BufferedProtocol):
    """One client. Called by the event loop; the loop itself stays behind the runtime."""

    __slots__ = (
        "_abandoned", "_admitted", "_buffer", "_closing", "_filled", "_granted", "_hungry", "_last_active", "_line", "_out",
        "_out_regions", "_overtaken", "_paused", "_pending", "_processing", "_shared", "_stuck", "_transport", "_waits_for_turn",
        "_writer",
        "client_host",
        "listener", "peer", "peer_broker_id", "peer_handshake",
    )  # fmt: skip

    def __init__(self, shared: Connections, listener: str) -> None:
        self._shared = shared
        self.listener = listener
        self.client_host = ""
        self.peer = ""
        self.peer_broker_id = -1
        self.peer_handshake: object | None = None
        self._buffer: bytearray | None = None  # own buffer: unfinished frame or waiting requests
        self._filled = 0  # bytes of it that are in use
        self._granted = 0  # bytes that queued.max.request.bytes lets it hold
        self._hungry = False  # not reading, until it lets it hold more
        self._admitted = False
        self._out: list[Part] = []
        self._out_regions = False  # whether anything but bytes is in it
        self._pending = False  # a handler said PENDING
        self._processing = False
        self._paused = False
        self._stuck = False  # behind answers in line, with a request that may not be served before
        self._waits_for_turn = False  # it has had its share of the loop, and goes on after the others
        self._closing = False
        self._abandoned: Callable[[], object] | None = None  # told when the client of a waiting request goes
        self._line: deque[_Waiting] | None = None  # answers in order, of which the first is not there yet
        self._overtaken: Callable[[int], object] | None = None  # told when more comes while one waits

    # -- called by the event loop ---------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        peer = transport.get_extra_info("peername") or ("", 0)
        self.client_host = peer[0]
        self.peer = f"{peer[0]}:{peer[1]}"
        self._last_active = self._shared.runtime.monotonic()
        try:
            self._writer = ResponseWriter(
                self._shared.runtime,
                transport.get_extra_info("socket"),
                self._shared.copy_buffer,
                self._drained,
            )
        except OSError as error:  # no descriptor is left, or the client has gone already
            self._warn(f"cannot serve {self.peer} on {self.listener}", str(error))
            self._closing = True
            transport.abort()
            return
        self._shared.open[self] = None
        self._admitted = self._shared.limits.arrive(self)
        self._pending = not self._admitted  # it is read from, so that its end is seen, and not served

    def admitted(self) -> None:
        """There were too many connections; now there is room for this one."""
        self._admitted = True
        self._pending = False
        self._continue()

    def get_buffer(self, _sizehint: int) -> memoryview:
        if self._buffer is None:
            return self._shared.receive_buffer
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, count: int) -> None:
        self._last_active = self._shared.runtime.monotonic()
        if self._closing:
            return
        if self._buffer is None:
            data = self._shared.receive_buffer[:count]
            rest = data if self._writer.blocked else self._process(data)
            if rest:
                self._stash(rest)
                if self._overtaken is not None:
                    self._tell_overtaken()
            return
        self._filled += count
        self._process_own()

    def eof_received(self) -> bool:
        return False  # close: nobody reads answers any more

    def connection_lost(self, _error: Exception | None) -> None:
        self._closing = True
        if self in self._shared.open:
            del self._shared.open[self]
            self._writer.close()
            self._shared.memory.leave(self, self._granted)
            self._shared.limits.leave(self, was_admitted=self._admitted)
        self._out.clear()
        self._line = None
        self._buffer = None
        abandoned, self._abandoned = self._abandoned, None
        self._overtaken = None
        if abandoned is not None:
            abandoned()

    def pause_writing(self) -> None:
        """The transport's own flow control; nothing is written through the transport."""

    def resume_writing(self) -> None:
        """See pause_writing."""

    # -- called by handlers, through the context ------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._closing

    def complete(self, context: RequestContext[Any], response: msgspec.Struct | Outcome) -> None:
        """The answer of the pending request. Sends it, then goes on with what has arrived meanwhile."""
        if self._closing:
            return
        if self._line:
            for waiting in self._line:
                if waiting.context is context:
                    self._complete_in_line(waiting, context, response)
                    return
        assert self._pending, f"API {context.api_key} was answered twice"
        self._pending = False
        self._abandoned = self._overtaken = None
        try:
            if isinstance(response, Outcome):
                self._take(response)
            else:
                self._queue(self._shared.dispatcher.encode(context, response))
        except Exception as error:  # noqa: BLE001 - logged with its traceback
            self._log_failure(f"an answer for {self.peer} on {self.listener} cannot be sent; closing", error)
            self.close()
            return
        if self._processing:
            return  # completed before its handler returned: the loop in _process goes on
        self._flush()
        self._continue()

    def send(self, answer: Answer) -> None:
        """Send the answer to a request of which the dispatcher has said NO_RESPONSE."""
        if not self._closing:
            self._queue(answer)
            if not self._processing:
                self._flush()

    def allow_pipelined_produces(self, context: RequestContext[Any]) -> None:
        """The request at hand waits, but produces behind it need not: its answer goes out before theirs. To be called
        before its handler returns PENDING, or later, while it is pending."""
        self._queue_in_line(_Waiting(context, None))
        self._pending = False
        if not self._processing:
            self._shared.runtime.call_soon(self._continue)

    def _queue_in_line(self, waiting: _Waiting) -> None:
        if self._line is None:
            self._line = deque()
        self._line.append(waiting)

    def _complete_in_line(
        self, waiting: _Waiting, context: RequestContext[Any], response: msgspec.Struct | Outcome
    ) -> None:
        try:
            if isinstance(response, Outcome):
                waiting.answer = response
            else:
                waiting.answer = self._shared.dispatcher.encode(context, response)
        except Exception as error:  # noqa: BLE001 - logged with its traceback
            self._log_failure(f"an answer for {self.peer} on {self.listener} cannot be sent; closing", error)
            self.close()
            return
        line = self._line
        if line is None or line[0] is not waiting:
            return
        while line and line[0].answer is not None:
            answer = line.popleft().answer
            if not line:
                self._line = None
            if answer is Outcome.CLOSE:
                self._flush()
                self.close()
                return
            if not isinstance(answer, Outcome):
                assert answer is not None
                self._queue_now(answer)
        if self._processing:
            return
        self._flush()
        self._continue()

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        """Call back should the client go before the waiting request is answered."""
        self._abandoned = callback

    def on_next_request(self, callback: Callable[[int], object]) -> None:
        """Call back should another request begin to arrive before the waiting one is answered, with its API key. It must
        not answer at once."""
        self._overtaken = callback
        if not self._processing:  # it went to the disk first, and what is behind it may be here already
            self._tell_overtaken()

    def _tell_overtaken(self) -> None:
        if self._buffer is None or self._filled < 6:
            return  # its API key, behind its size, is still to come
        overtaken, self._overtaken = self._overtaken, None
        if overtaken is not None and self._pending:
            overtaken(int.from_bytes(self._buffer[4:6], "big"))

    def close(self, reason: str = "") -> None:
        """Close now. `reason` is logged, with the peer, a few times a minute at most."""
        if self._closing:
            return
        self._closing = True
        if reason:
            self._warn(f"closing connection of {self.peer} on {self.listener}", reason)
        self._writer.close()
        self._transport.abort()

    def close_if_idle_since(self, moment: float) -> None:
        if self._last_active < moment:
            line = f"closing idle connection of {self.peer} on {self.listener}"
            self._shared.warnings.warn(self.client_host, "idle", line, level=logging.INFO)
            self.close()

    def _warn(self, what: str, reason: str) -> None:
        self._shared.warnings.warn(self.client_host, reason, f"{what}: {reason}")

    def _log_failure(self, what: str, error: Exception) -> None:
        """A defect of ours; its traceback is logged once in a while, as a client may ask for it again and again."""
        self._shared.warnings.warn(
            self.client_host, type(error).__name__, what, level=logging.ERROR, error=error
        )

    # -- frames ---------------------------------------------------------------------------------------

    def _process(self, data: memoryview) -> memoryview | None:
        """Serve the whole frames in data; what remains (an unfinished frame, or requests behind one that
        waits) is returned."""
        position, end = 0, len(data)
        look_at_clock = TURN_LOOK_BYTES
        go_on = not self._pending and not self._closing
        request_max_bytes = self._shared.request_max_bytes
        dispatch = self._shared.dispatcher.dispatch
        self._processing = True
        self._stuck = False
        try:
            while go_on:
                start = position + 4
                if start > end:
                    break
                (size,) = _unpack_size(data, position)
                stop = start + size
                if not 0 <= size <= request_max_bytes:
                    self._flush()  # what came before was in order
                    if size == NODES_SIZE or size >> 16 == TLS_SIZE_BEGIN:
                        self._refuse_foreign(size)
                        break
                    self.close(f"a frame of {size} bytes (socket.request.max.bytes={request_max_bytes})")
                    break
                if stop > end:
                    break
                if self._line and not self._may_join_line(data, start, stop):
                    self._stuck = True
                    break
                position = stop
                self._pending = True  # so that a handler may complete before it returns
                answer = dispatch(self, data, start, stop)
                if type(answer) is bytes and not self._line:
                    self._pending = False
                    self._out.append(answer)
                    is_large = len(answer) > LARGE_ANSWER_BYTES
                else:
                    self._take(answer)
                    is_large = self._out_regions
                    go_on = not self._pending and not self._closing
                if is_large or len(self._out) > OUTPUT_BATCH_PARTS:
                    self._flush()
                    if self._writer.blocked or self._closing:
                        break
                if position > look_at_clock and go_on:
                    if self._shared.runtime.monotonic() - self._last_active > TURN_S:
                        if position < end:
                            self._end_turn()
                        break
                    look_at_clock = position + TURN_LOOK_BYTES
        except DecodeError as error:
            self._flush()
            self.close(f"a request that cannot be read: {error}")
        except Exception as error:  # noqa: BLE001 - logged with its traceback
            self._log_failure(
                f"request of {self.peer} on {self.listener} failed; closing its connection", error
            )
            self._flush()
            self.close()
        finally:
            self._processing = False
        self._flush()
        if self._closing or position == end:
            return None
        return data[position:]

    def _refuse_foreign(self, size: int) -> None:
        callers = self._shared.foreign_callers()
        if size == NODES_SIZE:
            self._out.append(callers.refuse_node(self.client_host, self.listener))
            self._flush()
        else:
            callers.note_tls(self.client_host, self.listener)
        self.close()

    def _take(self, answer: Answer | Outcome) -> None:
        """What came back for a request, when it is not simply bytes."""
        if answer is Outcome.PENDING:
            return
        self._pending = False
        if answer is Outcome.CLOSE:
            if self._line:
                self._line.append(
                    _Waiting(None, answer)
                )  # it waits for its turn, and nothing behind it is served
                return
            self._flush()
            self.close()
        elif not isinstance(answer, Outcome):
            self._queue(answer)

    def _may_join_line(self, data: memoryview, start: int, stop: int) -> bool:
        """Whether a request may be served while the answers of earlier produces wait."""
        line = self._line
        assert line is not None
        last = line[-1].answer
        return (
            len(line) < LINE_MAX
            and last is not Outcome.CLOSE
            and stop - start >= 2
            and data[start] == 0 == data[start + 1]  # Produce
        )

    def _queue(self, answer: Answer) -> None:
        if self._line:
            self._line.append(_Waiting(None, answer))
        else:
            self._queue_now(answer)

    def _queue_now(self, answer: Answer) -> None:
        if isinstance(answer, bytes):
            self._out.append(answer)
        else:
            self._out.extend(answer)
            self._out_regions = True

    def _process_own(self) -> None:
        """Serve from the connection's own buffer, then move what remains to its front."""
        buffer = self._buffer
        if buffer is None:
            return
        if self._pending or self._writer.blocked or self._waits_for_turn:
            self._make_room()
            self._tell_overtaken()
            return
        view = memoryview(buffer)
        rest = self._process(view[: self._filled])
        remaining = len(rest) if rest is not None else 0
        if self._closing:
            self._buffer = None
            return
        if remaining and remaining != self._filled:
            view[:remaining] = bytes(rest)  # type: ignore[arg-type]  # may overlap: copy first
        if rest is not None:
            rest.release()
        view.release()
        if self._granted and remaining != self._filled:  # the frame that it was for has been served
            granted, self._granted = self._granted, 0
            self._shared.memory.give_back(granted)
        served = self._filled - remaining
        self._filled = remaining
        if served > SHARED_BUFFER_BYTES and not self._waits_for_turn:
            self._end_turn()
        if remaining:
            self._make_room()
            self._tell_overtaken()
        elif len(buffer) > KEPT_BUFFER_BYTES or len(buffer) <= SHARED_BUFFER_BYTES:
            self._buffer = None
        else:
            self._shared.memory.keep(self, len(buffer))

    def _end_turn(self) -> None:
        """Let the others be served before more is served and read: libuv reads up to 32 times from a connection whose
        bytes fill every buffer, which a bulk producer's megabytes do."""
        self._waits_for_turn = True
        self._transport.pause_reading()
        self._shared.runtime.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._waits_for_turn = False
        if self._closing:
            return
        if self._filled:
            self._last_active = self._shared.runtime.monotonic()
            self._process_own()
        if not (self._closing or self._paused or self._hungry or self._waits_for_turn):
            self._transport.resume_reading()

    def _stash(self, rest: memoryview) -> None:
        """Move what the shared buffer still holds of ours into a buffer of our own."""
        self._filled = len(rest)
        if self._shared.memory.limited:
            self._buffer = bytearray(rest)  # grown if it is granted more
        else:
            self._buffer = bytearray(max(4096, self._next_size(rest)))
            memoryview(self._buffer)[: self._filled] = rest
        self._make_room()

    def _next_size(self, held: memoryview) -> int:
        """How large the own buffer should be: the frame it waits for, but at most twice what has come."""
        if len(held) < 4:
            return 4096
        frame = 4 + max(0, int.from_bytes(held[:4], "big", signed=True))
        return max(len(held) + 1, min(frame, max(2 * len(held), 64 * 1024)))

    def _make_room(self) -> None:
        """An empty get_buffer() is fatal to the loop: grow, or pause reading while requests wait."""
        buffer = self._buffer
        assert buffer is not None
        if self._pending or self._stuck or self._writer.blocked:
            if self._filled >= STASH_LIMIT_BYTES and not self._paused:
                self._paused = True
                if not self._hungry:
                    self._transport.pause_reading()
            if self._filled == len(buffer) or not self._paused:
                self._grow(max(len(buffer), self._filled + 4096))
        elif (not self._shared.memory.limited or self._is_fed(buffer)) and self._filled == len(buffer):
            self._grow(max(self._next_size(memoryview(buffer)), self._filled + 4096))

    def _is_fed(self, buffer: bytearray) -> bool:
        """Whether the unfinished frame at the buffer's front may be read on (queued.max.request.bytes)."""
        size = 4 + max(0, int.from_bytes(buffer[:4], "big", signed=True)) if self._filled >= 4 else 4
        missing = size - self._granted
        if missing <= 0:
            return True
        if self._shared.memory.grant(missing):
            self._granted = size
            return True
        if not self._hungry:
            self._hungry = True
            if not self._paused:
                self._transport.pause_reading()
            self._shared.memory.wait(self)
        return False

    def feed(self) -> None:
        """There may be room again for the frame that has not arrived in full."""
        self._hungry = False
        if self._closing or self._buffer is None:
            return
        self._make_room()
        if not self._hungry and not self._paused:
            self._transport.resume_reading()

    def drop_idle_buffer(self) -> None:
        """Give the memory back; the next large frame gets a new buffer."""
        if not self._filled and not self._pending:
            self._buffer = None

    def _grow(self, size: int) -> None:
        if self._buffer is None or size <= len(self._buffer):
            return
        grown = bytearray(size)
        grown[: self._filled] = memoryview(self._buffer)[: self._filled]
        self._buffer = grown

    # -- answers --------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Send what has been collected: one piece, unless file regions are among it."""
        parts = self._out
        if not parts or self._closing:
            return
        self._out = []
        try:
            if self._out_regions:
                self._out_regions = False
                self._writer.send(parts)
            else:
                self._writer.send_bytes(b"".join(parts))  # type: ignore[arg-type]
        except OSError as error:
            log.debug("%s went away: %s", self.peer, error)
            self.close()

    def _drained(self) -> None:
        """The socket has taken everything: serve what waited. Or it never will."""
        if self._writer.closed:
            self.close("the rest of an answer could not be sent")
            return
        self._last_active = self._shared.runtime.monotonic()
        self._continue()

    def _continue(self) -> None:
        if self._closing or self._pending or self._writer.blocked:
            return
        if self._buffer is not None and self._filled:
            self._process_own()
        if (
            self._paused
            and not self._closing
            and not self._pending
            and not self._stuck
            and not self._writer.blocked
        ):
            self._paused = False
            if not self._hungry:
                self._transport.resume_reading()
