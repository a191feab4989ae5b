"""Delegation tokens are found by their HMACs."""

from __future__ import annotations

import pytest

from barnabas.broker.security.delegation_tokens import DelegationTokens
from barnabas.controller.metadata.image import MetadataImage
from barnabas.controller.operations.delegation_tokens import TokenLifetimes
from barnabas.wire.messages.metadata_records import DelegationTokenRecord


def test_each_hmac_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that makes tokens and renews one in turn costs no more for the tokens that there are."""
    tokens, image = DelegationTokens("secret", TokenLifetimes(1, 1)), MetadataImage()
    hmacs = {f"t{number}": tokens.hmac(f"t{number}") for number in range(20)}
    computed: list[str] = []

    def hmac(token_id: str) -> bytes:
        computed.append(token_id)
        return hmacs[token_id]

    monkeypatch.setattr(tokens, "hmac", hmac)
    for token_id in hmacs:
        image.delegation_tokens[token_id] = DelegationTokenRecord(token_id=token_id)
        assert tokens.token_id(hmacs["t0"], image) == "t0"
        assert tokens.token_id(hmacs[token_id], image) == token_id
    assert computed == list(hmacs)
    for token_id in list(hmacs)[1:]:
        del image.delegation_tokens[token_id]
        assert tokens.token_id(hmacs[token_id], image) is None
    assert tokens.token_id(hmacs["t0"], image) == "t0"
    assert len(tokens._known) < len(hmacs), "those that are gone are forgotten"
