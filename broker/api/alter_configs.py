"""AlterConfigs (33), versions 0-2: replaces all properties of a resource: those not named lose their value.

Deprecated since KIP-339 and still used. v1 is v0, v2 is flexible. Broker loggers are refused, as Kafka does."""

from __future__ import annotations

from collections.abc import Generator

from barnabas.broker.cluster.config_changes import TOO_MANY_CONFIGS, are_too_many, change_configs
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import answer_in_slices
from barnabas.broker.services import HandlerContext
from barnabas.controller.operations.configs import SET, ConfigChange, ResourceChange, ResourceResult
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


@api(33, 0, 2, shared=True)
def alter_configs(context: HandlerContext, request: AlterConfigsRequest) -> Outcome:
    if are_too_many(request.resources):
        answer_in_slices(context, _refused(request))
        return PENDING
    requested = [
        ResourceChange(
            resource.resource_type,
            resource.resource_name,
            [ConfigChange(config.name, SET, config.value) for config in resource.configs],
            replace=True,
        )
        for resource in request.resources
    ]
    services = context.services
    change_configs(
        services.runtime,
        services.config,
        services.controller,
        services.controller_channel,
        requested,
        request.validate_only,
        lambda results: context.complete(_response(results)),
    )
    return PENDING


def _refused(request: AlterConfigsRequest) -> Generator[None, None, AlterConfigsResponse]:
    response = AlterConfigsResponse()
    for resource in request.resources:
        response.responses.append(
            AlterConfigsResourceResponse(
                error_code=ErrorCode.POLICY_VIOLATION,
                error_message=TOO_MANY_CONFIGS,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
        yield
    return response


def _response(results: list[ResourceResult]) -> AlterConfigsResponse:
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(
                error_code=result.error,
                error_message=result.message,
                resource_type=result.resource_type,
                resource_name=result.resource_name,
            )
            for result in results
        ]
    )
