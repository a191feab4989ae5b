"""SASL PLAIN against its rules; the texts are Kafka's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.security.caller import Principal
from barnabas.broker.security.plain import PlainServer, PlainUsers
from barnabas.broker.security.sasl import Identity, SaslFailure

USERS = PlainUsers(
    {"username": "x", "password": "y", "user_alice": "secret", "user_b\xf6b": "p\xe4ss", "user_": "z"}
)
ALICE = Identity(Principal("User", "alice"))


def evaluate(token: bytes) -> Identity | None:
    server = PlainServer(USERS)
    assert server.evaluate(token) == b""
    return server.identity


@pytest.mark.parametrize("authorization_id", ["", "alice"])
def test_a_user_with_its_password(authorization_id: str) -> None:
    assert evaluate(f"{authorization_id}\0alice\0secret".encode()) == ALICE
    assert evaluate("\0b\xf6b\0p\xe4ss".encode()) == Identity(Principal("User", "b\xf6b"))


@given(st.lists(st.sampled_from([b"", b"alice", b"secret", b"x", b"\xff"]), min_size=1, max_size=6))
def test_no_other_token_is_accepted(parts: list[bytes]) -> None:
    if parts in ([b"", b"alice", b"secret"], [b"alice", b"alice", b"secret"]):
        assert evaluate(b"\0".join(parts)) == ALICE
        return
    expected = (
        "Invalid SASL/PLAIN response: expected 3 tokens, got "
        if len(parts) != 3
        else "Authentication failed: "
    )
    with pytest.raises(SaslFailure, match=f"^{expected}"):
        evaluate(b"\0".join(parts))


def test_passwords_are_not_shown() -> None:
    assert "secret" not in repr(USERS)
