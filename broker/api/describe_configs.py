"""DescribeConfigs (32), versions 1-4: the properties of topics, brokers, loggers, groups and client metrics.

v1 synonyms (KIP-226), v3 types and documentation (KIP-569), v4 flexible. Passwords and unknown properties are listed without
their values.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from barnabas.broker.config.describe import (
    BROKER_LOGGER,
    broker_entries,
    client_metrics_entries,
    cluster_entries,
    group_entries,
    topic_entries,
)
from barnabas.broker.config.logger_levels import logger_levels
from barnabas.broker.requests.authorization import config_refusal
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.repetitions import MESSAGE, Repetitions
from barnabas.broker.requests.sliced_handler import sliced
from barnabas.broker.services import HandlerContext, Services
from barnabas.controller.extension import ConfigTables
from barnabas.controller.metadata.acls import Operation
from barnabas.controller.metadata.decision import ApiError
from barnabas.controller.metadata.image import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    MetadataImage,
)
from barnabas.controller.operations.topic_names import invalid_topic_name
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)

BROKER_LOGGER_RESOURCE: Final = 8
_EXIST_BY_NAME: Final = (GROUP_RESOURCE, CLIENT_METRICS_RESOURCE)  # every name has the defaults, as in Kafka
WITHOUT_CONFIGS_MAX: Final = 10_000
_TOO_MANY: Final = (
    f"The request names more than {WITHOUT_CONFIGS_MAX} groups and subscriptions without configs."
)
_UNSUPPORTED: Final = (
    "This most likely occurs because of a request being malformed by the client library or the message was "
    "sent to an incompatible broker. See the broker logs for more details."
)


@api(32, 1, 4)
@sliced
def describe_configs(
    context: HandlerContext, request: DescribeConfigsRequest
) -> Generator[None, None, DescribeConfigsResponse]:
    response = DescribeConfigsResponse()
    repetitions = Repetitions()
    described = _Described(context, request)
    for resource in request.resources:
        result = DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            if repetitions.are_too_many(_named_by(resource)):
                raise ApiError(ErrorCode.INVALID_REQUEST, MESSAGE)
            _authorize(context, resource)
            result.configs = described.entries(resource)
        except ApiError as api_error:
            result.error_code, result.error_message = api_error.error, api_error.message
        response.results.append(result)
        yield
    return response


def _authorize(context: HandlerContext, resource: DescribeConfigsResource) -> None:
    """ApiError when the sender may not see the configs."""
    error = config_refusal(
        context, Operation.DESCRIBE_CONFIGS, resource.resource_type, resource.resource_name
    )
    if error:
        raise ApiError(error, error.message)


def _named_by(resource: DescribeConfigsResource) -> tuple[int, str]:
    """The identity of a resource: this broker's id may be written as 1, 01 and 001."""
    kind = resource.resource_type
    is_broker = kind in (BROKER_RESOURCE, BROKER_LOGGER_RESOURCE) and resource.resource_name
    return kind, "this broker" if is_broker else resource.resource_name


class _Described:
    """The entries of a request's resources. Topics with the same configs share their entries, so that a thousand topics cost
    little more than one."""

    def __init__(self, context: HandlerContext, request: DescribeConfigsRequest) -> None:
        self._context = context
        self._request = request
        self._of_topics: dict[tuple[object, ...], list[DescribeConfigsResourceResult]] = {}
        self._without_configs = 0  # resources without configs, which may not exist

    def entries(self, resource: DescribeConfigsResource) -> list[DescribeConfigsResourceResult]:
        """The entries of a resource that the request asks for. ApiError."""
        services = self._context.services
        kind = resource.resource_type
        if kind in _EXIST_BY_NAME and (kind, resource.resource_name) not in services.controller.image.configs:
            self._without_configs += 1
            if self._without_configs > WITHOUT_CONFIGS_MAX:
                raise ApiError(ErrorCode.INVALID_REQUEST, _TOO_MANY)
        if kind != TOPIC_RESOURCE:
            return self._trimmed(_describe(services, resource), resource)
        _check_topic(services.controller.image, resource.resource_name)
        overrides = services.controller.image.topic_configs(resource.resource_name)
        alike = (*sorted(overrides.items()), None, *(resource.configuration_keys or ()))
        found = self._of_topics.get(alike)
        if found is None:
            found = self._trimmed(topic_entries(services.config, overrides), resource)
            self._of_topics[alike] = found
        return found

    def _trimmed(
        self, entries: list[DescribeConfigsResourceResult], resource: DescribeConfigsResource
    ) -> list[DescribeConfigsResourceResult]:
        tables = self._context.services.config.tables
        _trim(entries, resource, self._request, self._context.api_version, tables)
        return entries


def _describe(services: Services, resource: DescribeConfigsResource) -> list[DescribeConfigsResourceResult]:
    """All entries of a resource that is not a topic."""
    kind, name = resource.resource_type, resource.resource_name
    image, config = services.controller.image, services.config
    if kind == BROKER_RESOURCE:
        if not name:
            return cluster_entries(config, image.configs.get((BROKER_RESOURCE, ""), {}))
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
        return client_metrics_entries(config, image.configs.get((kind, name), {}))
    raise ApiError(ErrorCode.INVALID_REQUEST, _UNSUPPORTED)


def _check_topic(image: MetadataImage, name: str) -> None:
    problem = invalid_topic_name(name)
    if problem:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if name not in image.topics:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")


def _check_named(name: str, what: str) -> None:
    if not name:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{what} must not be empty")


def _check_broker(name: str, node_id: int, or_else: str) -> None:
    try:
        broker_id = int(name)
    except ValueError:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}"
        ) from None
    if broker_id != node_id:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {node_id}{or_else} but received {broker_id}",
        )


def _trim(
    entries: list[DescribeConfigsResourceResult],
    resource: DescribeConfigsResource,
    request: DescribeConfigsRequest,
    version: int,
    tables: ConfigTables,
) -> None:
    """Keep only what the request asks for; an empty list of keys asks for all, as null does."""
    wanted = set(resource.configuration_keys or ())
    if wanted:
        entries[:] = [entry for entry in entries if entry.name in wanted]
    if not request.include_synonyms:
        for entry in entries:
            entry.synonyms = []
    if request.include_documentation and version >= 3:
        for entry in entries:
            text = tables.documentation(resource.resource_type, entry.name)
            entry.documentation = text or entry.documentation
