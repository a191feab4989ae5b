"""DescribeUserScramCredentials (50) and AlterUserScramCredentials (51), version 0 (KIP-554): the users of SCRAM.

A request carries salted passwords, which are as good as passwords: nothing of it is logged. Every broker describes the users of
its image; the active controller changes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator

from barnabas.broker.requests.authorization import allows_cluster
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
from barnabas.controller.metadata.decision import ApiError
from barnabas.controller.operations import scram
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialUpsertion,
)
from barnabas.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from barnabas.wire.messages.metadata_records import UserScramCredentialRecord

_UNAUTHORIZED = ApiError(
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED.message
)


@api(50, 0, 0)
@sliced
def describe(
    context: HandlerContext, request: DescribeUserScramCredentialsRequest
) -> Generator[None, None, DescribeUserScramCredentialsResponse]:
    named = [each.name for each in request.users or []]
    if not allows_cluster(context, Operation.DESCRIBE):
        return _refused(len(named))
    if len(named) > scram.CREDENTIALS_MAX:
        return DescribeUserScramCredentialsResponse(
            error_code=ErrorCode.INVALID_REQUEST, error_message=f"more than {scram.CREDENTIALS_MAX} users"
        )
    image = context.services.controller.image
    counts = Counter(named) or dict.fromkeys([name for name, _ in image.scram_credentials], 1)
    results = []
    for name, count in counts.items():
        results.append(scram.describe_credential(image, name) if count == 1 else _doubled(name))
        yield
    return DescribeUserScramCredentialsResponse(results=results)


def _doubled(name: str) -> DescribeUserScramCredentialsResult:
    return DescribeUserScramCredentialsResult(
        user=name,
        error_code=ErrorCode.DUPLICATE_RESOURCE,
        error_message=f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}",
    )


def _refused(count: int) -> DescribeUserScramCredentialsResponse:
    """As Kafka: an error for each name, without it. Kafka has no answer where none is given."""
    error = _UNAUTHORIZED.error
    return DescribeUserScramCredentialsResponse(
        error_code=error,
        error_message=None,
        results=[DescribeUserScramCredentialsResult("", error, None) for _ in range(count)],
    )


@api(51, 0, 0, controller=True)
def alter(context: HandlerContext, request: AlterUserScramCredentialsRequest) -> Outcome:
    names = _names(request)
    refusal = None
    if not allows_cluster(context, Operation.ALTER):
        refusal = _UNAUTHORIZED
    elif len(request.deletions) + len(request.upsertions) > scram.CREDENTIALS_MAX:
        refusal = ApiError(ErrorCode.INVALID_REQUEST, f"more than {scram.CREDENTIALS_MAX} credentials")
    if refusal is not None:
        context.complete(_altered(dict.fromkeys(names, refusal)))
        return PENDING
    # Keys take some 5 us each, so that many of them would block the loop.
    context.services.runtime.run_in_thread(
        lambda: [_record(each) for each in request.upsertions],
        lambda records, error: _decide(context, request, records, error),
    )
    return PENDING


def _decide(
    context: HandlerContext,
    request: AlterUserScramCredentialsRequest,
    records: list[UserScramCredentialRecord] | None,
    error: BaseException | None,
) -> None:
    names = _names(request)
    if records is None:
        refusal = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, type(error).__name__)
        context.complete(_altered(dict.fromkeys(names, refusal)))
        return
    context.services.controller.run(
        lambda image: scram.alter_credentials(image, request.deletions, records),
        lambda results: context.complete(_altered(results)),
        lambda code, message: context.complete(_altered(dict.fromkeys(names, ApiError(code, message)))),
    )


def _names(request: AlterUserScramCredentialsRequest) -> list[str]:
    return [each.name for each in request.deletions] + [each.name for each in request.upsertions]


def _record(wanted: ScramCredentialUpsertion) -> UserScramCredentialRecord:
    if wanted.mechanism not in scram.HASHES:  # the decision refuses it
        return UserScramCredentialRecord(name=wanted.name, mechanism=wanted.mechanism)
    return scram.credential_record(
        wanted.name, wanted.mechanism, bytes(wanted.salt), bytes(wanted.salted_password), wanted.iterations
    )


def _altered(results: scram.ScramResults) -> AlterUserScramCredentialsResponse:
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(
                user=name,
                error_code=ErrorCode.NONE if error is None else error.error,
                error_message=None if error is None else error.message,
            )
            for name, error in results.items()
        ]
    )
