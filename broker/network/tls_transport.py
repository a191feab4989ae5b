"""TLS between the event loop and a Connection: for the loop it is a protocol, for the connection a transport.

OpenSSL works on memory BIOs, so the same code runs on every loop and on a simulated network, and a connection's descriptor is
written by its writer alone (tls_writer.py).

- Bytes of the socket are received into one shared buffer and fed to OpenSSL in slices of 32 KB; the plaintext is decrypted into
  the connection's own receive buffer. What is not decrypted when the connection pauses reading stays here, and is decrypted
  when it resumes: no event of the socket comes for it.
- A turn decrypts a bounded number of records, because a peer may send records of one byte, and for a bounded time, because it may
  send records without any: updates of its keys, each of 27 bytes, cost 20 us. One that asks for ours as often is closed.
- Handshakes take a bounded time of a turn, as each costs up to 3 ms, and have a deadline. OpenSSL holds 50 KB for one; so none
  begins before a whole record has come, and of too many the oldest makes room.
- After a failed handshake the alert is sent, and the connection closes connection.failed.authentication.delay.ms later, as in
  Kafka; closing at once could discard the alert.
"""

from __future__ import annotations

import logging
import ssl
from asyncio import BufferedProtocol  # noqa: TID251 - loops know a buffered protocol by this base alone
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.network.connection import Connection
from barnabas.broker.network.tls_writer import TlsResponseWriter
from barnabas.broker.security.caller import Caller

if TYPE_CHECKING:
    from barnabas.broker.network.connection import Connections, NewAuthenticator
    from barnabas.broker.network.response_writer import ResponseWriter
    from barnabas.broker.security.listener_tls import ListenerTls
    from barnabas.runtime.interface import Runtime, Timer

RECEIVE_BYTES: Final = 128 * 1024
FEED_BYTES: Final = 32 * 1024  # a BIO keeps the capacity of the most that it ever held
TURN_RECORDS: Final = 256
DECRYPT_TURN_S: Final = 0.002
ANSWERS_BYTES_MAX: Final = 4096  # of OpenSSL to one slice: an update of the keys has 27
HANDSHAKES_TURN_S: Final = 0.002
HANDSHAKE_TIMEOUT_S: Final = 30.0
HANDSHAKES_MAX: Final = 1000
_HANDSHAKE_RECORD: Final = 0x16
_RECORD_BYTES_MAX: Final = 16 * 1024  # of a handshake
_RECORD_HEAD_BYTES: Final = 5  # type, version and length

_HANDSHAKE, _OPEN, _FAILED, _CLOSED = "handshake", "open", "failed", "closed"
_EMPTY: Final = memoryview(b"")


class TlsConnections:
    """What the TLS connections of one broker share."""

    def __init__(self, connections: Connections, failed_delay_s: float) -> None:
        """`failed_delay_s`: between a failed handshake and the end of its connection."""
        self.connections = connections
        self.runtime: Runtime = connections.runtime
        self.failed_delay_s = failed_delay_s
        self.receive_buffer = memoryview(bytearray(RECEIVE_BYTES))
        self.outgoing = ssl.MemoryBIO()  # empty between calls
        self._waiting: deque[TlsTransport] = deque()  # with bytes of a handshake
        self._is_scheduled = False
        self._begun: dict[TlsTransport, None] = {}  # handshakes that OpenSSL works on, the oldest first

    def protocol(self, tls: ListenerTls, authenticate: NewAuthenticator | None = None) -> TlsTransport:
        """The protocol of a new connection."""
        return TlsTransport(self, tls, authenticate)

    def begin_handshake(self, transport: TlsTransport) -> None:
        """Count it until `end_handshake`, and close the oldest where there are too many."""
        if len(self._begun) >= HANDSHAKES_MAX:
            next(iter(self._begun)).give_way()
        self._begun[transport] = None

    def end_handshake(self, transport: TlsTransport) -> None:
        self._begun.pop(transport, None)

    def continue_handshake(self, transport: TlsTransport) -> None:
        """In one of the next turns, in the order of the calls."""
        self._waiting.append(transport)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self.runtime.call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        waiting, began = self._waiting, self.runtime.monotonic()
        while waiting:
            waiting.popleft().handshake()
            if self.runtime.monotonic() - began > HANDSHAKES_TURN_S:
                break
        if waiting:
            self._schedule()


class TlsConnection(Connection):
    """A connection whose answers are encrypted."""

    __slots__ = ()

    def _make_writer(self, transport: Any) -> ResponseWriter:
        assert isinstance(transport, TlsTransport)
        return transport.make_writer(self._drained)


