"""GetTelemetrySubscriptions (71) and PushTelemetry (72), version 0: the metrics of clients (KIP-714).

Neither needs a permission, as in Kafka. They are served always, and named by ApiVersions where the metrics have a receiver.
"""

from __future__ import annotations

from collections.abc import Generator

from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import sliced
from barnabas.broker.services import HandlerContext
from barnabas.broker.telemetry.client_metrics import ACCEPTED_COMPRESSION_TYPES, is_reserved
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from barnabas.wire.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from barnabas.wire.primitives import ZERO_UUID


@api(71, 0, 0)
@sliced
def get_telemetry_subscriptions(
    context: HandlerContext, request: GetTelemetrySubscriptionsRequest
) -> Generator[None, None, GetTelemetrySubscriptionsResponse]:
    client_metrics = context.services.client_metrics
    instance_id = bytes(request.client_instance_id)
    if instance_id == ZERO_UUID:
        instance_id = client_metrics.new_instance_id()
    instance = yield from client_metrics.instance(instance_id, context)
    error = client_metrics.check_get(instance)
    if error:
        return GetTelemetrySubscriptionsResponse(error_code=error)
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=instance.wanted.subscription_id,
        accepted_compression_types=[int(each) for each in ACCEPTED_COMPRESSION_TYPES],
        push_interval_ms=instance.wanted.interval_ms,
        telemetry_max_bytes=client_metrics.payload_bytes_max,
        delta_temporality=True,
        requested_metrics=list(instance.wanted.metrics),
    )


@api(72, 0, 0)
@sliced
def push_telemetry(
    context: HandlerContext, request: PushTelemetryRequest
) -> Generator[None, None, PushTelemetryResponse | Outcome]:
    client_metrics = context.services.client_metrics
    instance_id = bytes(request.client_instance_id)
    if is_reserved(instance_id):
        return PushTelemetryResponse(error_code=ErrorCode.INVALID_REQUEST)
    instance = yield from client_metrics.instance(instance_id, context)
    error = client_metrics.check_push(
        instance,
        request.subscription_id,
        is_terminating=request.terminating,
        compression_type=request.compression_type,
        size=len(request.metrics),
    )
    if error:
        return PushTelemetryResponse(error_code=error)
    client_metrics.receive(
        instance,
        request.metrics,
        request.compression_type,
        lambda error: context.complete(PushTelemetryResponse(error_code=error)),
    )
    return PENDING
