"""What producers are answered, and when: an answer leaves once all that it acknowledges is as safe as was asked for.

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
    from barnabas.storage.log.log import AppendResult, Log

# Calls back with what has gone wrong: an error code, and what there is to say about it
Due = Callable[[ErrorCode, str | None], object]
# (calls back then, what to answer then, whether other replicas are what it waits for)
Held = tuple[Callable[[Due], object], PartitionProduceResponse, bool]
LEADERS_FROM = 10  # the first version whose answers say who leads instead (KIP-951)


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


def hold(
    partition: Partition, result: AppendResult, answer: PartitionProduceResponse, acks: int, held: list[Held]
) -> None:
    """Note what the acknowledgement waits for. Without one (acks=0) the connection still waits for a disk that is
    behind, as nothing else slows such a producer down."""
    log = partition.log
    if result.awaits_commit and acks == ACKS_ALL:  # which says that it has been synced here as well
        held.append((partial(_when_committed, partition, result.last_offset + 1), answer, True))
    elif result.awaits_sync and acks:
        held.append((partial(_when_synced, log, result.last_offset + 1), answer, False))
    if result.awaits_write_back and (not held or held[-1][1] is not answer):
        held.append((partial(_when_written_back, log), answer, False))


def _when_committed(partition: Partition, end_offset: int, due: Due) -> None:
    partition.when_committed(end_offset, lambda error: due(error, None))


def _when_synced(log: Log, end_offset: int, due: Due) -> None:
    log.when_synced(end_offset, partial(_synced, due))


def _when_written_back(log: Log, due: Due) -> None:
    log.when_written_back(partial(_synced, due))


def _synced(due: Due, failure: str | None) -> None:
    due(ErrorCode.NONE if failure is None else ErrorCode.KAFKA_STORAGE_ERROR, failure)


def when_due(
    context: RequestContext[ProduceServices],
    response: ProduceResponse | Outcome,
    held: list[Held],
    timeout_ms: int,
) -> Outcome:
    """The answer leaves once all that it acknowledges has been committed by the replicas, synced (flush.messages), or
    written back by a disk that is behind; meanwhile the connection's next request waits."""
    missing = {id(answer): answer for _, answer, _ in held}
    timer: Timer | None = None

    def due(answer: PartitionProduceResponse, error: ErrorCode, message: str | None) -> None:
        nonlocal response
        if missing.pop(id(answer), None) is None:
            return  # too late
        if error:
            answer.error_code = error
            answer.error_message = message
            if error == ErrorCode.KAFKA_STORAGE_ERROR:
                answer.base_offset = answer.log_start_offset = answer.log_append_time_ms = -1
            if isinstance(response, Outcome):
                response = CLOSE_CONNECTION
        if not missing:
            complete()

    def time_is_up() -> None:
        for answer in missing.values():
            answer.error_code = ErrorCode.REQUEST_TIMED_OUT
        missing.clear()
        complete()

    def complete() -> None:
        if timer is not None:
            timer.cancel()
        if isinstance(response, ProduceResponse):
            tell_leaders(context, response)
        context.complete(response)

    for when, answer, _ in held:
        when(partial(due, answer))
    if missing and any(of_replicas for _, _, of_replicas in held):
        timer = context.services.runtime.call_later(max(timeout_ms, 0) / 1000, time_is_up)
        if all(of_replicas for _, _, of_replicas in held):
            context.allow_pipelined_produces()
    return PENDING


def tell_leaders(context: RequestContext[ProduceServices], response: ProduceResponse) -> None:
    """Where this broker does not lead: who does, and where it is found (KIP-951)."""
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
