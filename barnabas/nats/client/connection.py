"""One connection to a nats-server: its transport, TLS, timers, reading and writing.

`session.py` has its states and decides what follows from what arrives. Here is the I/O:

- Reading goes into one large buffer, because every read has a price; after a large read the loop serves others first.
- Nothing is read while the owner pauses the connection, nor while the parser has more lines than a turn may take.
"""

from __future__ import annotations

import logging
from asyncio import BufferedProtocol  # noqa: TID251 - loops know a buffered protocol by this base alone
from typing import TYPE_CHECKING, Any, Final, Protocol

from barnabas.nats.client.errors import (
    PROTOCOL,
    SERVER_GONE,
    SETTINGS,
    SLOW_CONSUMER,
    STALE,
    Cause,
    NatsError,
    NatsSettingsError,
    NotConnected,
)
from barnabas.nats.client.flow_control import Output, Pausing
from barnabas.nats.client.handshake import connect_options, tls_context
from barnabas.nats.client.protocol import NatsProtocolError, connect_line
from barnabas.nats.client.session import PINGS_MAX, READY, Event, Session, State

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from barnabas.nats.client.connection_settings import ConnectionSettings, ServerAddress
    from barnabas.nats.client.protocol import NatsParser
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.nats")


class ConnectionOwner(Protocol):
    """Callbacks of a connection, and what it takes from its owner. All calls on the loop's thread."""

    name: str
    parser: NatsParser

    def made(self, connection: NatsConnection) -> bool:
        """There is a transport; False when the connection is not needed any more."""

    def subscription_lines(self) -> bytes:
        """The SUBs that a connection begins with."""

    def ready(self, connection: NatsConnection) -> None: ...

    def has_read(self, byte_count: int) -> None: ...

    def drained(self) -> None: ...

    def slow(self, paused_s: float) -> None: ...

    def ended(self, connection: NatsConnection, cause: Cause) -> None: ...


YIELD_BYTES: Final = 128 * 1024  # of one read; under TLS none is larger than 256 KiB
SLOW_PAUSE_S: Final = 0.25  # an end after so much of it is what servers do to slow readers
FINISH_WITHIN_S: Final = 1.0


