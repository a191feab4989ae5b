"""One connection to a nats-server: its handshake, TLS, reading, writing, and checks that it is alive.

- The server speaks first, one INFO line; it is read here and not by the parser, so bytes that an attacker slips in behind it,
  before TLS begins, are never parsed as messages.
- CONNECT, all subscriptions and a PING are sent together: when the PONG arrives, the subscriptions are in force.
- Reading goes into one large buffer, because every read has a price; after a large piece the loop serves others first.
- Any bytes are a sign of life. After two pings without any the connection is stale; not while reading is paused.
"""

from __future__ import annotations

import logging
from asyncio import BufferedProtocol  # noqa: TID251 - loops know a buffered protocol by this base alone
from collections import deque
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
from barnabas.nats.client.protocol import LINE_BYTES_MAX, NatsProtocolError, ServerInfo, read_info

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from barnabas.nats.client.connection_settings import ConnectionSettings, ServerAddress
    from barnabas.nats.client.protocol import NatsParser
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.nats")


class ConnectionOwner(Protocol):
    """Callbacks of a connection. All calls on the loop's thread."""

    name: str
    parser: NatsParser

    def made(self, connection: NatsConnection) -> bool:
        """It is made; False when it is not needed any more."""
        ...

    def tls_for(self, connection: NatsConnection, info: ServerInfo | None) -> ssl.SSLContext | None:
        """The context to go on with under TLS, after INFO or (None) before it. NatsSettingsError when that is impossible."""
        ...

    def greeting(self, connection: NatsConnection, info: ServerInfo) -> bytes:
        """CONNECT and all SUBs. NatsSettingsError without usable credentials."""
        ...

    def ready(self, connection: NatsConnection) -> None: ...

    def has_read(self, byte_count: int) -> None: ...

    def drained(self) -> None: ...

    def slow(self, paused_s: float) -> None: ...

    def ended(self, connection: NatsConnection, cause: Cause) -> None: ...


YIELD_BYTES: Final = 128 * 1024  # of one read; under TLS none is larger than 256 KiB
PINGS_MAX: Final = 2  # without any sign of life
SLOW_PAUSE_S: Final = 0.25  # an end after so much of it is what servers do to slow readers


