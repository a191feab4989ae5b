"""The client's side of SASL, with which a broker logs in to the inter-broker listener of another one."""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from barnabas.broker.security.sasl import SaslFailure
from barnabas.controller.operations.scram import HASHES, ITERATIONS_MAX, ITERATIONS_MIN, salted_password

_NONCE_BYTES: Final = 18
_SERVER_FIRST: Final = re.compile(
    rb"r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+),s=(?P<salt>[a-zA-Z0-9/+]+={0,2}),i=(?P<iterations>\d{1,9})"
)


class SaslClient(Protocol):
    """The client's side of one authentication."""

    mechanism: str

    def first(self) -> bytes:
        """The first token."""
        ...

    def evaluate(self, token: bytes) -> bytes | None:
        """The answer to the server's next token; None at the end of the exchange. SaslFailure: the server has not proven itself."""
        ...


NewSaslClient: TypeAlias = Callable[[], SaslClient]


class PlainClient:
    """PLAIN (RFC 4616)."""

    mechanism = "PLAIN"

    def __init__(self, user: str, password: str) -> None:
        self._token = b"\0".join((b"", user.encode(), password.encode()))

    def first(self) -> bytes:
        return self._token

    def evaluate(self, _token: bytes) -> bytes | None:
        return None


class OAuthBearerClient:
    """OAUTHBEARER (RFC 7628). A refusal that the server explains is acknowledged, and then the exchange fails."""

    mechanism = "OAUTHBEARER"

    def __init__(self, token: str) -> None:
        self._token = token
        self._is_refused = False

    def first(self) -> bytes:
        return b"n,,\x01auth=Bearer %b\x01\x01" % self._token.encode()

    def evaluate(self, token: bytes) -> bytes | None:
        if self._is_refused:
            raise SaslFailure("the server refuses the token, and does not end the exchange")
        self._is_refused = bool(token)
        return b"\x01" if token else None


class ScramLogin:
    """A user and its password, for any number of authentications by one mechanism."""

    def __init__(
        self, mechanism: str, number: int, user: str, password: str, random_bytes: Callable[[int], bytes]
    ) -> None:
        self.mechanism = mechanism
        self.digest = HASHES[number]
        self.user = user.replace("=", "=3D").replace(",", "=2C").encode()
        self.random_bytes = random_bytes
        self._number = number
        self._password = password.encode()
        self._salted: tuple[bytes, int, bytes] | None = None  # the last: salt, iterations, salted password

    def client(self) -> ScramClient:
        return ScramClient(self)

    def salted_password(self, salt: bytes, iterations: int) -> bytes:
        """Computed once for a salt, as it takes milliseconds. All brokers have the same salts for a user."""
        if self._salted is None or self._salted[:2] != (salt, iterations):
            salted = salted_password(self._password, self._number, salt, iterations)
            self._salted = salt, iterations, salted
        return self._salted[2]


class ScramClient:
    """SCRAM (RFC 5802). It checks that the server knows the credential as well."""

    def __init__(self, login: ScramLogin) -> None:
        self.mechanism = login.mechanism
        self._login = login
        self._nonce = b64encode(login.random_bytes(_NONCE_BYTES))
        self._bare = b"n=%b,r=%b" % (login.user, self._nonce)
        self._server_final: bytes | None = None  # as it must be

    def first(self) -> bytes:
        return b"n,," + self._bare

    def evaluate(self, token: bytes) -> bytes | None:
        if self._server_final is None:
            return self._final(token)
        if not hmac.compare_digest(token, self._server_final):
            raise SaslFailure("the server's proof does not fit")
        return None

    def _final(self, server_first: bytes) -> bytes:
        found = _SERVER_FIRST.fullmatch(server_first)
        if found is None or not found["nonce"].startswith(self._nonce) or found["nonce"] == self._nonce:
            raise SaslFailure("the server's first message is not that of SCRAM")
        iterations, digest = int(found["iterations"]), self._login.digest
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise SaslFailure(f"the server asks for {iterations} iterations")
        try:
            salt = b64decode(found["salt"])
        except ValueError:
            raise SaslFailure("the server's salt is not base64") from None
        salted = self._login.salted_password(salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", digest)
        without_proof = b"c=biws,r=" + found["nonce"]
        message = b",".join((self._bare, server_first, without_proof))
        signature = hmac.digest(hashlib.new(digest, client_key).digest(), message, digest)
        server_key = hmac.digest(salted, b"Server Key", digest)
        self._server_final = b"v=" + b64encode(hmac.digest(server_key, message, digest))
        proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
        return without_proof + b",p=" + b64encode(proof)
