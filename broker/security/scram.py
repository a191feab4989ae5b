"""SASL SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): the client proves that it knows a password, without sending it.

    client-first   n,,n=user,r=<nonce of the client>
    server-first   r=<both nonces>,s=<salt>,i=<iterations>
    client-final   c=biws,r=<both nonces>,p=<proof>
    server-final   v=<the server's proof>

Credentials are those of the metadata. An unknown user gets a salt and 4096 iterations, and fails at its proof, so that users
with as many can't be found out at one node.
With the extension `tokenauth=true` the user is the id of a delegation token, and the password its HMAC (KIP-48).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

import msgspec

from barnabas.broker.security.caller import USER, Principal, parse_principal
from barnabas.broker.security.sasl import SASL_NAME, Identity, SaslFailure, ThreadNeeded, sasl_name
from barnabas.controller.operations.scram import (
    HASHES,
    ITERATIONS_MIN,
    credential_record,
    salt_of,
    salted_password,
)

if TYPE_CHECKING:
    from barnabas.broker.security.delegation_tokens import DelegationTokens
    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.wire.messages.metadata_records import UserScramCredentialRecord

_NONCE_BYTES: Final = 18
_SALT_BYTES: Final = 16
_EXTENSIONS_MAX: Final = 100  # of a message: each costs a microsecond before the client is authenticated
_PRINTABLE: Final = rb"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS: Final = rb"(?:,[A-Za-z]+=[^,\x00]+){0,%d}" % _EXTENSIONS_MAX
_BASE64: Final = rb"[a-zA-Z0-9/+]+={0,2}"
_CLIENT_FIRST: Final = re.compile(
    rb"(?P<header>n,(?:a=(?P<authorization_id>%b))?,)(?:m=[^,\x00]+,)?"
    rb"(?P<bare>n=(?P<user>%b),r=(?P<nonce>%b)(?P<extensions>%b))"
    % (SASL_NAME, SASL_NAME, _PRINTABLE, _EXTENSIONS),
    re.DOTALL,
)
_CLIENT_FINAL: Final = re.compile(
    rb"(?P<without_proof>c=(?P<binding>%b),r=(?P<nonce>%b)%b),p=(?P<proof>%b)"
    % (_BASE64, _PRINTABLE, _EXTENSIONS, _BASE64),
    re.DOTALL,
)
_TOKEN_EXTENSION: Final = b"tokenauth=true"


class Credential(msgspec.Struct, frozen=True):
    """What proves that a client knows a password, and whom it then is. Its keys are not shown."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int
    identity: Identity

    def __repr__(self) -> str:
        return f"Credential({self.identity})"


class ScramCredentials:
    """What one mechanism of a node authenticates by."""

    def __init__(
        self,
        mechanism: int,
        random_bytes: Callable[[int], bytes],
        of_user: Callable[[str], Credential | None],
        of_token: Callable[[str], Credential | None],
    ) -> None:
        """`of_user(name)`, `of_token(id)`: None where there is none. `mechanism`: of HASHES."""
        self.digest = HASHES[mechanism]
        self.random_bytes = random_bytes
        self.of_user = of_user
        self.of_token = of_token
        self._fake_salt_key = random_bytes(32)

    def fake(self, user: str) -> Credential:
        """Always the same salt for a name, and keys that no password has."""
        salt = salt_of(hmac.digest(self._fake_salt_key, user.encode(), self.digest))
        size = hashlib.new(self.digest).digest_size
        return Credential(salt, bytes(size), bytes(size), ITERATIONS_MIN, Identity(Principal(USER, "")))


