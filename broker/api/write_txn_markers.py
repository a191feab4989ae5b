"""WriteTxnMarkers (27), versions 1-2: end transactions in the partitions that this broker leads.

v2 the transaction version (KIP-1228), 0 before it. Sent by transaction coordinators, and by an admin client that aborts a
hanging transaction (KIP-664). A marker for a partition of __consumer_offsets goes through the group coordinator. The response
waits until every marker is replicated, at most for request.timeout.ms; markers of one producer share one result.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Final

from barnabas.broker.coordinator.log import Marker
from barnabas.broker.requests.authorization import allows_cluster
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import answer_in_slices, sliced
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
from barnabas.controller.operations.internal_topics import GROUP_METADATA_TOPIC
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from barnabas.runtime.interface import Timer

    # By partition index; REQUEST_TIMED_OUT until the marker is replicated
    TopicResults = dict[int, WritableTxnMarkerPartitionResult]

# The coordinator of the transaction knows these as errors of a leader, and sends the marker again.
_GROUP_ERRORS: Final = dict.fromkeys(
    (
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    ),
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)


@api(27, 1, 2)
@sliced
def write_txn_markers(
    context: HandlerContext, request: WriteTxnMarkersRequest
) -> Generator[None, None, WriteTxnMarkersResponse | Outcome]:
    may_write = allows_cluster(context, Operation.ALTER, silent=True) or allows_cluster(
        context, Operation.CLUSTER_ACTION
    )
    waiting = _WaitingMarkers(context)
    for marker in request.markers:
        for topic, indexes in _partitions(marker).items():
            results = waiting.results_of(marker.producer_id, topic)
            for index in indexes:
                result = results[index] = WritableTxnMarkerPartitionResult(index, ErrorCode.REQUEST_TIMED_OUT)
                if may_write:
                    waiting.append(marker, topic, result)
                else:
                    result.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                yield
            yield
        yield
    return (yield from waiting.all_appended())


def _partitions(marker: WritableTxnMarker) -> dict[str, dict[int, None]]:
    """Without repetitions, in their order."""
    by_topic: dict[str, dict[int, None]] = {}
    for topic in marker.topics:
        by_topic.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return by_topic


class _WaitingMarkers:
    """The markers of one request, and their results as they arrive."""

    def __init__(self, context: HandlerContext) -> None:
        self._context = context
        self._results: dict[int, dict[str, TopicResults]] = {}  # by producer id and topic
        self._missing = 1  # of markers that are appended and not replicated; 1 more until all are appended
        self._is_over = False
        self._timer: Timer | None = None

    def results_of(self, producer_id: int, topic: str) -> TopicResults:
        return self._results.setdefault(producer_id, {}).setdefault(topic, {})

    def append(self, marker: WritableTxnMarker, topic: str, result: WritableTxnMarkerPartitionResult) -> None:
        """Append one marker."""
        self._missing += 1
        index = result.partition_index
        done = partial(self._done, result)
        partition = self._context.services.partitions.get(topic, index)
        if partition is None or partition.log.offline:
            done(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif marker.producer_id < 0 or marker.producer_epoch < 0:
            done(ErrorCode.UNKNOWN_SERVER_ERROR)
        elif topic == GROUP_METADATA_TOPIC:
            of_group = Marker(
                marker.producer_id,
                marker.producer_epoch,
                marker.transaction_result,
                marker.coordinator_epoch,
                marker.transaction_version,
            )
            self._context.services.groups.end_transaction(
                index, of_group, lambda error: done(_GROUP_ERRORS.get(error, error))
            )
        else:
            partition.append_marker(
                marker.producer_id,
                marker.producer_epoch,
                commit=marker.transaction_result,
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.transaction_version,
                done=done,
            )

    def all_appended(self) -> Generator[None, None, WriteTxnMarkersResponse | Outcome]:
        """The response, or PENDING while markers are not replicated."""
        self._missing -= 1
        if not self._missing:
            return (yield from self._response())
        timeout_s = self._context.services.config.request_timeout_ms / 1000
        self._timer = self._context.services.runtime.call_later(timeout_s, self._answer)
        return PENDING

    def _done(self, result: WritableTxnMarkerPartitionResult, error: ErrorCode) -> None:
        if self._is_over:
            return
        result.error_code = error
        self._missing -= 1
        if not self._missing:
            self._answer()

    def _answer(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        answer_in_slices(self._context, self._response())

    def _response(self) -> Generator[None, None, WriteTxnMarkersResponse]:
        markers = []
        for producer_id, topics in self._results.items():
            result = WritableTxnMarkerResult(producer_id, [])
            markers.append(result)
            for topic, results in topics.items():
                result.topics.append(WritableTxnMarkerTopicResult(topic, list(results.values())))
                yield from repeat(None, len(results))  # a step for each, as they are encoded, too
                yield
            yield
        return WriteTxnMarkersResponse(markers)
