"""Client connections: the I/O of a client's session.

`session.py` decides what is served when; this module receives, sends, pauses reading and closes.

- All connections read into one shared buffer. Only a connection with an unfinished frame, or with requests that wait, has a
  buffer of its own, which grows no faster than bytes arrive.
- Reading pauses while waiting requests fill the buffer, while `queued.max.request.bytes` leaves no memory for a frame, and
  between two turns. It resumes when none of these reasons is left.
- Small responses to the requests of one read leave together, large ones and those with file regions at once. While the
  socket's buffer is full no further request is served, so a client that sends and never reads costs bounded memory.
- Views of the receive buffer are valid until the handler returns; handlers append or copy before that.
"""

from __future__ import annotations

import errno
import logging
import resource
import sys
from asyncio import BufferedProtocol  # noqa: TID251 - loops know a buffered protocol by this base alone
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from barnabas.broker.network.authentication_counts import AuthenticationCounts
from barnabas.broker.network.connection_limits import ConnectionLimits
from barnabas.broker.network.memory_pool import MemoryPool
from barnabas.broker.network.response_writer import COPY_BYTES, ResponseWriter
from barnabas.broker.network.session import (
    CLOSED,
    CLOSING,
    HELD_BACK,
    PENDING,
    READY,
    SERVING,
    SETTLED,
    YIELDED,
    IllegalTransition,
    Session,
)
from barnabas.broker.requests.context import Outcome, Peer
from barnabas.broker.security.caller import ANONYMOUS, Caller
from barnabas.runtime.repeated_warnings import RepeatedWarnings
from barnabas.wire.frame import FrameBuffer, FrameSizeError, unpack_size
from barnabas.wire.primitives import DecodeError

if TYPE_CHECKING:
    import msgspec

    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.network.session import RequestServer
    from barnabas.broker.network.wrong_protocol import WrongProtocol
    from barnabas.broker.requests.context import RequestContext
    from barnabas.broker.requests.dispatch import Answer, Dispatcher
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.connection")

SHARED_BUFFER_BYTES: Final = 128 * 1024  # 256 KB of requests would take 10 ms of one turn
BACKLOG_BYTES: Final = 128 * 1024  # of requests behind a pending one; then reading pauses
KEPT_BUFFER_BYTES: Final = 2 * 1024 * 1024  # a connection keeps its own buffer between frames up to this size

_REASON_CHARACTERS_MAX: Final = 300  # of a client's refusal, in the log

# The first bytes of other protocols, read as a frame's size:
(NODES_SIZE,) = unpack_size(b"BARN")  # a node that takes this for a controller listener
TLS_SIZE_BEGIN: Final = 0x1603  # a TLS handshake, in the upper two bytes

# With so many descriptors left or fewer each new connection is a warning: the system closes those that get none, and says nothing.
_LAST_DESCRIPTORS: Final = 64

# Why a connection does not read
_BACKLOG: Final = 1  # too many requests wait already
_MEMORY: Final = 2  # the unfinished frame has not been granted its size
_TURN: Final = 4  # the connection has used its share of the turn


