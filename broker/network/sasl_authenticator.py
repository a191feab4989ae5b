"""Authenticates the client of a connection by SASL: Kafka's SaslServerAuthenticator, without I/O.

It serves a connection's requests in place of the dispatcher until the client is authenticated:

    first request      ApiVersions, answered once, or a handshake
    handshake          SaslHandshake chooses the mechanism
    authenticate       SaslAuthenticate with the mechanism's tokens, after a handshake of version 1
    raw tokens         the tokens alone, each behind its size, after a handshake of version 0
    authenticated      the dispatcher serves; a handshake begins a re-authentication (KIP-368)

Each state is a method that serves the next frame. Anything that a state does not expect ends the connection. A failure is
answered after connection.failed.authentication.delay.ms, and then the connection ends.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import msgspec

from barnabas.broker.requests.context import Outcome
from barnabas.broker.requests.registry import SASL_AUTHENTICATE, SASL_HANDSHAKE
from barnabas.broker.security.caller import Caller
from barnabas.broker.security.sasl import (
    Identity,
    Mechanism,
    SaslFailure,
    SaslListener,
    SaslServer,
    ThreadNeeded,
)
from barnabas.wire.errors import ErrorCode
from barnabas.wire.headers import (
    API_VERSIONS,
    RequestHeader,
    decode_request_header,
    encode_response_header,
)
from barnabas.wire.messages.sasl_authenticate import SASL_AUTHENTICATE_REQUEST, SaslAuthenticateResponse
from barnabas.wire.messages.sasl_handshake import SASL_HANDSHAKE_REQUEST, SaslHandshakeResponse
from barnabas.wire.primitives import DecodeError
from barnabas.wire.registry import API_NAMES, response_type

if TYPE_CHECKING:
    from barnabas.broker.network.authentication_counts import AuthenticationCounts
    from barnabas.broker.network.connection import NewAuthenticator
    from barnabas.broker.network.session import RequestServer
    from barnabas.broker.requests.context import RequestContext, Requester
    from barnabas.broker.requests.dispatch import Answer
    from barnabas.runtime.interface import Runtime

REAUTHENTICATION_INTERVAL_S: Final = 1.0  # between the beginnings of two of them
_pack_size = struct.Struct(">i").pack
_error_of_api_versions = struct.Struct(">8xh").unpack_from  # behind the size and the correlation id
_NOT_KAFKA: Final = (
    "Invalid request, potential reasons: kafka client configured with the wrong security protocol, it does not support "
    "KIP-43 or it is not a kafka client."
)
_State: TypeAlias = Callable[[memoryview, int, int], "Answer | Outcome"]


class SaslConnection(Protocol):
    """A connection whose client is authenticated."""

    caller: Caller

    @property
    def listener(self) -> str: ...

    @property
    def client_host(self) -> str: ...

    def serve_by(self, server: RequestServer, frame_max_bytes: int) -> None: ...

    @property
    def authentications(self) -> AuthenticationCounts: ...

    @property
    def closed(self) -> bool: ...

    def close(self, reason: str = "") -> None: ...

    def answer_client(self, answer: Answer) -> None: ...

    def refuse_client(self, answer: Answer | None, reason: str, delay_s: float) -> Outcome: ...


class SaslHost(Protocol):
    """What connections share."""

    @property
    def runtime(self) -> Runtime: ...

    @property
    def dispatcher(self) -> RequestServer: ...

    @property
    def request_max_bytes(self) -> int: ...


def authenticator(listener: SaslListener) -> NewAuthenticator:
    """Makes the authenticators of a listener's connections."""
    return lambda shared, connection: (
        SaslAuthenticator(listener, shared, connection, partial(shared.dispatcher.dispatch, connection)),
        listener.receive_max_bytes,
    )


