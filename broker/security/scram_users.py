"""Whom SCRAM authenticates: the users in the metadata, and the owners of delegation tokens (KIP-48)."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Final

from barnabas.broker.security.caller import USER, Principal, parse_principal
from barnabas.broker.security.sasl import Identity
from barnabas.broker.security.scram import Credential
from barnabas.controller.operations.scram import ITERATIONS_MIN, credential_record, salted_password

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.broker.security.delegation_tokens import DelegationTokens
    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.wire.messages.metadata_records import UserScramCredentialRecord

_SALT_BYTES: Final = 16


class ScramUsers:
    """Of one mechanism."""

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
        """Of an expired token too, as in Kafka: its session is over at once."""
        tokens, known = self._tokens(), self._image().delegation_tokens
        token = known.get(token_id)
        if tokens is None or token is None:
            return None
        record = self._token_keys.get(token_id)
        if record is None:
            if len(self._token_keys) > len(known):
                self._token_keys.clear()  # most of their tokens are gone
            record = self._token_keys[token_id] = self._derive(token_id, tokens.hmac(token_id))
        owner = parse_principal(token.owner) or Principal(USER, token.owner)
        return _credential(record, Identity(owner, token.expiration_timestamp, is_token=True))

    def _derive(self, token_id: str, hmac: bytes) -> UserScramCredentialRecord:
        """2 to 4 ms of computing, once for a token: the password is long and random, but the number of iterations is part of the
        exchange and has a minimum."""
        salt = self._random_bytes(_SALT_BYTES)
        salted = salted_password(b64encode(hmac), self._mechanism, salt, ITERATIONS_MIN)
        return credential_record(token_id, self._mechanism, salt, salted, ITERATIONS_MIN)


def _credential(record: UserScramCredentialRecord, identity: Identity) -> Credential:
    return Credential(record.salt, record.stored_key, record.server_key, record.iterations, identity)
