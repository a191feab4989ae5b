"""SASL OAUTHBEARER (RFC 7628): the client presents a token, which names it and ends.

    client   n,,^Aauth=Bearer <token>^A^A
    server   nothing; or the error as JSON, which the client answers with ^A before the exchange fails

Who may present which token is decided by a verifier (json_web_tokens.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final, NamedTuple

from barnabas.broker.security.caller import USER, Principal
from barnabas.broker.security.sasl import SASL_NAME, Identity, SaslFailure, sasl_name

_PAIRS_MAX: Final = 100  # of a message: each costs a microsecond before the client is authenticated
_FIRST: Final = re.compile(
    rb"n,(?:a=(?P<authorization_id>%b))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01){0,%d})\x01"
    % (SASL_NAME, _PAIRS_MAX)
)
_AUTH: Final = re.compile(rb"(?P<scheme>\w+) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)")
_ACKNOWLEDGEMENT: Final = b"\x01"


class TokenClaims(NamedTuple):
    """What a valid token says."""

    name: str
    expires_at_ms: int


class TokenRefused(Exception):
    """The token is not valid. `reason` is for the log. `scope`: the one that the token lacks."""

    def __init__(self, reason: str, scope: str | None = None) -> None:
        super().__init__(reason)
        self.scope = scope


Verify = Callable[[str], TokenClaims]  # TokenRefused


class OAuthBearerServer:
    """The server's side of one authentication."""

    def __init__(self, verify: Verify) -> None:
        self.identity: Identity | None = None
        self._verify = verify
        self._error: str | None = None  # sent; the client acknowledges it
        self._reason = ""  # for the log

    def evaluate(self, token: bytes) -> bytes:
        if self._error is not None:
            if token == _ACKNOWLEDGEMENT:
                raise SaslFailure(self._error, self._reason)
            raise SaslFailure
        found = _FIRST.fullmatch(token)
        if found is None:
            raise SaslFailure
        try:
            claims = self._verify(_bearer_token(found["pairs"]))
        except TokenRefused as refused:
            self._error, self._reason = _error_json(refused), f"the token is refused: {refused}"
            return self._error.encode()
        authorization_id = sasl_name(found["authorization_id"] or b"")
        if authorization_id not in ("", claims.name):
            raise SaslFailure(
                f"Authentication failed: Client requested an authorization id ({authorization_id}) that is different from "
                f"the token's principal name ({claims.name})"
            )
        self.identity = Identity(Principal(USER, claims.name), claims.expires_at_ms)
        return b""


def _bearer_token(pairs: bytes) -> str:
    """SaslFailure unless there is one."""
    values = dict(pair.split(b"=", 1) for pair in pairs.split(b"\x01") if pair)
    found = _AUTH.fullmatch(values.get(b"auth", b""))
    if found is None or found["scheme"].lower() != b"bearer":
        raise SaslFailure
    return found["token"].decode("ascii")


def _error_json(refused: TokenRefused) -> str:
    if refused.scope is None:
        return '{"status":"invalid_token"}'
    return f'{{"status":"insufficient_scope", "scope":{json.dumps(refused.scope)}}}'