class SaslAuthenticator:
    """Of one connection; see the module."""

    __slots__ = (
        "_began_reauthentication_at", "_caller", "_connection", "_expires_at", "_listener", "_mechanism", "_serve_others",
        "_server", "_shared", "_state",
    )  # fmt: skip

    def __init__(
        self, listener: SaslListener, shared: SaslHost, connection: SaslConnection, serve_others: _State
    ) -> None:
        """`serve_others`: the dispatcher, with the connection."""
        self._listener = listener
        self._serve_others = serve_others
        self._shared = shared
        self._connection = connection
        self._state: _State = self._first_request
        self._server: SaslServer | None = None  # of the exchange that goes on
        self._mechanism = ""
        self._caller: Caller | None = None  # once authenticated
        self._expires_at: float | None = None  # on the monotonic clock: the end of the session
        self._began_reauthentication_at: float | None = None

    # -- in place of the dispatcher

    def dispatch(self, _connection: Requester, buffer: memoryview, start: int, end: int) -> Answer | Outcome:
        return self._serve(buffer, start, end)

    def _serve(self, buffer: memoryview, start: int, end: int) -> Answer | Outcome:
        try:
            return self._state(buffer, start, end)
        except ThreadNeeded as needed:
            frame = memoryview(bytes(buffer[start:end]))
            self._shared.runtime.run_in_thread(needed.work, lambda _, error: self._again(frame, error))
            return Outcome.PENDING

    def serve(self, frame: memoryview) -> Answer | Outcome:
        """The answer to a request of a connection that serves nothing but the login."""
        return self._serve(frame, 0, len(frame))

    @property
    def is_authenticated(self) -> bool:
        """Whether no exchange goes on, and one has succeeded."""
        return self._caller is not None and self._server is None

    def session_left_s(self) -> float | None:
        """Until the session ends; None: it has no end."""
        return None if self._expires_at is None else self._expires_at - self._shared.runtime.monotonic()

    def encode(self, context: RequestContext[Any], response: msgspec.Struct) -> Answer:
        return self._shared.dispatcher.encode(context, response)

    def _again(self, frame: memoryview, error: BaseException | None) -> None:
        """Serve a frame again, for which a thread had work to do."""
        connection = self._connection
        if connection.closed:
            return
        if error is not None:
            connection.close(f"an authentication has failed: {error}")
            return
        answer = self._serve(frame, 0, len(frame))
        if not isinstance(answer, Outcome):  # else it is refused, after a delay
            connection.answer_client(answer)

    # -- states

    def _first_request(self, buffer: memoryview, start: int, end: int) -> Answer | Outcome:
        if _api_key(buffer, start, end) != API_VERSIONS:
            return self._handshake(buffer, start, end)
        answer = self._serve_others(buffer, start, end)
        # A large one is answered later: there is no second in any case.
        if not isinstance(answer, bytes) or _error_of_api_versions(answer)[0] == ErrorCode.NONE:
            self._state = self._handshake
        return answer

    def _handshake(self, buffer: memoryview, start: int, end: int) -> Answer | Outcome:
        if _api_key(buffer, start, end) != SASL_HANDSHAKE:
            return self._refuse(None, _NOT_KAFKA, delay_s=0)
        header, position = decode_request_header(buffer, start, end)
        _check_version(header, SASL_HANDSHAKE_REQUEST.max_version)
        request, _ = SASL_HANDSHAKE_REQUEST.readers[header.api_version](buffer, position, end)
        response = SaslHandshakeResponse(mechanisms=list(self._listener.mechanisms))
        mechanism = self._listener.mechanisms.get(request.mechanism)
        if mechanism is None:
            response.error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            return self._refuse(
                _frame(header, response), f"Unsupported SASL mechanism {request.mechanism[:100]}"
            )
        if self._caller is not None and request.mechanism != self._mechanism:
            self._server = _OtherMechanism(request.mechanism, self._mechanism)
        else:
            self._mechanism = request.mechanism
            self._server = mechanism.new_server()
        self._state = self._authenticate if header.api_version else self._raw_token
        return _frame(header, response)

    def _authenticate(self, buffer: memoryview, start: int, end: int) -> Answer | Outcome:
        header, position = decode_request_header(buffer, start, end)
        if header.api_key != SASL_AUTHENTICATE:
            return self._refuse_api(header, buffer, position, end)
        _check_version(header, SASL_AUTHENTICATE_REQUEST.max_version)
        request, _ = SASL_AUTHENTICATE_REQUEST.readers[header.api_version](buffer, position, end)
        try:
            token, lifetime_ms = self._evaluate(request.auth_bytes, may_reauthenticate=header.api_version > 0)
        except SaslFailure as failure:
            text = failure.text or self._generic_text()
            response = SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=text
            )
            return self._refuse(_frame(header, response), failure.reason or text)
        return _frame(
            header,
            SaslAuthenticateResponse(error_message=None, auth_bytes=token, session_lifetime_ms=lifetime_ms),
        )

    def _raw_token(self, buffer: memoryview, start: int, end: int) -> Answer | Outcome:
        try:
            token, _ = self._evaluate(bytes(buffer[start:end]), may_reauthenticate=False)
        except SaslFailure as failure:
            return self._refuse(None, failure.reason or self._generic_text())
        return _pack_size(len(token)) + token

    def _authenticated(self, buffer: memoryview, start: int, end: int) -> Answer | Outcome:
        """A session with a lifetime."""
        assert self._expires_at is not None
        now = self._shared.runtime.monotonic()
        if _api_key(buffer, start, end) == SASL_HANDSHAKE and self._may_reauthenticate(now):
            self._began_reauthentication_at = now
            self._state = self._handshake
            self._connection.serve_by(self, self._listener.receive_max_bytes)
            return self._handshake(buffer, start, end)
        if now >= self._expires_at:  # also at once: an expired token is good for a session of no time
            self._connection.authentications.expired_connections_killed += 1
            return Outcome.CLOSE
        return self._serve_others(buffer, start, end)

    def _may_reauthenticate(self, now: float) -> bool:
        began_at = self._began_reauthentication_at
        return began_at is None or now - began_at >= REAUTHENTICATION_INTERVAL_S

    # -- transitions

    def _evaluate(self, token: bytes, *, may_reauthenticate: bool) -> tuple[bytes, int]:
        """The mechanism's answer, and the lifetime of the session in ms, 0 where it has none or does not begin yet. SaslFailure."""
        server = self._server
        assert server is not None
        answer = server.evaluate(token)
        if server.identity is None:
            return answer, 0
        return answer, self._complete(server.identity, may_reauthenticate)

    def _complete(self, identity: Identity, may_reauthenticate: bool) -> int:
        """Let the client's requests be served; the lifetime of the session in ms. SaslFailure."""
        connection, shared = self._connection, self._shared
        principal = identity.principal
        if self._caller is not None and principal != self._caller.principal:
            old = self._caller.principal
            raise SaslFailure(
                f"Cannot change principals during re-authentication from {old.type}.{old.name}: {principal.type}."
                f"{principal.name}"
            )
        connection.authentications.succeed(
            again=self._caller is not None, may_reauthenticate=may_reauthenticate
        )
        self._caller = connection.caller = Caller(
            principal, connection.listener, connection.client_host, is_token_authenticated=identity.is_token
        )
        self._server = None
        lifetime_ms = self._lifetime_ms(identity, self._listener.mechanisms[self._mechanism])
        if lifetime_ms is None:
            connection.serve_by(shared.dispatcher, shared.request_max_bytes)
            return 0
        self._expires_at = shared.runtime.monotonic() + lifetime_ms / 1000
        self._state = self._authenticated
        connection.serve_by(self, shared.request_max_bytes)
        return lifetime_ms

    def _lifetime_ms(self, identity: Identity, mechanism: Mechanism) -> int | None:
        """None: no end."""
        limits = [mechanism.max_reauth_ms] if mechanism.max_reauth_ms > 0 else []
        if identity.expires_at_ms is not None:
            limits.append(max(0, identity.expires_at_ms - self._shared.runtime.time_ms()))
        return min(limits, default=None)

    # -- failures

    def _generic_text(self) -> str:
        what = "authentication" if self._caller is None else "re-authentication"
        return f"Authentication failed during {what} due to invalid credentials with SASL mechanism {self._mechanism}"

    def _refuse(self, answer: Answer | None, reason: str, delay_s: float | None = None) -> Outcome:
        if delay_s is None:
            delay_s = self._listener.failure_delay_s
        self._connection.authentications.fail(again=self._caller is not None)
        return self._connection.refuse_client(answer, reason, delay_s)

    def _refuse_api(self, header: RequestHeader, buffer: memoryview, position: int, end: int) -> Outcome:
        """Refuse a request that comes instead of a SaslAuthenticate."""
        name = API_NAMES.get(header.api_key)
        if name is None:
            raise DecodeError(f"API key {header.api_key} is not served")
        if not response_type(header.api_key).supports(header.api_version):
            raise DecodeError(f"{name} version {header.api_version} is not served")
        from barnabas.broker.network.sasl_refusals import refusal, refusal_reason  # late: a client's bug

        response = refusal(header.api_key, header.api_version, buffer, position, end)
        return self._refuse(_frame(header, response), refusal_reason(header.api_key))


class _OtherMechanism:
    """Refuses a re-authentication by another mechanism than the authentication's, at its first token."""

    identity: Identity | None = None

    def __init__(self, mechanism: str, present: str) -> None:
        self._text = f"SASL mechanism '{mechanism}' requested by client is not supported for re-authentication of mechanism '{present}'"

    def evaluate(self, _token: bytes) -> bytes:
        raise SaslFailure(self._text)


def _api_key(buffer: memoryview, start: int, end: int) -> int:
    return buffer[start] << 8 | buffer[start + 1] if end - start >= 2 else -1


def _check_version(header: RequestHeader, max_version: int) -> None:
    if not 0 <= header.api_version <= max_version:
        raise DecodeError(f"{API_NAMES[header.api_key]} version {header.api_version} is not served")


def _frame(header: RequestHeader, response: Any) -> bytes:
    body = b"".join(response_type(header.api_key).encode(header.api_version, response))  # type: ignore[arg-type]  # all bytes
    head = encode_response_header(header.api_key, header.api_version, header.correlation_id)
    return _pack_size(len(head) + len(body)) + head + body
