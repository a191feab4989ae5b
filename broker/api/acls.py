"""DescribeAcls (29), CreateAcls (30) and DeleteAcls (31), versions 1-3.

Every broker describes the ACLs of its image; the active controller changes them, all of a request in one commit. Without an
authorizer all three are refused with SECURITY_DISABLED, as in Kafka. A type, pattern, operation or permission of 0 closes the
connection.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

from barnabas.broker.requests.authorization import allows_cluster
from barnabas.broker.requests.context import CLOSE_CONNECTION, PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import answer_in_slices, collect, sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Acl, AclFilter, Operation
from barnabas.controller.metadata.decision import ApiError
from barnabas.controller.operations import acls as operations
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from barnabas.wire.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from barnabas.wire.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from barnabas.wire.uuids import derived_uuid

_DISABLED = ApiError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
_UNAUTHORIZED = ApiError(
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED.message
)


@api(29, 1, 3)
@sliced
def describe_acls(
    context: HandlerContext, request: DescribeAclsRequest
) -> Generator[None, None, DescribeAclsResponse | Outcome]:
    wanted = AclFilter(
        request.resource_type_filter,
        request.resource_name_filter,
        request.pattern_type_filter,
        request.principal_filter,
        request.host_filter,
        request.operation,
        request.permission_type,
    )
    if _has_zero(wanted):
        return CLOSE_CONNECTION
    if not allows_cluster(context, Operation.DESCRIBE):
        return DescribeAclsResponse(error_code=_UNAUTHORIZED.error, error_message=_UNAUTHORIZED.message)
    if context.services.authorizer is None:
        return DescribeAclsResponse(
            error_code=_DISABLED.error, error_message="No Authorizer is configured on the broker"
        )
    resources: dict[tuple[int, str, int], DescribeAclsResource] = {}
    for _, acl in list(context.services.controller.image.acls.candidates(wanted)):
        if wanted.matches(acl):
            resource = acl.resource_type, acl.name, acl.pattern_type
            if resource not in resources:
                resources[resource] = DescribeAclsResource(*resource, [])
            described = AclDescription(acl.principal, acl.host, acl.operation, acl.permission)
            resources[resource].acls.append(described)
        yield
    return DescribeAclsResponse(resources=list(resources.values()))


@api(30, 1, 3, controller=True)
def create_acls(context: HandlerContext, request: CreateAclsRequest) -> Outcome:
    refusal = _refusal(context, len(request.creations), operations.TOO_MANY_CREATED)
    wanted = [] if refusal is not None else [_acl(creation) for creation in request.creations]
    if any(map(_has_zero, wanted)):
        return CLOSE_CONNECTION
    if refusal is not None:
        answer_in_slices(context, _created([refusal] * len(request.creations)))
        return PENDING
    request_id = context.services.controller_channel.request_id_of(context)
    context.services.controller.run(
        lambda image: operations.create_acls(
            image, wanted, lambda number: derived_uuid(request_id + number.to_bytes(4, "big"))
        ),
        lambda results: answer_in_slices(context, _created(results)),
        lambda error, message: answer_in_slices(context, _created([ApiError(error, message)] * len(wanted))),
    )
    return PENDING


@api(31, 1, 3, controller=True)
def delete_acls(context: HandlerContext, request: DeleteAclsRequest) -> Outcome:
    refusal = _refusal(context, len(request.filters), operations.TOO_MANY_FILTERS)
    filters = [] if refusal is not None else [_filter(each) for each in request.filters]
    if any(map(_has_zero, filters)):
        return CLOSE_CONNECTION
    if refusal is not None:
        answer_in_slices(context, _deleted([refusal] * len(request.filters)))
        return PENDING
    context.services.controller.run(
        lambda image: operations.delete_acls(image, filters),
        lambda results: answer_in_slices(context, _deleted(results)),
        lambda error, message: answer_in_slices(context, _deleted([ApiError(error, message)] * len(filters))),
    )
    return PENDING


def _refusal(context: HandlerContext, count: int, too_many: str) -> ApiError | None:
    """Why the sender may change no ACLs, or not so many at once."""
    if not allows_cluster(context, Operation.ALTER):
        return _UNAUTHORIZED
    if context.services.authorizer is None:
        return _DISABLED
    return ApiError(ErrorCode.INVALID_REQUEST, too_many) if count > operations.ACLS_PER_REQUEST_MAX else None


def _has_zero(acl: Acl | AclFilter) -> bool:
    """Whether a code is that of UNKNOWN, which Kafka does not parse. It does parse other codes that it does not know."""
    return 0 in (acl.resource_type, acl.pattern_type, acl.operation, acl.permission)


def _acl(creation: AclCreation) -> Acl:
    return Acl(
        creation.resource_type,
        creation.resource_name,
        creation.resource_pattern_type,
        creation.principal,
        creation.host,
        creation.operation,
        creation.permission_type,
    )


def _filter(each: DeleteAclsFilter) -> AclFilter:
    return AclFilter(
        each.resource_type_filter,
        each.resource_name_filter,
        each.pattern_type_filter,
        each.principal_filter,
        each.host_filter,
        each.operation,
        each.permission_type,
    )


def _created(results: Iterable[ApiError | None]) -> Generator[None, None, CreateAclsResponse]:
    def result(error: ApiError | None) -> AclCreationResult:
        return AclCreationResult() if error is None else AclCreationResult(error.error, error.message)

    return CreateAclsResponse(results=(yield from collect(result, results)))


def _deleted(results: Iterable[list[Acl] | ApiError]) -> Generator[None, None, DeleteAclsResponse]:
    response = DeleteAclsResponse()
    for result in results:
        if isinstance(result, ApiError):
            response.filter_results.append(DeleteAclsFilterResult(result.error, result.message))
        else:
            matching = yield from collect(_matching, result)
            response.filter_results.append(DeleteAclsFilterResult(0, None, matching))
        yield
    return response


def _matching(acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        0,
        None,
        acl.resource_type,
        acl.name,
        acl.pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission,
    )
