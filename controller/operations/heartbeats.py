"""BrokerHeartbeat: the state that a broker asks for, and the state that it gets (KIP-631).

Fenced -> unfenced once it has caught up with its registration; unfenced -> controlled shutdown, in which others lead its
partitions; controlled shutdown -> fenced, once it leads nothing and every other broker has applied that. The sessions of the
active controller decide the latter: `may_shut_down`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from barnabas.controller.metadata.decision import ApiError, Steps
from barnabas.controller.metadata.image import BrokerRegistration, MetadataImage
from barnabas.controller.operations.brokers import fence, leave, unfence
from barnabas.controller.operations.cluster_view import check_broker_epoch, leads_any
from barnabas.controller.operations.directories import cordon, fail_directories
from barnabas.controller.operations.settings import ControllerSettings
from barnabas.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse


def heartbeat(
    image: MetadataImage,
    settings: ControllerSettings,
    request: BrokerHeartbeatRequest,
    *,
    may_shut_down: bool = False,
) -> Steps[BrokerHeartbeatResponse]:
    """`may_shut_down`: all other brokers have applied metadata in which this one leads nothing."""
    try:
        broker = check_broker_epoch(image, request.broker_id, request.broker_epoch)
    except ApiError as api_error:
        return BrokerHeartbeatResponse(error_code=api_error.error)
    response = BrokerHeartbeatResponse(
        is_caught_up=request.current_metadata_offset >= broker.broker_epoch, is_fenced=broker.fenced
    )
    yield from cordon(broker, request.cordoned_log_dirs)
    if not set(broker.log_dirs).isdisjoint(request.offline_log_dirs):  # the next heartbeat decides the rest
        yield from fail_directories(image, settings, broker, request.offline_log_dirs)
    else:
        yield from _transition(image, settings, broker, request, response, may_shut_down=may_shut_down)
    return response


def changes_nothing(image: MetadataImage, request: BrokerHeartbeatRequest) -> bool:
    """Whether the response to this heartbeat is only the current state, as for nearly all heartbeats."""
    broker = image.brokers.get(request.broker_id)
    return (
        broker is not None
        and broker.broker_epoch == request.broker_epoch
        and broker.is_active
        and not request.want_fence
        and not request.want_shut_down
        and not request.offline_log_dirs
        and (request.cordoned_log_dirs is None or request.cordoned_log_dirs == broker.cordoned_log_dirs)
    )


def _transition(
    image: MetadataImage,
    settings: ControllerSettings,
    broker: BrokerRegistration,
    request: BrokerHeartbeatRequest,
    response: BrokerHeartbeatResponse,
    *,
    may_shut_down: bool,
) -> Iterator[msgspec.Struct]:
    """The records of the broker's next state, which is also set in `response`."""
    if broker.fenced:
        if request.want_shut_down:
            response.should_shut_down = True
        elif not request.want_fence and response.is_caught_up:
            response.is_fenced = False
            yield from unfence(image, settings, broker)
        return
    if broker.in_controlled_shutdown:
        if may_shut_down and not leads_any(image, broker.broker_id):
            response.should_shut_down = response.is_fenced = True
            yield from fence(image, settings, broker.broker_id, broker.broker_epoch)
        return
    leads = leads_any(image, broker.broker_id) if request.want_shut_down else False
    if request.want_fence or (request.want_shut_down and not leads):
        response.should_shut_down = request.want_shut_down
        response.is_fenced = True
        yield from fence(image, settings, broker.broker_id, broker.broker_epoch)
    elif request.want_shut_down:
        yield from leave(image, settings, broker)
