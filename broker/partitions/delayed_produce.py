"""Delayed answers to produce requests: an answer leaves once the batches that it acknowledges are as durable as requested.

It may wait for other replicas (acks=all), at most for the timeout of the request, for a sync (flush.messages), or for a disk
that is behind.
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
    """The parts of Services (services.py) that the answer to a produce needs."""

    runtime: Runtime


_WITHOUT_LOG_START: Final = frozenset(  # errors that Kafka answers without the log start offset
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
    """The answer for a batch that was refused."""
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
    """The answer to a produce request while it waits: `wait_for` each batch, then `begin`."""

    __slots__ = ("_context", "_for_replicas", "_missing", "_response", "_timer", "_waits")

    def __init__(self, context: RequestContext[ProduceServices]) -> None:
        self._context = context
        self._response: ProduceResponse | Outcome = PENDING
        self._waits: list[Callable[[], object]] = []  # each registers a callback
        self._missing: dict[
            int, PartitionProduceResponse
        ] = {}  # answers to batches not yet durable, by identity
        self._for_replicas = 0  # how many of them wait for replicas
        self._timer: Timer | None = None

    def __bool__(self) -> bool:
        """Whether the answer has to wait."""
        return bool(self._waits)

    def wait_for(
        self, partition: Partition, result: AppendResult, answer: PartitionProduceResponse, acks: int
    ) -> None:
        """Let the answer wait for a batch, if it has to. Without acknowledgements (acks=0) the connection still waits for a disk
        that is behind, as nothing else slows such a producer down."""
        end_offset = result.last_offset + 1
        if result.awaits_commit and acks == ACKS_ALL:  # then it is synced here as well
            self._for_replicas += 1
            self._add(answer, partial(partition.when_committed, end_offset, partial(self._done, answer)))
        elif result.awaits_sync and acks:
            self._add(
                answer, partial(partition.log.flusher.when_synced, end_offset, partial(self._stored, answer))
            )
        elif result.awaits_write_back:
            self._add(answer, partial(partition.log.when_written_back, partial(self._stored, answer)))

    def _add(self, answer: PartitionProduceResponse, wait: Callable[[], object]) -> None:
        self._waits.append(wait)
        self._missing[id(answer)] = answer

    def begin(self, response: ProduceResponse | Outcome, timeout_ms: int) -> Outcome:
        """Send the response when all batches are durable; for replicas it waits at most `timeout_ms`. Returns PENDING."""
        context, self._response = self._context, response
        for wait in self._waits:
            wait()
        if self._missing and self._for_replicas:
            self._timer = context.services.runtime.call_later(max(timeout_ms, 0) / 1000, self._timed_out)
            if self._for_replicas == len(self._waits):
                context.allow_pipelined_produces()
        return PENDING

    def _stored(self, answer: PartitionProduceResponse, failure: str | None) -> None:
        error = ErrorCode.NONE if failure is None else ErrorCode.KAFKA_STORAGE_ERROR
        self._done(answer, error, failure)

    def _done(self, answer: PartitionProduceResponse, error: ErrorCode, message: str | None = None) -> None:
        if self._missing.pop(id(answer), None) is None:
            return  # timed out
        if error:
            answer.error_code = error
            answer.error_message = message
            if error == ErrorCode.KAFKA_STORAGE_ERROR:
                answer.base_offset = answer.log_start_offset = answer.log_append_time_ms = -1
            if isinstance(self._response, Outcome):
                self._response = CLOSE_CONNECTION
        if not self._missing:
            self._complete()

    def _timed_out(self) -> None:
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
    """Add the current leaders of partitions that are not led here, and their addresses (KIP-951)."""
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
