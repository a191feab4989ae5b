"""IncrementalAlterConfigs (44), versions 0-1: sets, deletes, appends to or subtracts from single properties.

KIP-339; broker loggers are KIP-412. v1 is flexible."""

from __future__ import annotations

from collections.abc import Generator

from barnabas.broker.cluster.config_changes import TOO_MANY_CONFIGS, are_too_many, change_configs
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import answer_in_slices
from barnabas.broker.services import HandlerContext
from barnabas.controller.operations.configs import ConfigChange, ResourceChange, ResourceResult
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


@api(44, 0, 1, shared=True)
def incremental_alter_configs(context: HandlerContext, request: IncrementalAlterConfigsRequest) -> Outcome:
    if are_too_many(request.resources):
        answer_in_slices(context, _refused(request))
        return PENDING
    requested = [
        ResourceChange(
            resource.resource_type,
            resource.resource_name,
            [ConfigChange(config.name, config.config_operation, config.value) for config in resource.configs],
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


def _refused(
    request: IncrementalAlterConfigsRequest,
) -> Generator[None, None, IncrementalAlterConfigsResponse]:
    response = IncrementalAlterConfigsResponse()
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


def _response(results: list[ResourceResult]) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
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
