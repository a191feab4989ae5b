"""The HMACs of delegation tokens (KIP-48): what a client proves to know that authenticates with one.

An HMAC is derived from the token's id and delegation.token.secret.key, which all nodes have, and is never stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.controller.operations.delegation_tokens import TokenLifetimes


class DelegationTokens:
    """See the module. `secret`: delegation.token.secret.key."""

    def __init__(self, secret: str, lifetimes: TokenLifetimes) -> None:
        self.lifetimes = lifetimes
        self._secret = secret.encode()
        self._ids: dict[bytes, str] = {}  # token ids by HMAC; of some removed tokens too
        self._known: set[str] = set()  # the token ids in it

    def hmac(self, token_id: str) -> bytes:
        """64 bytes: HMAC-SHA-512 of the id."""
        import hmac  # late: a broker without tokens needs none of it

        return hmac.digest(self._secret, token_id.encode(), "sha512")

    def token_id(self, hmac: bytes, image: MetadataImage) -> str | None:
        """The token of the image with this HMAC; None when there is none."""
        tokens = image.delegation_tokens
        if len(self._known) > 2 * len(tokens):  # most have been removed
            self._known.clear()
            self._ids.clear()
        for token_id in tokens.keys() - self._known:  # the new ones: each is computed once
            self._known.add(token_id)
            self._ids[self.hmac(token_id)] = token_id
        found = self._ids.get(hmac)
        return found if found in tokens else None
