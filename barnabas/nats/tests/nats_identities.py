"""Keys, JWTs and credentials files as nsc would make them, for tests; signed with the nkeys package."""

from __future__ import annotations

import base64
import json
import os
import time
from typing import Any

import nkeys


def seed(prefix: int) -> bytes:
    """A fresh seed of a kind of key."""
    made: bytes = nkeys.encode_seed(os.urandom(32), prefix)
    return bytes(made)


def user_seed() -> bytes:
    return seed(nkeys.PREFIX_BYTE_USER)


def public(of_seed: bytes) -> str:
    key: bytes = nkeys.from_seed(bytearray(of_seed)).public_key
    return bytes(key).decode()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def jwt(issuer: bytes, subject: str, name: str, claims: dict[str, Any], expires: int = 0) -> str:
    """Signed by the issuer's seed."""
    body: dict[str, Any] = {
        "jti": name,
        "iat": int(time.time()),
        "iss": public(issuer),
        "name": name,
        "sub": subject,
        "nats": {"version": 2, **claims},
    }
    if expires:
        body["exp"] = expires
    signed = ".".join(
        _text(json.dumps(part).encode()) for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, body)
    )
    signature = nkeys.from_seed(bytearray(issuer)).sign(signed.encode())
    return f"{signed}.{_text(signature)}"


class Operator:
    """An operator with one account, and credentials for its users."""

    def __init__(self) -> None:
        operator = seed(nkeys.PREFIX_BYTE_OPERATOR)
        self._account = seed(nkeys.PREFIX_BYTE_ACCOUNT)
        limits = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
        account_jwt = jwt(
            operator,
            public(self._account),
            "account",
            {"type": "account", "limits": {**limits, "wildcards": True}},
        )
        operator_jwt = jwt(operator, public(operator), "operator", {"type": "operator"})
        self.server_config = (
            f"operator: {operator_jwt}\nresolver: MEMORY\n"
            f"resolver_preload: {{ {public(self._account)}: {account_jwt} }}\n"
        )

    def credentials(self, *, expires_in_s: int = 0, user: bytes = b"") -> str:
        """A file of a new user."""
        user = user or user_seed()
        claims = {"type": "user", "subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {}}
        expires = int(time.time()) + expires_in_s if expires_in_s else 0
        token = jwt(self._account, public(user), "user", claims, expires)
        return (
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            "************************* IMPORTANT *************************\n"
            "NKEY Seed printed below can be used to sign and prove identity.\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.decode()}\n------END USER NKEY SEED------\n"
        )
