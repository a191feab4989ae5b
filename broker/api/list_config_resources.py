"""ListConfigResources (74), versions 0-1: the names of resources with configs.

v0 lists client metrics subscriptions only (it was ListClientMetricsResources, KIP-1000); v1 takes resource
types and lists topics, brokers, broker loggers and groups too (KIP-1142). No types: all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from barnabas.broker.requests.authorization import allows_cluster
from barnabas.broker.requests.registry import api
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
from barnabas.controller.metadata.image import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    MetadataImage,
)
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

BROKER_LOGGER_RESOURCE: Final = 8
LISTED: Final = (
    GROUP_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
)


@api(74, 0, 1)
def list_config_resources(
    context: HandlerContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    if not allows_cluster(context, Operation.DESCRIBE_CONFIGS):
        return ListConfigResourcesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    wanted: Iterable[int] = (CLIENT_METRICS_RESOURCE,)
    if context.api_version >= 1:
        wanted = dict.fromkeys(request.resource_types) or LISTED
    if any(kind not in LISTED for kind in wanted):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    image = context.services.controller.image
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in wanted
            for name in _names(image, kind)
        ]
    )


def _names(image: MetadataImage, kind: int) -> list[str]:
    if kind == TOPIC_RESOURCE:
        return list(image.topics)
    if kind in (BROKER_RESOURCE, BROKER_LOGGER_RESOURCE):
        return [str(broker_id) for broker_id in image.usable_brokers()]
    return [name for resource_type, name in image.configs if resource_type == kind]
