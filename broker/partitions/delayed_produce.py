"""Answers to produces, and what they wait for: an answer leaves once all that it acknowledges is as durable as requested.

It may wait for other replicas (acks=all), for a sync (flush.messages), or for a disk that is behind; for the replicas not
longer than the request allows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.broker.partitions.current_leaders import LeaderServices, current_leader, leader_addresses
from barnabas.broker.partitions.partition import ACKS_ALL
from barnabas.broker.requests.context import CLOSE_CONNECTION, PENDING, Outcome
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)

if TYPE_CHECKING:
    from barnabas.broker.partitions.partition import Partition
    from barnabas.broker.requests.context import RequestContext
    from barnabas.runtime.interface import Runtime, Timer
    from barnabas.storage.errors import StorageError
    from barnabas.storage.log.log import AppendResult

LEADERS_FROM = 10  # the first version whose answers name the current leader (KIP-951)


class ProduceServices(LeaderServices, Protocol):
    """What the answer to a produce is made from."""

    runtime: Runtime


_WITHOUT_LOG_START: Final = frozenset(  # failures that Kafka answers without the log's start
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
    }
)


def one_answer(partition: Partition, answer: PartitionProduceResponse) -> ProduceResponse:
    return ProduceResponse([TopicProduceResponse(partition.topic, partition.topic_id, [answer])])


def appended_answer(index: int, result: AppendResult) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index, ErrorCode.NONE, result.base_offset, result.log_append_time, result.log_start_offset
    )


def failed_answer(index: int, partition: Partition, error: StorageError) -> PartitionProduceResponse:
    """The answer for a batch that the partition does not take."""
    if error.error == ErrorCode.NOT_LEADER_OR_FOLLOWER:
        return PartitionProduceResponse(index=index, error_code=error.error, base_offset=-1)
    return PartitionProduceResponse(
        index=index,
        error_code=error.error,
        base_offset=-1,
        log_start_offset=-1 if error.error in _WITHOUT_LOG_START else partition.log.log_start_offset,
        record_errors=[
            BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=message)
            for at, message in error.record_errors
        ],
        error_message=str(error),
    )


class DelayedProduce:
    """The answer to one produce request, for as long as something that it acknowledges is awaited: `wait_for` each batch, then
    `begin`."""

    __slots__ = ("_context", "_for_replicas", "_missing", "_response", "_timer", "_waits")

    _context: RequestContext[ProduceServices]
    _response: ProduceResponse | Outcome

    def __init__(self) -> None:
        self._waits: list[Callable[[], object]] = []  # each begins to wait
        self._missing: dict[
            int, PartitionProduceResponse
        ] = {}  # by identity: answers to batches that are awaited
        self._for_replicas = 0  # how many of them
        self._timer: Timer | None = None

    def __bool__(self) -> bool:
        """Whether anything is awaited."""
        return bool(self._waits)

    def wait_for(
        self, partition: Partition, result: AppendResult, answer: PartitionProduceResponse, acks: int
    ) -> None:
        """What the acknowledgement of a batch waits for. Without one (acks=0) the connection still waits for a disk that is
        behind, as nothing else slows such a producer down."""
        end_offset = result.last_offset + 1
        if result.awaits_commit and acks == ACKS_ALL:  # then it is synced here as well
            self._for_replicas += 1
            self._add(answer, partial(partition.when_committed, end_offset, partial(self._done, answer)))
        elif result.awaits_sync and acks:
            self._add(answer, partial(partition.log.when_synced, end_offset, partial(self._stored, answer)))
        elif result.awaits_write_back:
            self._add(answer, partial(partition.log.when_written_back, partial(self._stored, answer)))

    def _add(self, answer: PartitionProduceResponse, wait: Callable[[], object]) -> None:
        self._waits.append(wait)
        self._missing[id(answer)] = answer

    def begin(
        self,
        context: RequestContext[ProduceServices],
        response: ProduceResponse | Outcome,
        timeout_ms: int,
    ) -> Outcome:
        """PENDING. The response leaves once everything is committed by the replicas, synced (flush.messages), or written back
        by a disk that is behind; for replicas it waits no longer than `timeout_ms`."""
        self._context, self._response = context, response
        for wait in self._waits:
            wait()
        if self._missing and self._for_replicas:
            self._timer = context.services.runtime.call_later(max(timeout_ms, 0) / 1000, self._time_is_up)
            if self._for_replicas == len(self._waits):
                context.allow_pipelined_produces()
        return PENDING

    def _stored(self, answer: PartitionProduceResponse, failure: str | None) -> None:
        error = ErrorCode.NONE if failure is None else ErrorCode.KAFKA_STORAGE_ERROR
        self._done(answer, error, failure)

    def _done(self, answer: PartitionProduceResponse, error: ErrorCode, message: str | None = None) -> None:
        if self._missing.pop(id(answer), None) is None:
            return  # the time was up
        if error:
            answer.error_code = error
            answer.error_message = message
            if error == ErrorCode.KAFKA_STORAGE_ERROR:
                answer.base_offset = answer.log_start_offset = answer.log_append_time_ms = -1
            if isinstance(self._response, Outcome):
                self._response = CLOSE_CONNECTION
        if not self._missing:
            self._complete()

    def _time_is_up(self) -> None:
        for answer in self._missing.values():
            answer.error_code = ErrorCode.REQUEST_TIMED_OUT
        self._missing.clear()
        self._complete()

    def _complete(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if isinstance(self._response, ProduceResponse):
            add_current_leaders(self._context, self._response)
        self._context.complete(self._response)


def add_current_leaders(context: RequestContext[ProduceServices], response: ProduceResponse) -> None:
    """Where this broker does not lead: add the current leaders and their addresses (KIP-951)."""
    if context.api_version < LEADERS_FROM:
        return
    leaders = []
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                leader_id, epoch = current_leader(context, topic.name, topic.topic_id, answer.index)
                answer.current_leader = LeaderIdAndEpoch(leader_id, epoch)
                leaders.append(leader_id)
    if leaders:
        response.node_endpoints = [
            NodeEndpoint(address.broker_id, address.host, address.port, address.rack)
            for address in leader_addresses(context, leaders)
        ]
