"""DescribeCluster (60), versions 0-2 (KIP-700): brokers and cluster id without topics.

v1 endpoint type: this is a broker listener, so controllers are not described here (KIP-919). v2 fenced brokers on request
(KIP-1073). The controller's id is that of any live broker, as in Kafka: every broker forwards requests to the controller.
"""

from __future__ import annotations

from barnabas.broker.cluster.metadata_view import OPERATIONS_NOT_ASKED
from barnabas.broker.requests.authorization import authorized_cluster_operations
from barnabas.broker.requests.registry import api
from barnabas.broker.services import HandlerContext
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

_BROKERS, _CONTROLLERS = 1, 2


@api(60, 0, 2)
def describe(context: HandlerContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    if request.endpoint_type == _CONTROLLERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of type BROKER, but we wanted an endpoint of "
            "type CONTROLLER",
        )
    if request.endpoint_type != _BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"Unsupported endpoint type {request.endpoint_type}",
        )
    view = context.services.metadata_view(context.listener)
    return DescribeClusterResponse(
        cluster_id=context.services.cluster_id,
        controller_id=view.controller_id(context.services.runtime.random),
        brokers=[
            DescribeClusterBroker(
                broker_id=broker.broker_id,
                host=broker.host,
                port=broker.port,
                rack=broker.rack,
                is_fenced=broker.fenced,
            )
            for broker in view.brokers
            if request.include_fenced_brokers or not broker.fenced
        ],
        cluster_authorized_operations=authorized_cluster_operations(context)
        if request.include_cluster_authorized_operations
        else OPERATIONS_NOT_ASKED,
    )