class NatsConnection(BufferedProtocol):
    """One connection, from connection_made until `ended` has been called. Called by the event loop."""

    def __init__(
        self, owner: ConnectionOwner, runtime: Runtime, settings: ConnectionSettings, server: ServerAddress
    ) -> None:
        self.server = server
        self.info = ServerInfo()
        self.is_greeted = False  # CONNECT has been sent
        self.is_ready = False  # and was answered
        self.ready_at: float | None = None  # and when
        self.expected_end: Cause | None = None  # what its end means, when that is known before
        self.output = Output(runtime, settings.output_bytes_max)
        self._owner = owner
        self._runtime = runtime
        self._settings = settings
        self._transport: Any = None
        self._view = memoryview(bytearray(settings.read_buffer_bytes))
        self._yield_bytes = min(settings.read_buffer_bytes, YIELD_BYTES)
        self._first = bytearray()  # what has come of the first line
        self._closing = False
        self._has_info = False
        self._upgrading = False  # to TLS
        self._pongs: deque[Callable[[NatsError | None], object] | None] = deque()
        self._heard = False
        self._silent_pings = 0
        self._pausing = Pausing(runtime, owner.slow)
        self._timers: dict[str, Timer] = {}

    # -- the owner's side

    def ping(self, done: Callable[[NatsError | None], object] | None = None) -> None:
        """`done(None)` when the server has dealt with all that was sent before, `done(error)` when the connection ends."""
        self._pongs.append(done)
        self.output.send_line(b"PING\r\n")

    def pong(self) -> None:
        """Called by the parser's handler."""
        done = self._pongs.popleft() if self._pongs else None
        if done is not None:
            done(None)

    def pause(self) -> None:
        """Read no more, until `resume`; what has been read already still arrives."""
        if not (self._pausing.is_paused or self._closing or self._transport.is_closing()):
            self._pausing.begin()
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._pausing.is_paused and not self._closing:
            self._pausing.end()
            self._read_on()

    def end(self, cause: Cause) -> None:
        """End it at once; the owner is told."""
        if not self._closing:
            self._transport_end()
            self._ended(cause)

    def finish(self, cause: Cause) -> None:
        """End it when all that waits has been written, or at the latest in a second; the owner is told now."""
        if not self.is_greeted:
            self.end(cause)
        if self._closing:
            return
        self.output.write()
        transport = self._transport
        transport.close()
        self._runtime.call_later(1.0, transport.abort)
        self._ended(cause)

    # -- called by the event loop

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.output.open(transport)
        if not self._owner.made(self):
            self._closing = True
            transport.abort()
            return
        timeout_s = self._settings.connect_timeout_s
        self._timers["connect"] = self._runtime.call_later(timeout_s, self._too_late)
        if self._settings.tls_first:
            self._protected(lambda: self._upgrade(None))

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, count: int) -> None:
        if self._closing:
            return
        self._heard = True
        data = self._view[:count]
        if not self.is_greeted:
            self._protected(lambda: self._first_bytes(data))
            return
        is_behind = self._read(data)
        if not is_behind and count >= self._yield_bytes and not (self._pausing.is_paused or self._closing):
            # There is more, and the loop would read on and on: let the others come in between.
            self._transport.pause_reading()
            self._runtime.call_soon(self._read_on)

    def _read(self, data: memoryview) -> bool:
        """Deal with what was read; whether some of it is left to the next turns, until which nothing more is read."""
        self._feed(data)
        if self._closing or not self._owner.parser.is_behind:
            return False
        self._transport.pause_reading()
        self._runtime.call_soon(self._feed_rest)
        return True

    def _feed_rest(self) -> None:
        """What a turn before has left of what was read."""
        if self._closing:
            return
        self._feed(memoryview(b""))
        if self._owner.parser.is_behind:
            self._runtime.call_soon(self._feed_rest)
        else:
            self._read_on()

    def _read_on(self) -> None:
        if not (
            self._pausing.is_paused
            or self._closing
            or self._transport.is_closing()
            or self._owner.parser.is_behind
        ):
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if self._closing:
            return
        if self.expected_end is not None:
            cause = self.expected_end
        elif (paused_s := self._pausing.of_late_s()) >= SLOW_PAUSE_S:
            detail = f"closed by {self.server}, which was not read from for {paused_s:.1f} s of late"
            cause = Cause(SLOW_CONSUMER, detail)
        else:
            detail = str(error) if error is not None else "closed by the server"
            cause = Cause(SERVER_GONE, f"{self.server}: {detail}")
        self._ended(cause)

    def pause_writing(self) -> None:
        """Output bounds what waits."""

    def resume_writing(self) -> None:
        if not self._closing:
            self._owner.drained()

    # -- reading

    def _feed(self, data: memoryview) -> None:
        try:
            self._owner.parser.feed(data)
        except NatsProtocolError as error:
            self.end(Cause(PROTOCOL, str(error)))
        except Exception:
            log.exception("%s: what came from %s could not be dealt with", self._owner.name, self.server)
            self.end(Cause(PROTOCOL, "what came could not be dealt with"))
        self._owner.has_read(len(data))

    def _first_bytes(self, data: memoryview) -> None:
        """Until the INFO line is whole, which opens the connection."""
        if self._upgrading and self._settings.tls_first:
            raise NatsSettingsError(
                f"{self.server} speaks before TLS begins: set handshake_first in the tls section of its configuration, or "
                "nats.tls.handshake.first=false here"
            )
        if self._upgrading:
            raise NatsProtocolError("something came between INFO and the beginning of TLS")
        self._first += data
        line, end, rest = bytes(self._first).partition(b"\r\n")
        if len(line) > LINE_BYTES_MAX:
            raise NatsProtocolError("a first line without end")
        if not end:
            return
        self.info = read_info(line)
        self._has_info = True
        self._first = bytearray()
        if self._transport_is_tls() or not self._upgrade(self.info):
            self._greet(rest)
        elif rest:
            raise NatsProtocolError("something came between INFO and the beginning of TLS")

    def _greet(self, rest: bytes = b"") -> None:
        self.is_greeted = True
        parser = self._owner.parser
        parser.reset()
        parser.size_max = self.info.size_max
        self.output.send_line(self._owner.greeting(self, self.info))
        self.ping(self._answered)
        if rest:
            self._read(memoryview(rest))

    def _answered(self, error: NatsError | None) -> None:
        if error is not None:
            return
        self._cancel("connect")
        self.is_ready = True
        self.ready_at = self._runtime.monotonic()
        self._timers["ping"] = self._runtime.call_later(self._settings.ping_interval_s, self._check)
        self._owner.ready(self)

    # -- TLS

    def _transport_is_tls(self) -> bool:
        return self._transport.get_extra_info("ssl_object") is not None

    def _upgrade(self, info: ServerInfo | None) -> bool:
        """Go on under TLS if that is asked for; whether it is."""
        context = self._owner.tls_for(self, info)
        if context is None:
            return False
        self._upgrading = True
        name = self.server.tls_name or self.server.host
        self._runtime.start_tls(self._transport, self, context, name, self._upgraded)
        return True

    def _upgraded(self, transport: Any, error: OSError | None) -> None:
        self._upgrading = False
        if transport is not None:
            self._transport = transport
            self.output.open(transport)
        if self._closing:
            self.output.close()
            self._transport.abort()
        elif error is not None:
            self.end(Cause(SERVER_GONE, f"no TLS with {self.server}: {error}"))
        elif self._has_info:
            self._protected(self._greet)

    # -- life and end

    def _check(self) -> None:
        """Once in a ping interval."""
        if self._heard or self._pausing.is_paused:
            self._silent_pings = 0
        elif self._silent_pings >= PINGS_MAX:
            self.end(Cause(STALE, f"{self.server} has been silent for {PINGS_MAX} pings"))
            return
        self._heard = False
        self._silent_pings += 1
        self.ping()
        self._timers["ping"] = self._runtime.call_later(self._settings.ping_interval_s, self._check)

    def _too_late(self) -> None:
        self.end(
            Cause(SERVER_GONE, f"{self.server} has not answered for {self._settings.connect_timeout_s:g} s")
        )

    def _protected(self, step: Callable[[], object]) -> None:
        """A step of the greeting; whatever is wrong with it ends the connection."""
        try:
            step()
        except NatsProtocolError as error:
            self.end(Cause(PROTOCOL, str(error)))
        except NatsSettingsError as error:
            self.end(Cause(SETTINGS, str(error)))
        except Exception:
            log.exception("%s: the greeting of %s could not be dealt with", self._owner.name, self.server)
            self.end(Cause(PROTOCOL, "the greeting could not be dealt with"))

    def _cancel(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _transport_end(self) -> None:
        if self._transport is not None and not self._upgrading:  # else `_upgraded` does it
            self._transport.abort()

    def _ended(self, cause: Cause) -> None:
        self._closing = True
        self.is_ready = False
        for name in tuple(self._timers):
            self._cancel(name)
        self._pausing.cancel()
        self.output.close()
        pongs, self._pongs = self._pongs, deque()
        self._owner.ended(self, cause)
        for done in pongs:
            if done is not None:
                done(NotConnected(str(cause)))
