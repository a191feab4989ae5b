"""CreateAcls (30), versions 1-3: there is no authorizer, and Kafka without one refuses with SECURITY_DISABLED."""

from __future__ import annotations

from collections.abc import Generator

from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import sliced
from barnabas.broker.services import HandlerContext
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse


@api(30, 1, 3)
@sliced
def create_acls(
    _context: HandlerContext, request: CreateAclsRequest
) -> Generator[None, None, CreateAclsResponse]:
    response = CreateAclsResponse()
    for _ in request.creations:
        response.results.append(
            AclCreationResult(
                error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured."
            )
        )
        yield
    return response
