"""DescribeAcls (29), versions 1-3: there is no authorizer, and Kafka without one says SECURITY_DISABLED."""

from __future__ import annotations

from barnabas.broker.requests.registry import api
from barnabas.broker.services import HandlerContext
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse


@api(29, 1, 3)
def describe_acls(_context: HandlerContext, _request: DescribeAclsRequest) -> DescribeAclsResponse:
    return DescribeAclsResponse(
        error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured on the broker"
    )
