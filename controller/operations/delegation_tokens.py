"""Delegation tokens (KIP-48): created, renewed, ended, and removed once they have expired.

A token is a DelegationTokenRecord; its HMAC, which is the password, is never stored (broker/security/delegation_tokens.py). Principals
are texts, such as `User:alice`. Times are in ms of the wall clock. Checks and their order are those of Kafka's
DelegationTokenControlManager.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from barnabas.controller.metadata.decision import ApiError, Decision
from barnabas.controller.metadata.image import MetadataImage
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.metadata_records import DelegationTokenRecord, RemoveDelegationTokenRecord

_REMOVED_MAX: Final = 10_000  # in one commit
_TIME_MAX: Final = 2**63 - 1


class TokenLifetimes(msgspec.Struct, frozen=True):
    """delegation.token.max.lifetime.ms and delegation.token.expiry.time.ms."""

    max_ms: int
    expiry_ms: int


def create_token(
    image: MetadataImage,
    token_id: str,
    owner: str,
    requester: str,
    renewers: Sequence[str],
    max_lifetime_ms: int,
    lifetimes: TokenLifetimes,
    now_ms: int,
) -> Decision[DelegationTokenRecord]:
    """Create a token; one that exists already under this id is what an earlier attempt of the same request has made.
    `max_lifetime_ms`: 0 or less for the longest allowed."""
    present = image.delegation_tokens.get(token_id)
    if present is not None:
        return Decision([], present)
    lifetime_ms = min(lifetimes.max_ms, max_lifetime_ms) if max_lifetime_ms > 0 else lifetimes.max_ms
    max_timestamp = _sum(now_ms, lifetime_ms)
    token = DelegationTokenRecord(
        owner=owner,
        requester=requester,
        renewers=list(renewers),
        issue_timestamp=now_ms,
        max_timestamp=max_timestamp,
        expiration_timestamp=min(max_timestamp, _sum(now_ms, lifetimes.expiry_ms)),
        token_id=token_id,
    )
    return Decision([token], token)


def renew_token(
    image: MetadataImage,
    token_id: str | None,
    caller: str,
    period_ms: int,
    lifetimes: TokenLifetimes,
    now_ms: int,
) -> Decision[int | ApiError]:
    """The new time of expiry. `token_id`: None where the HMAC is no token's. `period_ms`: 0 or less for the longest allowed."""
    token = image.delegation_tokens.get(token_id) if token_id is not None else None
    if token is None:
        return _refused(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    if has_expired(token, now_ms):
        return _refused(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    if not may_renew(token, caller):
        return _refused(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
    period_ms = min(lifetimes.expiry_ms, period_ms) if period_ms > 0 else lifetimes.expiry_ms
    return _expiring(token, min(token.max_timestamp, _sum(now_ms, period_ms)))


def expire_token(
    image: MetadataImage, token_id: str | None, caller: str, period_ms: int, now_ms: int
) -> Decision[int | ApiError]:
    """The new time of expiry. `period_ms`: from now on; less than 0 removes the token now."""
    token = image.delegation_tokens.get(token_id) if token_id is not None else None
    if token is None:
        return _refused(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    if not may_renew(token, caller):
        return _refused(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
    if period_ms < 0:
        return Decision([RemoveDelegationTokenRecord(token_id=token.token_id)], now_ms)
    if has_expired(token, now_ms):
        return _refused(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    return _expiring(token, min(token.max_timestamp, _sum(now_ms, period_ms)))


def remove_expired_tokens(image: MetadataImage, now_ms: int) -> Decision[int]:
    """The number of tokens removed; there may be more where it is the largest possible."""
    expired = [
        RemoveDelegationTokenRecord(token_id=token.token_id)
        for token in image.delegation_tokens.values()
        if has_expired(token, now_ms)
    ][:_REMOVED_MAX]
    return Decision(expired, len(expired))


def has_expired(token: DelegationTokenRecord, now_ms: int) -> bool:
    return min(token.max_timestamp, token.expiration_timestamp) < now_ms


def may_renew(token: DelegationTokenRecord, principal: str) -> bool:
    """Whether it may renew and end the token: not who asked for it in another's name (DelegationTokenControlManager)."""
    return principal == token.owner or principal in token.renewers


def is_owner_or_renewer(token: DelegationTokenRecord, principal: str) -> bool:
    """Whether it may see the token, as who asked for it may, too."""
    return principal == token.requester or may_renew(token, principal)


def _expiring(token: DelegationTokenRecord, expiry_ms: int) -> Decision[int | ApiError]:
    return Decision([msgspec.structs.replace(token, expiration_timestamp=expiry_ms)], expiry_ms)


def _refused(error: ErrorCode) -> Decision[int | ApiError]:
    return Decision([], ApiError(error, None))


def _sum(a: int, b: int) -> int:
    return min(a + b, _TIME_MAX)
