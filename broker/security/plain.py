"""SASL PLAIN (RFC 4616): a user and a password, in one token. The users are the options user_NAME of the JAAS entry."""

from __future__ import annotations

from collections.abc import Mapping
from hmac import compare_digest
from typing import Final

from barnabas.broker.security.caller import USER, Principal
from barnabas.broker.security.sasl import Identity, SaslFailure

_USER: Final = "user_"
_TOKENS: Final = 3
_WRONG: Final = "Authentication failed: Invalid username or password"


class PlainUsers:
    """The users and their passwords, never shown."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """`options` of the JAAS entry."""
        self._passwords: dict[str, bytes] = {}
        self.replace(options)

    def replace(self, options: Mapping[str, str]) -> None:
        """Authenticate by these from now on; open sessions stay."""
        self._passwords = {
            name.removeprefix(_USER): password.encode(errors="surrogatepass")
            for name, password in options.items()
            if name.startswith(_USER)
        }

    def __repr__(self) -> str:
        return f"PlainUsers({len(self._passwords)} users)"

    def are(self, user: str, password: bytes) -> bool:
        """Whether the user has this password. Takes as long where there is no such user."""
        expected = self._passwords.get(user)
        is_equal = compare_digest(b"" if expected is None else expected, password)
        return is_equal and expected is not None


class PlainServer:
    """The server's side of one authentication."""

    def __init__(self, users: PlainUsers) -> None:
        self.identity: Identity | None = None
        self._users = users

    def evaluate(self, token: bytes) -> bytes:
        """The token is `authorization id NUL user NUL password`. SaslFailure, with Kafka's text."""
        parts = token.split(b"\0", _TOKENS)
        if len(parts) != _TOKENS:
            raise SaslFailure(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authorization_id, user = (part.decode(errors="replace") for part in parts[:2])
        if not user:
            raise SaslFailure("Authentication failed: username not specified")
        if not parts[2]:
            raise SaslFailure("Authentication failed: password not specified")
        if not self._users.are(user, parts[2]):
            raise SaslFailure(_WRONG)
        if authorization_id not in ("", user):
            raise SaslFailure(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.identity = Identity(Principal(USER, user))
        return b""
