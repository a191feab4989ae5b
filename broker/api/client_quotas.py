"""DescribeClientQuotas (48) and AlterClientQuotas (49), versions 0-1 (KIP-546): quotas of users, client ids and addresses.

v1 is the flexible form of v0. The active controller changes them (controller/operations/client_quotas.py), each broker
enforces and describes them (broker/quotas).
"""

from __future__ import annotations

import socket
from collections.abc import Generator
from typing import Final

from barnabas.broker.quotas.connection_rates import packed
from barnabas.broker.requests.authorization import allows_cluster
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
from barnabas.controller.metadata.decision import ApiError
from barnabas.controller.metadata.image import quota_entity
from barnabas.controller.operations.client_quotas import (
    QUOTAS_MAX,
    TOO_MANY_QUOTAS,
    QuotaResults,
    alter_client_quotas,
    describe_client_quotas,
    hosts_named,
)
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    ResponseEntityData,
    ResponseEntryData,
)
from barnabas.wire.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

_REFUSED: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
HOSTS_MAX: Final = 100  # names that a request may have resolved; addresses are not counted


@api(48, 0, 1)
@sliced
def describe(
    context: HandlerContext, request: DescribeClientQuotasRequest
) -> Generator[None, None, DescribeClientQuotasResponse]:
    if not allows_cluster(context, Operation.DESCRIBE_CONFIGS):
        return DescribeClientQuotasResponse(error_code=_REFUSED, error_message=None, entries=None)
    image = context.services.controller.image
    try:
        entries = yield from describe_client_quotas(image, request.components, strict=request.strict)
    except ApiError as error:
        return DescribeClientQuotasResponse(error_code=error.error, error_message=error.message, entries=None)
    return DescribeClientQuotasResponse(entries=entries)


@api(49, 0, 1, controller=True)
def alter(context: HandlerContext, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse | Outcome:
    if not allows_cluster(context, Operation.ALTER_CONFIGS):
        return _failed(request, _REFUSED, _REFUSED.message)
    entries = request.entries
    names = {name for name in hosts_named(entries) if packed(name) is None}
    if (
        len(entries) > QUOTAS_MAX
        or sum([len(each.ops) + len(each.entity) for each in entries]) > QUOTAS_MAX
        or len(names) > HOSTS_MAX
    ):
        return _failed(request, ErrorCode.POLICY_VIOLATION, TOO_MANY_QUOTAS)
    if names:
        context.services.runtime.run_in_thread(
            lambda: frozenset(filter(_resolves, names)),
            lambda hosts, _: _decide(context, request, hosts or frozenset()),
        )
    else:
        _decide(context, request, frozenset())
    return PENDING


def _decide(context: HandlerContext, request: AlterClientQuotasRequest, hosts: frozenset[str]) -> None:
    """`hosts`: names that resolve."""
    context.services.controller.run(
        lambda image: alter_client_quotas(
            image,
            request.entries,
            lambda name: name in hosts or packed(name) is not None,
            validate_only=request.validate_only,
        ),
        lambda results: context.complete(_response(results)),
        lambda error, message: context.complete(_failed(request, error, message)),
    )


def _failed(request: AlterClientQuotasRequest, error: ErrorCode, message: str) -> AlterClientQuotasResponse:
    refusal = ApiError(error, message)
    return _response({quota_entity(entry.entity): refusal for entry in request.entries})


def _response(results: QuotaResults) -> AlterClientQuotasResponse:
    """One entry for each entity, as in Kafka."""
    return AlterClientQuotasResponse(
        entries=[
            ResponseEntryData(
                error_code=ErrorCode.NONE if error is None else error.error,
                error_message=None if error is None else error.message,
                entity=[ResponseEntityData(kind, name) for kind, name in entity],
            )
            for entity, error in results.items()
        ]
    )


def _resolves(name: str) -> bool:
    """In a thread."""
    try:
        return bool(socket.getaddrinfo(name, None))
    except (OSError, ValueError):
        return False
