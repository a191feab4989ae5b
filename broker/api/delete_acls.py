"""DeleteAcls (31), versions 1-3: there is no authorizer, and Kafka without one refuses with SECURITY_DISABLED."""

from __future__ import annotations

from collections.abc import Generator

from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import sliced
from barnabas.broker.services import HandlerContext
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse


@api(31, 1, 3)
@sliced
def delete_acls(
    _context: HandlerContext, request: DeleteAclsRequest
) -> Generator[None, None, DeleteAclsResponse]:
    response = DeleteAclsResponse()
    for _ in request.filters:
        response.filter_results.append(
            DeleteAclsFilterResult(
                error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured."
            )
        )
        yield
    return response
