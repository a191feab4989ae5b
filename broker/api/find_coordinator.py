"""FindCoordinator (10), versions 0-6: which broker coordinates a group or a transactional id.

v1 key types; v4 several keys at once (KIP-699); v5 and v6 as v4 (v6 admits share keys, KIP-932). The first request for a
group creates __consumer_offsets, that for a transactional id __transaction_state; it is answered when the partitions have leaders.
That for a share partition (v6, from brokers) creates __share_group_state. A coordinator that is fenced or lacks the request's
listener is not available.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from barnabas.broker.cluster.metadata_view import MetadataView
from barnabas.broker.requests.authorization import allows_cluster, allows_group, allows_transactional_id
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import answer_in_slices, collect, sliced
from barnabas.broker.services import HandlerContext
from barnabas.broker.share_coordinator.state import SharePartitionKey
from barnabas.controller.metadata.acls import Operation
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

GROUP, TRANSACTION, SHARE = 0, 1, 2
SHARE_SINCE = 6  # the first version that knows share partitions

Found = tuple[ErrorCode, int]  # the coordinator's node id
NOT_FOUND_YET: Found = (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)


@api(10, 0, 6)
@sliced
def find_coordinator(
    context: HandlerContext, request: FindCoordinatorRequest
) -> Generator[None, None, FindCoordinatorResponse | Outcome]:
    keys = request.coordinator_keys if context.api_version >= 4 else [request.key]
    found = [NOT_FOUND_YET] * len(keys)
    missing = len(keys)

    def add(index: int, error: ErrorCode, node_id: int) -> None:
        nonlocal missing
        found[index] = error, node_id
        missing -= 1
        if not missing:
            answer_in_slices(context, _answer(context, request.key_type, keys, found))

    if not keys:
        return FindCoordinatorResponse()
    services = context.services
    topics = {GROUP: services.groups.topic, TRANSACTION: services.transactions.topic}
    if context.api_version >= SHARE_SINCE:
        topics[SHARE] = services.share_coordinator.topic
    topic = topics.get(request.key_type)
    is_refused = request.key_type == SHARE and not allows_cluster(context, Operation.CLUSTER_ACTION)
    for index, key in enumerate(keys):
        if is_refused:
            add(index, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, -1)
        elif request.key_type == GROUP and not allows_group(context, Operation.DESCRIBE, key):
            add(index, ErrorCode.GROUP_AUTHORIZATION_FAILED, -1)
        elif request.key_type == TRANSACTION and not allows_transactional_id(
            context, Operation.DESCRIBE, key
        ):
            add(index, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)
        elif topic is None or (request.key_type == SHARE and not _is_share_key(key)):
            add(index, ErrorCode.INVALID_REQUEST, -1)
        else:
            topic.find(key, partial(add, index))
        yield
    return PENDING


def _is_share_key(key: str) -> bool:
    try:
        SharePartitionKey.parse(key)
    except ValueError:
        return False
    return True


def _answer(
    context: HandlerContext, key_type: int, keys: list[str], found: list[Found]
) -> Generator[None, None, FindCoordinatorResponse]:
    view = context.services.metadata_view(context.listener)
    named = zip(keys, found, strict=True)
    coordinators = yield from collect(lambda each: _coordinator(view, each[0], *each[1]), named)
    return _response(context.api_version, key_type, coordinators)


def _coordinator(view: MetadataView, key: str, error: ErrorCode, node_id: int) -> Coordinator:
    broker = None if error else view.alive(node_id)
    if broker is None:
        error = error or ErrorCode.COORDINATOR_NOT_AVAILABLE
        return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error)
    return Coordinator(key=key, node_id=node_id, host=broker.host, port=broker.port)


def _response(version: int, key_type: int, coordinators: list[Coordinator]) -> FindCoordinatorResponse:
    if version >= 4:
        for coordinator in coordinators:
            # As Kafka: for these alone there is a text.
            if (
                key_type not in (GROUP, TRANSACTION, SHARE)
                or coordinator.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            ):
                coordinator.error_message = ErrorCode(coordinator.error_code).message
        return FindCoordinatorResponse(coordinators=coordinators)
    first = coordinators[0]
    error = ErrorCode(first.error_code)
    message = error.message if error else "NONE"  # as Kafka prints success here
    return FindCoordinatorResponse(
        error_code=error,
        error_message=message,
        node_id=first.node_id,
        host=first.host,
        port=first.port,
    )
