"""CreateAcls (30), versions 1-3: there is no authorizer, and Kafka without one refuses with SECURITY_DISABLED."""

from __future__ import annotations

from barnabas.broker.context import RequestContext
from barnabas.broker.registry import api
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse


@api(30, 1, 3)
def create_acls(_context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    return CreateAclsResponse(
        results=[
            AclCreationResult(
                error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured."
            )
            for _ in request.creations
        ]
    )
