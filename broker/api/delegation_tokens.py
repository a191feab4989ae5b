"""CreateDelegationToken (38), RenewDelegationToken (39), ExpireDelegationToken (40) and DescribeDelegationToken (41) (KIP-48).

Versions 1-3 of 38 and 41, 1-2 of 39 and 40; v3 names an owner other than the caller, and who has asked (KIP-373). Tokens are asked
for by principals that have authenticated, and not with a token.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final, TypeVar

import msgspec

from barnabas.broker.requests.authorization import allows
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import sliced
from barnabas.broker.security.caller import ANONYMOUS, USER, Principal, parse_principal
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation, ResourceType
from barnabas.controller.metadata.decision import ApiError, Decision
from barnabas.controller.metadata.image import MetadataImage
from barnabas.controller.operations import delegation_tokens as operations
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from barnabas.wire.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from barnabas.wire.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from barnabas.wire.messages.metadata_records import DelegationTokenRecord
from barnabas.wire.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from barnabas.wire.uuids import derived_uuid, uuid_to_string

PRINCIPALS_MAX: Final = 1000  # renewers of a token, and owners that tokens are asked of
_NO_TIME: Final = -1  # of a request that this broker refuses itself

R = TypeVar("R", bound=msgspec.Struct)


@api(38, 1, 3, controller=True)
def create(
    context: HandlerContext, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse | Outcome:
    requester = owner = context.principal
    if request.owner_principal_name:
        owner = Principal(request.owner_principal_type or "", request.owner_principal_name)

    def refused(error: ErrorCode, time_ms: int = _NO_TIME) -> CreateDelegationTokenResponse:
        return _created(error, owner, requester, time_ms, time_ms, time_ms)

    if not _may_ask(context):
        return refused(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    if owner != requester and not allows(context, Operation.CREATE_TOKENS, ResourceType.USER, str(owner)):
        return refused(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
    if any(each.principal_type != USER for each in request.renewers):
        return refused(ErrorCode.INVALID_PRINCIPAL_TYPE)
    services = context.services
    tokens = services.delegation_tokens
    if tokens is None:
        return refused(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, 0)
    if len(request.renewers) > PRINCIPALS_MAX:
        return refused(ErrorCode.INVALID_REQUEST)
    renewers = [f"{each.principal_type}:{each.principal_name}" for each in request.renewers]
    request_id = services.controller_channel.request_id_of(context)
    token_id = uuid_to_string(derived_uuid(request_id))
    now_ms = services.runtime.time_ms()

    def done(token: DelegationTokenRecord) -> None:
        times = token.issue_timestamp, token.expiration_timestamp, token.max_timestamp
        context.complete(
            _created(ErrorCode.NONE, owner, requester, *times, token_id=token_id, hmac=tokens.hmac(token_id))
        )

    services.controller.run(
        lambda image: operations.create_token(
            image,
            token_id,
            str(owner),
            str(requester),
            renewers,
            request.max_lifetime_ms,
            tokens.lifetimes,
            now_ms,
        ),
        done,
        lambda error, _: context.complete(refused(error)),
    )
    return PENDING


def _created(
    error: ErrorCode,
    owner: Principal,
    requester: Principal,
    issue_timestamp_ms: int,
    expiry_timestamp_ms: int,
    max_timestamp_ms: int,
    token_id: str = "",
    hmac: bytes = b"",
) -> CreateDelegationTokenResponse:
    return CreateDelegationTokenResponse(
        error_code=error,
        principal_type=owner.type,
        principal_name=owner.name,
        token_requester_principal_type=requester.type,
        token_requester_principal_name=requester.name,
        issue_timestamp_ms=issue_timestamp_ms,
        expiry_timestamp_ms=expiry_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        token_id=token_id,
        hmac=hmac,
    )


@api(39, 1, 2, controller=True)
def renew(
    context: HandlerContext, request: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse | Outcome:
    caller, now_ms = str(context.principal), context.services.runtime.time_ms()

    def decide(
        image: MetadataImage, token_id: str | None, lifetimes: operations.TokenLifetimes
    ) -> Decision[int | ApiError]:
        return operations.renew_token(image, token_id, caller, request.renew_period_ms, lifetimes, now_ms)

    return _change_expiry(context, bytes(request.hmac), RenewDelegationTokenResponse, decide)


@api(40, 1, 2, controller=True)
def expire(
    context: HandlerContext, request: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse | Outcome:
    caller, now_ms = str(context.principal), context.services.runtime.time_ms()

    def decide(
        image: MetadataImage, token_id: str | None, _: operations.TokenLifetimes
    ) -> Decision[int | ApiError]:
        return operations.expire_token(image, token_id, caller, request.expiry_time_period_ms, now_ms)

    return _change_expiry(context, bytes(request.hmac), ExpireDelegationTokenResponse, decide)


def _change_expiry(
    context: HandlerContext,
    hmac: bytes,
    respond: Callable[[int, int], R],
    decide: Callable[[MetadataImage, str | None, operations.TokenLifetimes], Decision[int | ApiError]],
) -> R | Outcome:
    """Change when a token expires. `respond(error, time)` makes the response."""
    tokens = context.services.delegation_tokens
    if not _may_ask(context):
        return respond(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, _NO_TIME)
    if tokens is None:
        return respond(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, 0)

    def done(result: int | ApiError) -> None:
        if isinstance(result, ApiError):
            context.complete(respond(result.error, 0))
        else:
            context.complete(respond(ErrorCode.NONE, result))

    context.services.controller.run(
        lambda image: decide(image, tokens.token_id(hmac, image), tokens.lifetimes),
        done,
        lambda error, _: context.complete(respond(error, 0)),
    )
    return PENDING


@api(41, 1, 3)
@sliced
def describe(
    context: HandlerContext, request: DescribeDelegationTokenRequest
) -> Generator[None, None, DescribeDelegationTokenResponse]:
    services = context.services
    tokens = services.delegation_tokens
    if not _may_ask(context):
        return DescribeDelegationTokenResponse(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    if tokens is None:
        return DescribeDelegationTokenResponse(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    owners = None
    if request.owners is not None:
        if len(request.owners) > PRINCIPALS_MAX:
            return DescribeDelegationTokenResponse(ErrorCode.INVALID_REQUEST)
        owners = [f"{each.principal_type}:{each.principal_name}" for each in request.owners]
    found = []
    for token in list(services.controller.image.delegation_tokens.values()) if owners != [] else []:
        if _is_visible(context, token, owners):
            found.append(_described(token, tokens.hmac(token.token_id)))
        yield
    return DescribeDelegationTokenResponse(tokens=found)


def _may_ask(context: HandlerContext) -> bool:
    """Whether the caller has proven who it is, and not with a token: one could be had for ever otherwise."""
    return context.principal != ANONYMOUS and not context.caller.is_token_authenticated


def _is_visible(context: HandlerContext, token: DelegationTokenRecord, owners: list[str] | None) -> bool:
    if owners is not None and not any(operations.is_owner_or_renewer(token, owner) for owner in owners):
        return False
    return (
        operations.is_owner_or_renewer(token, str(context.principal))
        or allows(context, Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id)
        or allows(context, Operation.DESCRIBE_TOKENS, ResourceType.USER, token.owner)
    )


def _described(token: DelegationTokenRecord, hmac: bytes) -> DescribedDelegationToken:
    owner, requester = _principal(token.owner), _principal(token.requester)
    renewers = map(_principal, token.renewers)
    return DescribedDelegationToken(
        principal_type=owner.type,
        principal_name=owner.name,
        token_requester_principal_type=requester.type,
        token_requester_principal_name=requester.name,
        issue_timestamp=token.issue_timestamp,
        expiry_timestamp=token.expiration_timestamp,
        max_timestamp=token.max_timestamp,
        token_id=token.token_id,
        hmac=hmac,
        renewers=[DescribedDelegationTokenRenewer(each.type, each.name) for each in renewers],
    )


def _principal(text: str) -> Principal:
    return parse_principal(text) or Principal("", text)
