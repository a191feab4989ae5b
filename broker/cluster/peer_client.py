"""The client of another broker's inter-broker listener: keeps a connection to it (peer_connection.py) and sends requests.

A connection begins with a login by SASL, where the listener asks for one, and with the authentication of both brokers
(inter_broker_authentication.py). When it has ended, the client connects again: at once, then with growing random delays, so
that not all brokers connect at the same moment to one that has restarted.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from barnabas.broker.cluster.inter_broker_authentication import AuthenticationRefused
from barnabas.broker.cluster.peer_connection import InterBrokerConnection, PendingRequest, RawAnswer
from barnabas.broker.cluster.sasl_login import VERSION, LoginRequest, SaslLogin
from barnabas.broker.requests.registry import AUTHENTICATE_BROKER
from barnabas.broker.security.sasl import SaslFailure
from barnabas.runtime.backoff import Backoff
from barnabas.runtime.repeated_warnings import one_line
from barnabas.wire.errors import ErrorCode
from barnabas.wire.headers import RequestHeader, encode_request_header
from barnabas.wire.messages.sasl_authenticate import (
    SASL_AUTHENTICATE_REQUEST,
    SASL_AUTHENTICATE_RESPONSE,
    SaslAuthenticateRequest,
)
from barnabas.wire.primitives import DecodeError
from barnabas.wire.registry import request_type

if TYPE_CHECKING:
    import ssl

    from barnabas.broker.cluster.inter_broker_authentication import Handshake, InterBrokerAuthentication
    from barnabas.broker.security.sasl_client import NewSaslClient
    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.runtime.interface import Connecting, Runtime, Timer
    from barnabas.wire.message_type import MessageType

log = logging.getLogger("barnabas.replication")

SMALL_ANSWER_BYTES: Final = 1024 * 1024  # more than any answer without records should have
FIRST_BACKOFF_S: Final = 0.02
BACKOFF_MAX_S: Final = 1.0
_pack_size = struct.Struct(">i").pack

Answered: TypeAlias = Callable[[Any, ErrorCode], object]  # a response and NONE, or None and an error
ClientTls: TypeAlias = "Callable[[], ssl.SSLContext | None]"
# `ask(node_id, api_key, version, request, answered)`: a request to a broker, this one or another; `answered` is called once,
# perhaps before that returns.
AskBroker: TypeAlias = Callable[[int, int, int, msgspec.Struct, Answered], object]


class InterBrokerClient:
    """The client of one broker. `open` connects, and again whenever the connection ends, until `close`.

    `connected()` is called when a connection can be used; `lost(error)` when it has ended: its requests get no answer. All
    calls on the loop's thread.
    """

    def __init__(
        self,
        runtime: Runtime,
        client_id: str,
        endpoint: Callable[[], tuple[str, int] | None],
        connected: Callable[[], object],
        lost: Callable[[str], object],
        *,
        authentication: InterBrokerAuthentication | None,
        broker_id: int,
        timeout_s: float = 30.0,
        tls: ClientTls | None = None,
    ) -> None:
        """`endpoint()`: the present address of the broker, `broker_id`; None when it is not known. `tls()`: for a connection that is
        opened now."""
        self.client_id = client_id
        self._runtime = runtime
        self._endpoint = endpoint
        self._connected = connected
        self._lost = lost
        self._authentication = authentication
        self._broker_id = broker_id
        self._timeout_s = timeout_s
        self._tls = tls
        self._connecting: Connecting | None = None
        self._authenticating: InterBrokerConnection | None = None  # not used for anything else yet
        self._connection: InterBrokerConnection | None = None
        self._timer: Timer | None = None  # until the next attempt
        self._target: tuple[str, int] | None = None  # of the last attempt
        # failures: attempts that have failed, or led to a connection without an answer
        self._backoff = Backoff(runtime, FIRST_BACKOFF_S, BACKOFF_MAX_S)
        self._is_open = False
        self._correlation_id = 0
        self._heads: dict[tuple[int, int], tuple[bytes, bytes]] = {}

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    @property
    def waiting(self) -> int:
        """How many requests have no answer yet."""
        return len(self._connection.pending) if self._connection is not None else 0

    def open(self) -> None:
        """Connect, unless it is connected or connecting."""
        if not self._is_open:
            self._is_open = True
            self._attempt()

    def close(self) -> None:
        """End the connection: no more callbacks, and its requests get no answer."""
        self._is_open = False
        self._stop()

    def reconnect(self) -> None:
        """The broker's registration has changed: connect at once where a delay runs, and again where its address has changed."""
        is_elsewhere = self._endpoint() not in (None, self._target)
        if not self._is_open or (self._timer is None and not is_elsewhere):
            return
        was_connected = self.is_connected
        self._stop()
        self._backoff.reset()
        self._attempt()
        if was_connected:
            log.info("%s: the broker's address has changed", self.client_id)
            self._lost("the broker's address has changed")

    def _stop(self) -> None:
        """End whichever there is: the delay, the attempt or the connection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        for connection in (self._authenticating, self._connection):
            if connection is not None:
                connection.abandon()
        self._authenticating = self._connection = None

    def send(
        self,
        api_key: int,
        version: int,
        request: msgspec.Struct | bytes,
        done: Callable[[Any], object],
        *,
        answer_max_bytes: int = SMALL_ANSWER_BYTES,
        fast_path: RawAnswer | None = None,
        connection: InterBrokerConnection | None = None,
    ) -> None:
        """Send a request, or its body; `done(response)` when its answer has arrived, never when the connection ends before. Only
        while it is connected. `fast_path(frame, start)` is called first, and returns whether it has taken the answer.
        `connection`: one that is not authenticated yet."""
        connection = connection or self._connection
        assert connection is not None, "not connected"
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        head = self._heads.get((api_key, version))
        if head is None:
            header = encode_request_header(RequestHeader(api_key, version, 0, self.client_id))
            head = self._heads[api_key, version] = header[:4], header[8:]
        parts: list[Any] = [b"", head[0], _pack_size(correlation_id), head[1]]
        if isinstance(request, bytes):
            parts.append(request)
        else:
            message_type: MessageType[Any] = request_type(api_key)
            message_type.writers[version](request, parts.append)
        parts[0] = _pack_size(sum(map(len, parts)))
        deadline = self._runtime.monotonic() + self._timeout_s
        connection.send(
            b"".join(parts),
            PendingRequest(correlation_id, api_key, version, answer_max_bytes, deadline, done, fast_path),
        )

    # -- connecting

    def _attempt(self) -> None:
        self._timer = None
        found = self._target = self._endpoint()
        if found is None:
            self._retry_later("its address is not known")
            return

        def failed(error: OSError) -> None:
            self._connecting = None
            self._retry_later(str(error))

        def connection() -> InterBrokerConnection:
            return InterBrokerConnection(
                self.client_id,
                self._runtime,
                self._timeout_s,
                on_made=self._made,
                on_answer=self._answered,
                on_end=self._ended,
            )

        tls = None if self._tls is None else self._tls()
        self._connecting = self._runtime.connect(*found, connection, failed, tls=tls)

    def _retry_later(self, why: str, level: int = logging.INFO) -> None:
        if not self._is_open:
            return
        if not self._backoff.is_longest:
            why = one_line(why)  # it may quote the other side
            log.log(level, "%s: no connection: %s", self.client_id, why)
        self._timer = self._runtime.call_later(self._backoff.next_s(), self._attempt)

    def _made(self, connection: InterBrokerConnection) -> None:
        self._connecting = None
        if not self._is_open:
            connection.abandon()
            return
        if self._authentication is None:
            self._connection = connection
            self._connected()
        else:
            self._authenticating = connection
            if self._authentication.login is None:
                self._authenticate(connection, self._authentication)
            else:
                self._log_in(connection, self._authentication, self._authentication.login)

    def _log_in(
        self,
        connection: InterBrokerConnection,
        authentication: InterBrokerAuthentication,
        new_client: NewSaslClient,
    ) -> None:
        """SASL, as any client: the other broker serves nothing else before."""

        def received(frame: memoryview, start: int) -> bool:
            try:
                request = login.answered(frame, start)
            except SaslFailure as failure:
                refused(f"the login by SASL has failed: {failure.reason or ''}")
                return True
            if request is None:
                self._authenticate(connection, authentication)
            else:
                send(request)
            return True

        def refused(why: str, level: int = logging.WARNING) -> None:
            self._authenticating = None
            connection.abandon()
            self._retry_later(why, level)

        def send(request: LoginRequest) -> None:
            api_key, body = request
            self.send(api_key, VERSION, body, _ignore, fast_path=received, connection=connection)

        try:
            login = SaslLogin(new_client())
        except SaslFailure as failure:  # no token yet
            refused(f"the login by SASL can't begin: {failure.reason}", logging.INFO)
            return
        send(login.first())

    def _authenticate(
        self, connection: InterBrokerConnection, authentication: InterBrokerAuthentication
    ) -> None:
        hello = authentication.hello(self._broker_id)
        handshake: Handshake | None = None

        def received(frame: memoryview, start: int) -> bool:
            nonlocal handshake
            response, stop = SASL_AUTHENTICATE_RESPONSE.readers[0](frame, start, len(frame))
            if stop != len(frame):
                raise DecodeError(f"{len(frame) - stop} bytes behind an answer")
            token = bytes(response.auth_bytes)
            try:
                if response.error_code:
                    code = ErrorCode.of(response.error_code)
                    raise AuthenticationRefused(code, f"{code.name}: {response.error_message}")
                if handshake is None:
                    handshake = authentication.greeted(self._broker_id, hello, token)
                    send(handshake.prove())
                    return True
                handshake.verify(token)
            except AuthenticationRefused as refused:
                self._authenticating = None
                connection.abandon()
                self._retry_later(str(refused), level=logging.WARNING)
                return True
            self._authenticating = None
            self._connection = connection
            self._connected()
            return True

        def send(token: bytes) -> None:
            body = b"".join(SASL_AUTHENTICATE_REQUEST.encode(0, SaslAuthenticateRequest(token)))  # type: ignore[arg-type]  # all bytes
            self.send(
                AUTHENTICATE_BROKER,
                0,
                body,
                lambda _: None,
                answer_max_bytes=2048,
                fast_path=received,
                connection=connection,
            )

        send(hello)

    def _answered(self) -> None:
        self._backoff.reset()

    def _ended(self, connection: InterBrokerConnection, why: str, answered: bool) -> None:
        if self._authenticating is connection:
            self._authenticating = None
            self._retry_later(f"broker {self._broker_id} has not authenticated itself: {why}")
            return
        if self._connection is not connection:
            return
        self._connection = None
        log.info("%s: the connection has ended: %s", self.client_id, why)
        if answered:
            self._backoff.reset()
            self._timer = self._runtime.call_later(0, self._attempt)
        else:
            self._retry_later(why)
        self._lost(why)


def _ignore(_: object) -> None:
    """Of answers that are taken before they are decoded."""


def inter_broker_address(image: MetadataImage, node_id: int, listener: str) -> tuple[str, int] | None:
    """The address of a broker's inter-broker listener; None while the broker is not registered."""
    broker = image.brokers.get(node_id)
    if broker is None:
        return None
    return next(((each.host, each.port) for each in broker.endpoints if each.name == listener), None)