class ScramServer:
    """The server's side of one authentication."""

    def __init__(self, credentials: ScramCredentials) -> None:
        self.identity: Identity | None = None
        self._credentials = credentials
        self._credential: Credential | None = None  # from the first message on
        self._is_fake = False
        self._header = b""
        self._bare = b""
        self._server_first = b""
        self._nonce = b""

    def evaluate(self, token: bytes) -> bytes:
        if self._credential is None:
            return self._first(token)
        credential, self._credential = self._credential, None
        return self._final(token, credential)

    def _first(self, token: bytes) -> bytes:
        found = _CLIENT_FIRST.fullmatch(token)
        if found is None or self._nonce:
            raise SaslFailure
        name = sasl_name(found["user"])
        authorization_id = sasl_name(found["authorization_id"] or b"")
        credentials = self._credentials
        is_token = _TOKEN_EXTENSION in found["extensions"].split(b",")
        credential = credentials.of_token(name) if is_token else credentials.of_user(name)
        if authorization_id not in ("", name):
            raise SaslFailure(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self._is_fake = credential is None or credential.iterations < ITERATIONS_MIN
        if credential is None or self._is_fake:
            credential = credentials.fake(name)
        self._credential = credential
        self._header, self._bare = found["header"], found["bare"]
        self._nonce = found["nonce"] + b64encode(credentials.random_bytes(_NONCE_BYTES))
        self._server_first = b"r=%b,s=%b,i=%d" % (
            self._nonce,
            b64encode(credential.salt),
            credential.iterations,
        )
        return self._server_first

    def _final(self, token: bytes, credential: Credential) -> bytes:
        found = _CLIENT_FINAL.fullmatch(token)
        # Some clients bind an empty header always.
        if (
            found is None
            or found["nonce"] != self._nonce
            or found["binding"] not in (b"biws", b64encode(self._header))
        ):
            raise SaslFailure
        digest = self._credentials.digest
        message = b",".join((self._bare, self._server_first, found["without_proof"]))
        signature = hmac.digest(credential.stored_key, message, digest)
        try:
            proof = b64decode(found["proof"], validate=True)
        except ValueError:
            raise SaslFailure from None
        if len(proof) != len(signature):
            raise SaslFailure
        client_key = bytes(left ^ right for left, right in zip(proof, signature, strict=True))
        is_equal = hmac.compare_digest(hashlib.new(digest, client_key).digest(), credential.stored_key)
        if not is_equal or self._is_fake:
            raise SaslFailure
        self.identity = credential.identity
        return b"v=" + b64encode(hmac.digest(credential.server_key, message, digest))


class ScramUsers:
    """Whom one mechanism authenticates: the users in the metadata, and the owners of delegation tokens."""

    def __init__(
        self,
        mechanism: int,
        image: Callable[[], MetadataImage],
        tokens: Callable[[], DelegationTokens | None],
        random_bytes: Callable[[int], bytes],
    ) -> None:
        """`mechanism`: its number. `tokens()`: None where delegation.token.secret.key is not set."""
        self._mechanism = mechanism
        self._image = image
        self._tokens = tokens
        self._random_bytes = random_bytes
        self._token_keys: dict[str, UserScramCredentialRecord] = {}  # of tokens that were used, by token id

    def of_user(self, name: str) -> Credential | None:
        record = self._image().scram_credentials.get((name, self._mechanism))
        return None if record is None else _credential(record, Identity(Principal(USER, name)))

    def of_token(self, token_id: str) -> Credential | None:
        """Of an expired token too, as in Kafka: its session is over at once. ThreadNeeded for the first use of a token: Kafka's
        brokers derive the keys of all tokens as they learn of them, used or not."""
        tokens, known = self._tokens(), self._image().delegation_tokens
        token = known.get(token_id)
        if tokens is None or token is None:
            return None
        record = self._token_keys.get(token_id)
        if record is None:
            if len(self._token_keys) > len(known):
                self._token_keys.clear()  # most of their tokens are gone
            raise ThreadNeeded(partial(self._derive, token_id, tokens, self._random_bytes(_SALT_BYTES)))
        owner = parse_principal(token.owner) or Principal(USER, token.owner)
        return _credential(record, Identity(owner, token.expiration_timestamp, is_token=True))

    def _derive(self, token_id: str, tokens: DelegationTokens, salt: bytes) -> None:
        """In a thread: 2 to 4 ms of computing, once for a token. The password is long and random, but the number of iterations is
        part of the exchange and has a minimum."""
        if token_id not in self._token_keys:
            password = b64encode(tokens.hmac(token_id))
            salted = salted_password(password, self._mechanism, salt, ITERATIONS_MIN)
            record = credential_record(token_id, self._mechanism, salt, salted, ITERATIONS_MIN)
            self._token_keys.setdefault(token_id, record)


class OwnUser:
    """The user that this node logs in to controllers as. While no controller is active the users of the metadata are not known,
    and to know them, controllers have to log in to each other: this one they know by their own JAAS entries."""

    def __init__(
        self, mechanism: int, name: str, password: str, random_bytes: Callable[[int], bytes]
    ) -> None:
        self.name = name
        self._mechanism = mechanism
        self._password = password
        self._random_bytes = random_bytes

    def __repr__(self) -> str:
        return f"OwnUser({self.name})"

    @cached_property
    def credential(self) -> Credential:
        """Costs as much as a delegation token's."""
        salt = self._random_bytes(_SALT_BYTES)
        salted = salted_password(self._password.encode(), self._mechanism, salt, ITERATIONS_MIN)
        record = credential_record(self.name, self._mechanism, salt, salted, ITERATIONS_MIN)
        return _credential(record, Identity(Principal(USER, self.name)))


def _credential(record: UserScramCredentialRecord, identity: Identity) -> Credential:
    return Credential(record.salt, record.stored_key, record.server_key, record.iterations, identity)