class TlsTransport(BufferedProtocol):
    """One accepted connection."""

    __slots__ = (
        "_connection", "_has_sasl", "_incoming", "_is_paused", "_is_raw_paused", "_is_scheduled", "_listener_tls",
        "_shared", "_state", "_timer", "_tls", "_transport", "_undecrypted", "_writer",
    )  # fmt: skip

    def __init__(
        self, shared: TlsConnections, listener_tls: ListenerTls, authenticate: NewAuthenticator | None
    ) -> None:
        self._shared = shared
        self._listener_tls = listener_tls
        self._has_sasl = authenticate is not None
        self._connection = TlsConnection(shared.connections, listener_tls.listener, authenticate)
        self._state = _HANDSHAKE
        self._tls: ssl.SSLObject | None = None  # once a byte has come
        self._incoming: ssl.MemoryBIO | None = None
        self._undecrypted = _EMPTY  # received, and not fed to OpenSSL
        self._is_paused = False  # by the connection
        self._is_raw_paused = False
        self._is_scheduled = False
        self._timer: Timer | None = None
        self._transport: Any = None
        self._writer: TlsResponseWriter

    # -- the connection's transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def make_writer(self, drained: Callable[[], object]) -> TlsResponseWriter:
        shared = self._shared
        self._writer = TlsResponseWriter(
            shared.runtime,
            self._transport,
            shared.connections.copy_buffer,
            drained,
            shared.outgoing,
        )
        return self._writer

    def pause_reading(self) -> None:
        self._is_paused = True
        self._read_raw(False)

    def resume_reading(self) -> None:
        self._is_paused = False
        if self._state is not _OPEN:
            return
        if self._undecrypted or self._has_more():
            self._continue_soon()
        else:
            self._read_raw(True)

    def abort(self) -> None:
        self._end()
        self._transport.abort()

    # -- called by the event loop

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._timer = self._shared.runtime.call_later(HANDSHAKE_TIMEOUT_S, self._handshake_late)
        self._connection.connection_made(self)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._shared.receive_buffer

    def buffer_updated(self, count: int) -> None:
        if self._state is _OPEN:
            self._undecrypted = self._shared.receive_buffer[:count]
            self._decrypt()
        elif self._state is _HANDSHAKE:
            received = bytes(self._shared.receive_buffer[:count])
            self._undecrypted = memoryview(
                bytes(self._undecrypted) + received if self._undecrypted else received
            )
            if self._tls is not None or self._has_record():
                self._read_raw(False)
                self._shared.continue_handshake(self)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._end()
        self._connection.connection_lost(error)

    def pause_writing(self) -> None:
        """Nothing is written through the loop's transport."""

    def resume_writing(self) -> None:
        """See pause_writing."""

    # -- handshake

    def handshake(self) -> None:
        """Continue the handshake with what has been received."""
        if self._state is not _HANDSHAKE:
            return
        try:
            if self._tls is None:
                self._begin()
            if self._is_handshake_done():
                self._established()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            self._fail(error)

    def _has_record(self) -> bool:
        """Whether a whole record of a handshake has been received, or something else."""
        data = self._undecrypted
        if data[0] != _HANDSHAKE_RECORD:
            return True
        if len(data) < _RECORD_HEAD_BYTES:
            return False
        length = int.from_bytes(data[3:5], "big")
        return length > _RECORD_BYTES_MAX or len(data) >= _RECORD_HEAD_BYTES + length

    def give_way(self) -> None:
        """Close, because too many handshakes have begun."""
        self._connection.close(f"more than {HANDSHAKES_MAX} TLS handshakes are not done")

    def _begin(self) -> None:
        self._shared.begin_handshake(self)
        self._incoming = ssl.MemoryBIO()
        self._tls = self._listener_tls.server.wrap_bio(
            self._incoming, self._shared.outgoing, server_side=True
        )
        self._writer.tls = self._tls

    def _is_handshake_done(self) -> bool:
        """False when more bytes are needed."""
        tls = self._tls
        assert tls is not None
        while True:
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                if self._feed():
                    continue
                self._writer.send_tls()
                self._read_raw(True)
                return False
            self._writer.send_tls()
            return True

    def _established(self) -> None:
        tls, connection = self._tls, self._connection
        assert tls is not None
        principal = self._listener_tls.principal(tls.getpeercert(binary_form=True))
        if principal is None:
            raise ValueError("no rule of ssl.principal.mapping.rules matches the certificate's subject")
        connection.caller = Caller(principal, connection.listener, connection.client_host)
        if not self._has_sasl:
            connection.authentications.succeed(again=False, may_reauthenticate=False)
        self._state = _OPEN
        self._shared.end_handshake(self)
        self._cancel_timer()
        self._writer.is_established = True
        if not self._is_paused:
            self._decrypt()

    def _handshake_late(self) -> None:
        self._timer = None
        self._connection.close(f"no TLS handshake within {HANDSHAKE_TIMEOUT_S:g} s")

    def _fail(self, error: Exception) -> None:
        """Send the alert, then receive and forget everything until the connection closes."""
        connection, shared = self._connection, self._shared
        reason = getattr(error, "verify_message", None) or getattr(error, "reason", None) or str(error)
        shared.connections.warnings.warn(
            connection.client_host,
            f"TLS {reason}",
            f"Failed authentication with {connection.address} on {connection.listener} (SSL handshake failed): {reason}",
            level=logging.INFO,
        )
        self._state = _FAILED
        connection.authentications.fail(again=False)
        self._undecrypted = _EMPTY
        self._cancel_timer()
        try:
            self._writer.send_tls()
        except OSError:
            connection.close()
            return
        self._timer = shared.runtime.call_later(shared.failed_delay_s, connection.close)
        self._read_raw(True)

    # -- records

    def _feed(self) -> bool:
        """Feed the next received bytes to OpenSSL: whether there were any."""
        data, incoming = self._undecrypted, self._incoming
        assert incoming is not None
        if not data:
            return False
        incoming.write(data[:FEED_BYTES])
        self._undecrypted = data[FEED_BYTES:]
        return True

    def _has_more(self) -> bool:
        """Whether OpenSSL may have plaintext without more bytes of the socket."""
        tls, incoming = self._tls, self._incoming
        return tls is not None and incoming is not None and bool(incoming.pending or tls.pending())

    def _decrypt(self) -> None:
        """Pass received bytes to the connection, until it pauses or the turn's share is used up."""
        connection, outgoing = self._connection, self._shared.outgoing
        left = TURN_RECORDS
        ends_at = self._shared.runtime.monotonic() + DECRYPT_TURN_S
        is_more = True
        while is_more and left > 0 and self._state is _OPEN and not self._is_paused:
            buffer = connection.get_buffer(-1)
            filled, records, is_more = 0, 0, True
            try:
                filled, records, is_more = self._read_into(buffer, left, ends_at)
                if outgoing.pending:
                    self._writer.send_tls()
            except (OSError, ValueError) as error:
                self._break(error)
                return
            left -= records
            if filled:
                connection.buffer_updated(filled)
        if self._state is not _OPEN:
            return
        if self._undecrypted:  # the buffer is shared
            self._undecrypted = memoryview(bytes(self._undecrypted))
        if self._is_paused:
            return
        if is_more:
            self._read_raw(False)
            self._continue_soon()
        else:
            self._read_raw(True)

    def _read_into(self, buffer: memoryview, records_max: int, ends_at: float) -> tuple[int, int, bool]:
        """Decrypt into the buffer: bytes, records, and whether more is left. As many records as may be, when the time is up.
        ssl.SSLError; ValueError; ConnectionResetError at the stream's end."""
        tls, incoming, shared = self._tls, self._incoming, self._shared
        assert tls is not None
        assert incoming is not None
        filled, records, size = 0, 0, len(buffer)
        while filled < size and records < records_max:
            try:
                count: Any = tls.read(size - filled, buffer[filled:])
            except ssl.SSLWantReadError:
                if shared.outgoing.pending > ANSWERS_BYTES_MAX:
                    raise ValueError("the peer asks for new keys again and again") from None
                if self._undecrypted and shared.runtime.monotonic() > ends_at:
                    return filled, records_max, True
                if self._feed():
                    continue
                return filled, records, False
            if not count:  # close_notify
                if filled:  # the requests before it are served first
                    return filled, records, True
                raise ConnectionResetError("closed")
            filled += count
            records += 1
            if not incoming.pending and not self._undecrypted and not tls.pending():
                return filled, records, False
        return filled, records, True

    def _break(self, error: Exception) -> None:
        """The peer has closed, or sends what is not TLS."""
        try:
            self._writer.send_tls()
        except OSError:
            pass
        if isinstance(error, ConnectionError | ssl.SSLEOFError | ssl.SSLZeroReturnError):
            self._connection.close()
        else:
            self._connection.close(f"TLS: {getattr(error, 'reason', None) or error}")

    def _continue_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._shared.runtime.call_soon(self._continue)

    def _continue(self) -> None:
        self._is_scheduled = False
        if self._state is _OPEN and not self._is_paused:
            self._decrypt()

    def _read_raw(self, wanted: bool) -> None:
        if self._is_raw_paused is wanted and self._state is not _CLOSED:
            self._is_raw_paused = not wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._state = _CLOSED
        self._shared.end_handshake(self)
        self._cancel_timer()
        self._tls = self._incoming = None
        self._undecrypted = _EMPTY
