"""AlterConfigs (33), versions 0-2: replaces all properties of a resource: those not named lose their value.

Deprecated since KIP-339 and still used. v1 is v0, v2 is flexible. Broker loggers are refused, as Kafka does."""

from __future__ import annotations

from barnabas.broker.config_changes import change_configs
from barnabas.broker.context import RequestContext
from barnabas.broker.registry import PENDING, Outcome, api
from barnabas.controller.operations.configs import SET, ConfigChange, ResourceChange, ResourceResult
from barnabas.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


@api(33, 0, 2, shared=True)
def alter_configs(context: RequestContext, request: AlterConfigsRequest) -> Outcome:
    requested = [
        ResourceChange(
            resource.resource_type,
            resource.resource_name,
            [ConfigChange(config.name, SET, config.value) for config in resource.configs],
            replace=True,
        )
        for resource in request.resources
    ]
    change_configs(
        context.services,
        requested,
        request.validate_only,
        lambda results: context.complete(_response(results)),
    )
    return PENDING


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