class NatsConnection(BufferedProtocol):
    """One connection, from connection_made until `ended` has been called. Called by the event loop."""

    def __init__(
        self, owner: ConnectionOwner, runtime: Runtime, settings: ConnectionSettings, server: ServerAddress
    ) -> None:
        self.server = server
        self.session = Session(str(server))
        self.ready_at: float | None = None  # when the greeting was answered
        self.output = Output(runtime, settings.output_bytes_max)
        self._owner = owner
        self._runtime = runtime
        self._settings = settings
        self._transport: Any = None
        self._view = memoryview(bytearray(settings.read_buffer_bytes))
        self._yield_bytes = min(settings.read_buffer_bytes, YIELD_BYTES)
        self._pausing = Pausing(runtime, owner.slow)
        self._timer: Timer | None = None  # until the greeting must be answered, then until the next ping

    # -- the owner's side

    def ping(self, done: Callable[[NatsError | None], object] | None = None) -> None:
        """`done(None)` when the server has processed all that was sent before, `done(error)` when the connection ends."""
        self.session.add_ping(done)
        self.output.send_line(b"PING\r\n")

    def pause(self) -> None:
        """Reads no more until `resume`; what has been read already still arrives."""
        if not (self._pausing.is_paused or self.session.is_closed or self._transport.is_closing()):
            self._pausing.begin()
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._pausing.is_paused and not self.session.is_closed:
            self._pausing.end()
            self._read_on()

    def end(self, cause: Cause) -> None:
        """Ends it at once, and calls `ended`."""
        if not self.session.is_closed:
            if self._transport is not None and not self.session.is_in_tls_handshake:  # else `_tls_ended` does
                self._transport.abort()
            self._ended(cause)

    def finish(self, cause: Cause) -> None:
        """Calls `ended`, and ends it when all that waits has been written, or at the latest in a second."""
        if not self.session.is_greeted:
            self.end(cause)
            return
        self.output.write()
        transport = self._transport
        transport.close()
        self._runtime.call_later(FINISH_WITHIN_S, transport.abort)
        self._ended(cause)

    # -- called by the event loop

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.output.open(transport)
        if not self._owner.made(self):
            self.session.close()
            transport.abort()
            return
        self._timer = self._runtime.call_later(self._settings.connect_timeout_s, self._too_late)
        if self._settings.tls_first:
            self._protected(lambda: self._start_tls(tls_context(self._settings, self.server, None)))
        else:
            self.session.apply(Event.OPEN)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, count: int) -> None:
        session = self.session
        session.has_heard = True
        data = self._view[:count]
        if session.state is not READY and not session.is_greeted:
            if not session.is_closed:
                self._protected(lambda: self._receive_info(data))
            return
        is_behind = self._read(data)
        if (
            not is_behind
            and count >= self._yield_bytes
            and not (self._pausing.is_paused or session.is_closed)
        ):
            # There is more to read, and the loop would go on with it: other callbacks run first.
            self._transport.pause_reading()
            self._runtime.call_soon(self._read_on)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if self.session.is_closed:
            return
        if self.session.expected_end is not None:
            cause = self.session.expected_end
        elif (paused_s := self._pausing.recent_s()) >= SLOW_PAUSE_S:
            detail = f"closed by {self.server}, after reading from it had paused for {paused_s:.1f} s"
            cause = Cause(SLOW_CONSUMER, detail)
        else:
            detail = str(error) if error is not None else "closed by the server"
            cause = Cause(SERVER_GONE, f"{self.server}: {detail}")
        self._ended(cause)

    def pause_writing(self) -> None:
        """Output bounds what waits."""

    def resume_writing(self) -> None:
        if not self.session.is_closed:
            self._owner.drained()

    # -- reading

    def _read(self, data: memoryview) -> bool:
        """Parses what was read. Returns whether lines are left for the next turns, until which nothing more is read."""
        self._feed(data)
        if not self._owner.parser.is_behind or self.session.is_closed:
            return False
        self._transport.pause_reading()
        self._runtime.call_soon(self._feed_rest)
        return True

    def _feed_rest(self) -> None:
        """Parses the lines that a turn before has left."""
        if self.session.is_closed:
            return
        self._feed(memoryview(b""))
        if self._owner.parser.is_behind:
            self._runtime.call_soon(self._feed_rest)
        else:
            self._read_on()

    def _read_on(self) -> None:
        if not (
            self._pausing.is_paused
            or self.session.is_closed
            or self._transport.is_closing()
            or self._owner.parser.is_behind
        ):
            self._transport.resume_reading()

    def _feed(self, data: memoryview) -> None:
        try:
            self._owner.parser.feed(data)
        except NatsProtocolError as error:
            self.end(Cause(PROTOCOL, str(error)))
        except Exception:
            log.exception("%s: processing what %s has sent failed", self._owner.name, self.server)
            self.end(Cause(PROTOCOL, "processing what the server has sent failed"))
        self._owner.has_read(len(data))

    # -- the greeting

    def _receive_info(self, data: memoryview) -> None:
        rest = self.session.receive_info(data)
        if rest is None:
            return
        is_tls = self._settings.tls_first
        context = None if is_tls else tls_context(self._settings, self.server, self.session.info)
        if context is None:
            self._greet(rest)
        else:
            self._start_tls(context, rest)

    def _greet(self, rest: bytes = b"") -> None:
        self.session.apply(Event.GREET)
        parser, info = self._owner.parser, self.session.info
        parser.reset()
        parser.size_max = info.size_max
        options = connect_options(self._settings, self.server, info, self._owner.name)
        self.output.send_line(connect_line(options) + self._owner.subscription_lines())
        self.ping(self._answered)
        if rest:
            self._read(memoryview(rest))

    def _answered(self, error: NatsError | None) -> None:
        if error is not None:
            return
        self.session.apply(Event.ANSWER)
        self.ready_at = self._runtime.monotonic()
        self._wait_to_ping()
        self._owner.ready(self)

    def _start_tls(self, context: ssl.SSLContext | None, rest: bytes = b"") -> None:
        self.session.start_tls(rest)
        assert context is not None, "TLS before INFO is asked for"
        name = self.server.tls_name or self.server.host
        self._runtime.start_tls(self._transport, self, context, name, self._tls_ended)

    def _tls_ended(self, transport: Any, error: OSError | None) -> None:
        session = self.session
        session.apply(Event.END_TLS)
        if transport is not None:
            self._transport = transport
            self.output.open(transport)
        if session.is_closed:
            self.output.close()
            self._transport.abort()
        elif error is not None:
            self.end(Cause(SERVER_GONE, f"no TLS with {self.server}: {error}"))
        elif session.state is State.SECURE:
            self._protected(self._greet)

    def _protected(self, step: Callable[[], object]) -> None:
        """A step of the greeting; an error in it ends the connection."""
        try:
            step()
        except NatsProtocolError as error:
            self.end(Cause(PROTOCOL, str(error)))
        except NatsSettingsError as error:
            self.end(Cause(SETTINGS, str(error)))
        except Exception:
            log.exception("%s: the greeting of %s failed", self._owner.name, self.server)
            self.end(Cause(PROTOCOL, "the greeting failed"))

    def _too_late(self) -> None:
        timeout_s = self._settings.connect_timeout_s
        self.end(Cause(SERVER_GONE, f"{self.server} has not answered for {timeout_s:g} s"))

    # -- life and end

    def _wait_to_ping(self) -> None:
        self._cancel_timer()
        self._timer = self._runtime.call_later(self._settings.ping_interval_s, self._check)

    def _check(self) -> None:
        if self.session.is_stale(is_paused=self._pausing.is_paused):
            self.end(Cause(STALE, f"{self.server} has been silent for {PINGS_MAX} pings"))
        else:
            self.ping()
            self._wait_to_ping()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ended(self, cause: Cause) -> None:
        unanswered = self.session.close()
        self._cancel_timer()
        self._pausing.cancel()
        self.output.close()
        self._owner.ended(self, cause)
        for done in unanswered:
            done(NotConnected(str(cause)))
