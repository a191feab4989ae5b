"""The client's side of a login by SASL, as Kafka's clients do it: SaslHandshake, then SaslAuthenticate with the mechanism's tokens.
Without I/O: peer_client.py uses it on the inter-broker listener of another broker, link_sasl.py on controller listeners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from barnabas.broker.requests.registry import SASL_AUTHENTICATE, SASL_HANDSHAKE
from barnabas.broker.security.sasl import SaslFailure
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.sasl_authenticate import (
    SASL_AUTHENTICATE_REQUEST,
    SASL_AUTHENTICATE_RESPONSE,
    SaslAuthenticateRequest,
)
from barnabas.wire.messages.sasl_handshake import (
    SASL_HANDSHAKE_REQUEST,
    SASL_HANDSHAKE_RESPONSE,
    SaslHandshakeRequest,
)

if TYPE_CHECKING:
    from barnabas.broker.security.sasl_client import SaslClient

VERSION: Final = 1  # of both requests
_SENT_CHARACTERS_MAX: Final = 500  # of what the server says


class LoginRequest(NamedTuple):
    """One of the requests, in VERSION. Its body may have a password."""

    api_key: int
    body: bytes

    def __repr__(self) -> str:
        return f"LoginRequest({self.api_key})"


class SaslLogin:
    """One login. `lifetime_ms`: once it has succeeded, of the session; 0 where that has no end."""

    def __init__(self, client: SaslClient) -> None:
        self.lifetime_ms = 0
        self._client = client
        self._is_chosen = False

    def first(self) -> LoginRequest:
        return _request(SASL_HANDSHAKE, SASL_HANDSHAKE_REQUEST, SaslHandshakeRequest(self._client.mechanism))

    def answered(self, frame: memoryview | bytes, start: int) -> LoginRequest | None:
        """The next request, for the answer to the last; None: the login has succeeded. SaslFailure has the reason."""
        if not self._is_chosen:
            self._is_chosen = True
            return self._chosen(frame, start)
        response, _ = SASL_AUTHENTICATE_RESPONSE.readers[VERSION](frame, start, len(frame))
        if response.error_code:
            raise SaslFailure((response.error_message or "")[:_SENT_CHARACTERS_MAX])
        self.lifetime_ms = response.session_lifetime_ms
        token = self._client.evaluate(bytes(response.auth_bytes))
        return None if token is None else _authenticate(token)

    def _chosen(self, frame: memoryview | bytes, start: int) -> LoginRequest:
        response, _ = SASL_HANDSHAKE_RESPONSE.readers[VERSION](frame, start, len(frame))
        if response.error_code:
            mechanisms = ", ".join(response.mechanisms)[:200]
            error = ErrorCode.of(response.error_code).name
            raise SaslFailure(f"{error}: it has {mechanisms}, not {self._client.mechanism}")
        return _authenticate(self._client.first())


def _authenticate(token: bytes) -> LoginRequest:
    return _request(SASL_AUTHENTICATE, SASL_AUTHENTICATE_REQUEST, SaslAuthenticateRequest(token))


def _request(api_key: int, message_type: Any, request: Any) -> LoginRequest:
    return LoginRequest(api_key, b"".join(message_type.encode(VERSION, request)))
