"""DescribeConfigs (32), versions 1-4: the properties of topics, brokers, loggers, groups and client metrics.

v1 synonyms (KIP-226), v3 types and documentation (KIP-569), v4 flexible. Passwords and properties that
nobody knows come without their value.
"""

from __future__ import annotations

from typing import Final

from barnabas.broker.config_entries import (
    BROKER_LOGGER,
    broker_entries,
    client_metrics_entries,
    cluster_entries,
    group_entries,
    topic_entries,
)
from barnabas.broker.context import RequestContext
from barnabas.broker.logger_levels import logger_levels
from barnabas.broker.registry import api
from barnabas.broker.services import Services
from barnabas.controller.image import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    MetadataImage,
)
from barnabas.controller.operations.topic_names import invalid_topic_name
from barnabas.controller.refused import Refused
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)

BROKER_LOGGER_RESOURCE: Final = 8
_UNSUPPORTED: Final = (
    "This most likely occurs because of a request being malformed by the client library or the message was "
    "sent to an incompatible broker. See the broker logs for more details."
)


@api(32, 1, 4)
def describe_configs(context: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    response = DescribeConfigsResponse()
    for resource in request.resources:
        result = DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            result.configs = _describe(context.services, resource)
        except Refused as refusal:
            result.error_code, result.error_message = refusal.error, refusal.message
        _trim(result.configs, resource, request, context.api_version)
        response.results.append(result)
    return response


def _describe(services: Services, resource: DescribeConfigsResource) -> list[DescribeConfigsResourceResult]:
    kind, name = resource.resource_type, resource.resource_name
    image, config = services.controller.image, services.config
    if kind == TOPIC_RESOURCE:
        _check_topic(image, name)
        return topic_entries(config, image.topic_configs(name))
    if kind == BROKER_RESOURCE:
        if not name:
            return cluster_entries(image.configs.get((BROKER_RESOURCE, ""), {}))
        _check_broker(name, services.node_id, " or empty string,")
        return broker_entries(config)
    if kind == BROKER_LOGGER_RESOURCE:
        _check_named(name, "Broker id")
        _check_broker(name, services.node_id, "")
        return [
            DescribeConfigsResourceResult(
                name=logger, value=level, config_source=BROKER_LOGGER, documentation=""
            )
            for logger, level in logger_levels()
        ]
    if kind == GROUP_RESOURCE:
        _check_named(name, "Group name")
        return group_entries(config, image.configs.get((kind, name), {}))
    if kind == CLIENT_METRICS_RESOURCE:
        _check_named(name, "Client metrics subscription name")
        return client_metrics_entries(image.configs.get((kind, name), {}))
    raise Refused(ErrorCode.INVALID_REQUEST, _UNSUPPORTED)


def _check_topic(image: MetadataImage, name: str) -> None:
    problem = invalid_topic_name(name)
    if problem:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if name not in image.topics:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")


def _check_named(name: str, what: str) -> None:
    if not name:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{what} must not be empty")


def _check_broker(name: str, node_id: int, or_else: str) -> None:
    try:
        broker_id = int(name)
    except ValueError:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}") from None
    if broker_id != node_id:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {node_id}{or_else} but received {broker_id}",
        )


def _trim(
    entries: list[DescribeConfigsResourceResult],
    resource: DescribeConfigsResource,
    request: DescribeConfigsRequest,
    version: int,
) -> None:
    """Leave what the request asks for; an empty list of keys asks for all, as null does."""
    wanted = set(resource.configuration_keys or ())
    if wanted:
        entries[:] = [entry for entry in entries if entry.name in wanted]
    if not request.include_synonyms:
        for entry in entries:
            entry.synonyms = []
    if request.include_documentation and version >= 3:
        # Late: few ask, and the texts are long.
        from barnabas.controller.config_docs import documentation

        for entry in entries:
            entry.documentation = documentation(resource.resource_type, entry.name) or entry.documentation