class Connections:
    """The connections of one broker, and what they share: buffers and limits."""

    def __init__(self, runtime: Runtime, dispatcher: Dispatcher, config: BrokerConfig) -> None:
        self.runtime = runtime
        self.dispatcher = dispatcher
        self.request_max_bytes = config.socket_request_max_bytes
        self.memory = MemoryPool(config.queued_max_request_bytes)
        self.limits = ConnectionLimits(config, runtime)
        self.warnings = RepeatedWarnings(runtime, log)
        self.receive_buffer = memoryview(bytearray(SHARED_BUFFER_BYTES))
        self.copy_buffer = memoryview(bytearray(COPY_BYTES))
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.files_max = files if files > 0 else sys.maxsize
        self.open: dict[Connection, None] = {}  # in the order of their arrival
        self.authentications = {listener.name: AuthenticationCounts() for listener in config.listeners}
        self._idle_max_s = config.connections_max_idle_ms / 1000
        self._idle_timer: Timer | None = None
        self._wrong_protocol: WrongProtocol | None = None  # created for the first such peer
        if self._idle_max_s > 0:
            self._schedule_idle_check()

    def _schedule_idle_check(self) -> None:
        self._idle_timer = self.runtime.call_later(min(self._idle_max_s / 4, 30.0), self._close_idle)

    def _close_idle(self) -> None:
        oldest = self.runtime.monotonic() - self._idle_max_s
        for connection in tuple(self.open):
            connection.close_if_idle_since(oldest)
        self._schedule_idle_check()

    def wrong_protocol(self) -> WrongProtocol:
        if self._wrong_protocol is None:  # late: it needs what a single node does not load
            from barnabas.broker.network.wrong_protocol import WrongProtocol

            self._wrong_protocol = WrongProtocol(self.warnings)
        return self._wrong_protocol

    def close_all(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self.limits.stop()
        for connection in tuple(self.open):
            connection.close()


# Makes what serves a connection until its client is authenticated, and the longest frame until then.
NewAuthenticator: TypeAlias = "Callable[[Connections, Connection], tuple[RequestServer, int]]"


class Connection(BufferedProtocol):
    """The connection of one client. Called by the event loop."""

    __slots__ = (
        "_granted", "_is_admitted", "_last_active", "_pauses", "_received", "_session", "_shared", "_throttle_timer", "_transport",
        "_writer",
        "address", "caller", "client_host", "listener", "peer",
    )  # fmt: skip

    def __init__(
        self, shared: Connections, listener: str, authenticate: NewAuthenticator | None = None
    ) -> None:
        """`authenticate`: makes what serves the connection until its client is authenticated, if it must be."""
        self._shared = shared
        server: RequestServer = shared.dispatcher
        frame_max_bytes = shared.request_max_bytes
        if authenticate is not None:
            server, frame_max_bytes = authenticate(shared, self)
        self._session = Session(self, server, frame_max_bytes, shared.runtime.monotonic)
        self._received: FrameBuffer | None = None  # an unfinished frame, or requests that wait; may be empty
        self._granted = 0  # bytes of the unfinished frame that queued.max.request.bytes allows
        self._pauses = 0  # reasons not to read
        self._is_admitted = False
        self._throttle_timer: Timer | None = None
        self.listener = listener
        self.client_host = ""
        self.caller = Caller(ANONYMOUS, listener, "")
        self.address = ""  # the client's, with its port
        self.peer = Peer()

    # -- called by the event loop ---------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        peer = transport.get_extra_info("peername") or ("", 0)
        self.client_host = peer[0]
        self.caller = Caller(ANONYMOUS, self.listener, self.client_host)
        self.address = f"{peer[0]}:{peer[1]}"
        self.peer.port = peer[1]
        self._last_active = self._shared.runtime.monotonic()
        try:
            self._writer = self._make_writer(transport)
        except OSError as error:  # no descriptor is left, or the client has disconnected already
            self._warn(f"cannot serve {self.address} on {self.listener}", str(error))
            self._session.close()
            transport.abort()
            return
        if transport.get_extra_info("socket").fileno() >= self._shared.files_max - _LAST_DESCRIPTORS:
            limit = f"this process may have {self._shared.files_max} descriptors open (ulimit -n)"
            self._warn("connections will soon be refused", limit)
        self._shared.open[self] = None
        if self._shared.limits.arrive(self):
            self._is_admitted = True
            self._session.admit()
        # A connection that waits is read from, so that its end is noticed, and is not served.

    def _make_writer(self, transport: Any) -> ResponseWriter:
        return ResponseWriter(
            self._shared.runtime,
            transport,
            self._shared.copy_buffer,
            self._drained,
        )

    def get_buffer(self, _sizehint: int) -> memoryview:
        if self._received is None:
            return self._shared.receive_buffer
        return self._received.room()

    def buffer_updated(self, count: int) -> None:
        now = self._last_active = self._shared.runtime.monotonic()
        if self._received is not None:
            self._received.filled += count
            self._serve_received(now)
            return
        session = self._session
        data = self._shared.receive_buffer[:count]
        served = self._serve(data, now) if session.state is READY and not self._writer.waiting else 0
        if served != count and session.state is not CLOSED:
            # With a limit on memory, there is room for more only once that has been granted.
            self._received = FrameBuffer(data[served:], is_exact=self._shared.memory.limited)
            self._make_room()
            if session.state is PENDING:
                self._note_next_request()

    def eof_received(self) -> bool:
        return False  # close: the client reads no more responses

    def connection_lost(self, _error: Exception | None) -> None:
        self._session.close()
        self._received = None
        if self._throttle_timer is not None:
            self._throttle_timer.cancel()
        if self in self._shared.open:
            del self._shared.open[self]
            self._writer.close()
            self._shared.memory.leave(self, self._granted)
            self._shared.limits.leave(self, was_admitted=self._is_admitted)
        self._session.disconnect()
        self.peer.closed()

    def pause_writing(self) -> None:
        """The transport's own flow control; nothing is written through the transport."""

    def resume_writing(self) -> None:
        """See pause_writing."""

    # -- called by handlers, through the context ------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._session.state is CLOSED

    def complete(self, context: RequestContext[Any], response: msgspec.Struct | Outcome) -> None:
        """Send the response of a pending request, then serve what has arrived meanwhile."""
        session = self._session
        if session.state is CLOSED:
            return
        try:
            session.complete(context, response)
        except IllegalTransition:
            raise  # answered twice: a bug of the caller
        except Exception as error:  # noqa: BLE001 - logged with its traceback
            self._log_failure(
                f"an answer for {self.address} on {self.listener} cannot be sent; closing", error
            )
            self.close()
            return
        state = session.state
        if state is SERVING or state is SETTLED:
            return  # `_serve` continues
        self._flush()
        if session.throttled_s and session.state is YIELDED:
            self._wait_for_turn()
        elif self._received is not None:
            self._continue()

    def send(self, answer: Answer) -> None:
        """Send the answer to a request for which the dispatcher has returned NO_RESPONSE."""
        if self._session.state is not CLOSED:
            self._session.send(answer)
            if not self._session.is_serving:
                self._flush()

    def allow_pipelined_produces(self, context: RequestContext[Any]) -> None:
        """Serve produces behind the current request before its answer. To be called before its handler returns PENDING,
        or later, while it is pending; the connection may have ended since."""
        session = self._session
        if session.state is CLOSED:
            return
        session.allow_pipelined_produces(context)
        if session.state is READY:  # the handler has returned
            self._shared.runtime.call_soon(self._continue)

    def throttle(self, delay_s: float) -> None:
        """Serve nothing more for this long, once the current request is answered: the client has exceeded a quota."""
        if self._session.state is not CLOSED:
            self._session.throttle(delay_s)

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        """Call back if the connection ends before the current request is answered."""
        self._session.on_disconnect(callback)

    def on_next_request(self, callback: Callable[[int], object]) -> None:
        """Call back with the API key of the next request if it arrives before the current one is answered. The callback
        must not answer at once."""
        self._session.on_next_request(callback)
        if (
            not self._session.is_serving
        ):  # the handler waited for the disk first, and the next may be here already
            self._note_next_request()

    # -- called by what authenticates the client -----------------------------------------------------

    @property
    def authentications(self) -> AuthenticationCounts:
        """Of the listener."""
        return self._shared.authentications[self.listener]

    def serve_by(self, server: RequestServer, frame_max_bytes: int) -> None:
        """Serve the requests behind the current one by `server`."""
        self._session.serve_by(server, frame_max_bytes)

    def answer_client(self, answer: Answer) -> None:
        """Answer the current request, which is pending, then serve what has arrived meanwhile."""
        self._session.answer(answer)
        self._flush()
        if self._received is not None:
            self._continue()

    def refuse_client(self, answer: Answer | None, reason: str, delay_s: float) -> Outcome:
        """Answer the current request, or not, after a delay, and close. To be returned for it."""
        reason = reason[:_REASON_CHARACTERS_MAX]  # it may quote the client
        line = f"Failed authentication with {self.address} on {self.listener} ({reason})"
        self._shared.warnings.warn(self.client_host, reason, line, level=logging.INFO)

        def end() -> None:
            if self._session.state is not CLOSED:
                self._session.end(answer)
                self._flush()

        self.on_disconnect(self._shared.runtime.call_later(delay_s, end).cancel)
        return Outcome.PENDING

    # -- called by the limits and the memory ----------------------------------------------------------

    def admitted(self) -> None:
        """There were too many connections; now this one may be served."""
        self._is_admitted = True
        self._session.admit()
        self._continue()

    def feed(self) -> None:
        """Memory may be available again for the unfinished frame."""
        if self._session.state is CLOSED:
            return
        self._pauses &= ~_MEMORY
        if self._received is not None:
            self._make_room()
        if not self._pauses:
            self._transport.resume_reading()

    def drop_idle_buffer(self) -> None:
        """Give the memory back; the next large frame gets a new buffer."""
        if self._received is not None and not self._received.filled:
            self._received = None

    # -- the end --------------------------------------------------------------------------------------

    def close(self, reason: str = "") -> None:
        """Close now. `reason` is logged, with the peer, a few times a minute at most."""
        if self._session.state is CLOSED:
            return
        self._session.close()
        if reason:
            self._warn(f"closing connection of {self.address} on {self.listener}", reason)
        self._writer.close()
        self._transport.abort()

    def close_if_idle_since(self, moment: float) -> None:
        if self._last_active < moment:
            line = f"closing idle connection of {self.address} on {self.listener}"
            self._shared.warnings.warn(self.client_host, "idle", line, level=logging.INFO)
            self.close()

    def _warn(self, what: str, reason: str) -> None:
        self._shared.warnings.warn(self.client_host, reason, f"{what}: {reason}")

    def _log_failure(self, what: str, error: Exception) -> None:
        """Log a bug of the broker with its traceback, a few times a minute at most: a client may cause it repeatedly."""
        self._shared.warnings.warn(
            self.client_host, type(error).__name__, what, level=logging.ERROR, error=error
        )

    # -- requests -------------------------------------------------------------------------------------

    def _may_serve(self) -> bool:
        state = self._session.state
        return (state is READY or state is HELD_BACK) and not self._writer.waiting

    def _serve(self, data: memoryview, turn_began: float) -> int:
        """Serve the requests that may be served now, and send the responses. The number of bytes consumed."""
        session = self._session
        self.peer.received_at = turn_began
        position, end = 0, len(data)
        try:
            while True:
                before = position
                position = session.serve(data, before, turn_began)
                self._flush()
                if position == end:
                    break
                if position == before or session.state is not READY or self._writer.waiting:
                    break
        except FrameSizeError as error:
            self._flush()  # the requests before it were valid
            self._refuse_frame(error.size)
        except DecodeError as error:
            self._flush()
            self.close(f"a request that cannot be read: {error}")
        except Exception as error:  # noqa: BLE001 - logged with its traceback
            self._log_failure(
                f"request of {self.address} on {self.listener} failed; closing its connection", error
            )
            self._flush()
            self.close()
        if session.state is YIELDED:
            self._wait_for_turn()
        return position

    def _refuse_frame(self, size: int) -> None:
        if size == NODES_SIZE:
            refusal = self._shared.wrong_protocol().refuse_node(self.client_host, self.listener)
            self._session.answers.append(refusal)
            self._flush()
            self.close()
        elif size >> 16 == TLS_SIZE_BEGIN:
            self._shared.wrong_protocol().note_tls(self.client_host, self.listener)
            self.close()
        else:
            limit = self._session.frame_max_bytes
            if limit == self._shared.request_max_bytes:
                self.close(f"a frame of {size} bytes (socket.request.max.bytes={limit})")
            else:
                self.authentications.fail(again=self.caller.principal is not ANONYMOUS)
                self.close(
                    f"Failing SASL authentication due to invalid receive size {size} (sasl.server.max.receive.size={limit})"
                )

    def _serve_received(self, turn_began: float) -> None:
        """Serve from the connection's own buffer."""
        received, session = self._received, self._session
        assert received is not None
        served = 0
        if self._may_serve():
            served = self._serve(received.data[: received.filled], turn_began)
            if session.state is CLOSED:
                self._received = None
                return
            if served > SHARED_BUFFER_BYTES and session.state is READY:
                session.end_turn()
                self._wait_for_turn()
            received.consume(served)
            if self._granted and served:  # the granted frame has been served
                granted, self._granted = self._granted, 0
                self._shared.memory.give_back(granted)
        if received.filled:
            self._make_room()
            if session.state is PENDING:
                self._note_next_request()
        elif SHARED_BUFFER_BYTES < len(received.data) <= KEPT_BUFFER_BYTES:
            self._shared.memory.keep(self, len(received.data))
        else:
            self._received = None

    def _note_next_request(self) -> None:
        api_key = None if self._received is None else self._received.first_api_key()
        if api_key is not None:
            self._session.note_next_request(api_key)

    def _continue(self) -> None:
        """Serve the requests that have waited, and resume reading."""
        if not self._may_serve():
            return
        if self._received is not None and self._received.filled:
            self._serve_received(self._shared.runtime.monotonic())
        if self._pauses & _BACKLOG and self._session.state is READY and not self._writer.waiting:
            self._pauses &= ~_BACKLOG
            if not self._pauses:
                self._transport.resume_reading()

    def _wait_for_turn(self) -> None:
        """Pause until the other connections have been served: libuv reads up to 32 times in a row from a connection whose bytes
        fill every buffer, as a bulk producer's do. A throttled client's pause takes as long as it is throttled."""
        delay_s, self._session.throttled_s = self._session.throttled_s, 0.0
        if self._pauses & _TURN:
            return  # it waits already
        self._pause(_TURN)
        if delay_s:
            self._throttle_timer = self._shared.runtime.call_later(delay_s, self._begin_turn)
        else:
            self._shared.runtime.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        if self._session.state is CLOSED:
            return
        self._throttle_timer = None
        self._session.begin_turn()
        self._pauses &= ~_TURN
        if self._received is not None and self._received.filled:
            self._last_active = self._shared.runtime.monotonic()
        self._continue()
        if not self._pauses and self._session.state is not CLOSED:
            self._transport.resume_reading()

    # -- reading --------------------------------------------------------------------------------------

    def _pause(self, reason: int) -> None:
        if not self._pauses:
            self._transport.pause_reading()
        self._pauses |= reason

    def _make_room(self) -> None:
        """An empty get_buffer() is fatal to the loop: grow, or pause reading while requests wait."""
        received = self._received
        assert received is not None
        if self._session.state is READY and not self._writer.waiting:
            if not self._shared.memory.limited or self._is_granted(received):
                received.make_room()
            return
        if received.filled >= BACKLOG_BYTES:
            self._pause(_BACKLOG)
        if received.is_full or not self._pauses & _BACKLOG:
            received.reserve()

    def _is_granted(self, received: FrameBuffer) -> bool:
        """Whether more of the unfinished frame may be read (queued.max.request.bytes)."""
        frame_bytes = received.first_frame_bytes()
        missing = frame_bytes - self._granted
        if missing <= 0:
            return True
        if self._shared.memory.grant(missing):
            self._granted = frame_bytes
            return True
        if not self._pauses & _MEMORY:
            self._pause(_MEMORY)
            self._shared.memory.wait(self)
        return False

    # -- answers --------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Send the collected responses: in one piece, unless they have file regions."""
        session = self._session
        answers = session.answers
        if answers:
            try:
                if session.has_regions:
                    session.has_regions = False
                    self._writer.send(answers)
                else:
                    self._writer.send_bytes(b"".join(answers))  # type: ignore[arg-type]  # no regions: all are bytes
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._warn(f"{self.address} on {self.listener} can't be waited for", str(error))
                log.debug("the connection of %s is lost: %s", self.address, error)
                self.close()
            answers.clear()
        if session.state is CLOSING:
            self.close()

    def _drained(self) -> None:
        """The socket has taken everything: serve the requests that have waited. Or it has failed."""
        if self._writer.closed:
            self.close("the rest of a response could not be sent")
            return
        self._last_active = self._shared.runtime.monotonic()
        self._continue()
