"""DescribeAcls (29), CreateAcls (30) and DeleteAcls (31), versions 1-3: there is no authorizer, and Kafka without one refuses
with SECURITY_DISABLED."""

from __future__ import annotations

from collections.abc import Generator

from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import collect, sliced
from barnabas.broker.services import HandlerContext
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from barnabas.wire.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse
from barnabas.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

_ERROR = ErrorCode.SECURITY_DISABLED
_MESSAGE = "No Authorizer is configured."


@api(29, 1, 3)
def describe_acls(_context: HandlerContext, _request: DescribeAclsRequest) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=_ERROR, error_message="No Authorizer is configured on the broker")


@api(30, 1, 3)
@sliced
def create_acls(
    _context: HandlerContext, request: CreateAclsRequest
) -> Generator[None, None, CreateAclsResponse]:
    results = yield from collect(lambda _: AclCreationResult(_ERROR, _MESSAGE), request.creations)
    return CreateAclsResponse(results=results)


@api(31, 1, 3)
@sliced
def delete_acls(
    _context: HandlerContext, request: DeleteAclsRequest
) -> Generator[None, None, DeleteAclsResponse]:
    results = yield from collect(lambda _: DeleteAclsFilterResult(_ERROR, _MESSAGE), request.filters)
    return DeleteAclsResponse(filter_results=results)
