"""Fences requests by broker epoch."""

from __future__ import annotations

from barnabas.controller.metadata.decision import ApiError
from barnabas.controller.metadata.image import BrokerRegistration, MetadataImage
from barnabas.wire.errors import ErrorCode


def check_broker_epoch(image: MetadataImage, broker_id: int, broker_epoch: int) -> BrokerRegistration:
    """The broker registered in this epoch. ApiError: STALE_BROKER_EPOCH."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise ApiError(
            ErrorCode.STALE_BROKER_EPOCH, f"No broker registration found for broker id {broker_id}"
        )
    if broker.broker_epoch != broker_epoch:
        raise ApiError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"Expected broker epoch {broker.broker_epoch}, but got broker epoch {broker_epoch}",
        )
    return broker
