"""What producers are answered, and when: an answer leaves once all that it acknowledges is as safe as was asked for.

It may wait for other replicas (acks=all), for a sync (flush.messages), or for a disk that is behind; for the replicas not
longer than the request allows. `CommitWait` is the short way of the most frequent wait: one batch, for its replicas alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from barnabas.broker.partitions.current_leaders import LeaderServices, addresses, current_leader
from barnabas.broker.partitions.partition import ACKS_ALL
from barnabas.broker.requests.context import CLOSE_CONNECTION, PENDING, Outcome, RawResponse
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.produce import (
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
    from barnabas.storage.log.log import AppendResult, Log

# Calls back with what has gone wrong: an error code, and what there is to say about it
Due = Callable[[ErrorCode, str | None], object]
# (calls back then, what to answer then, whether other replicas are what it waits for)
Held = tuple[Callable[[Due], object], PartitionProduceResponse, bool]
LEADERS_FROM = 10  # the first version whose answers say who leads instead (KIP-951)


class ProduceServices(LeaderServices, Protocol):
    """What the answer to a produce is made from."""

    runtime: Runtime


def one_answer(partition: Partition, answer: PartitionProduceResponse) -> ProduceResponse:
    return ProduceResponse([TopicProduceResponse(partition.topic, partition.topic_id, [answer])])


def appended_answer(index: int, result: AppendResult) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index, ErrorCode.NONE, result.base_offset, result.log_append_time, result.log_start_offset
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


class CommitWait:
    """The wait of one batch for its replicas, with the answer packed already: `body`, for when all goes well."""

    __slots__ = ("_body", "_context", "_partition", "_result", "_timer")

    def __init__(
        self,
        context: RequestContext[ProduceServices],
        partition: Partition,
        result: AppendResult,
        body: bytes,
    ) -> None:
        self._context = context
        self._partition = partition
        self._result = result
        self._body = body
        self._timer: Timer | None = None

    def begin(self, timeout_ms: int) -> Outcome:
        """PENDING: the answer comes when all replicas in sync have the batch, or the time is up."""
        context = self._context
        self._timer = context.services.runtime.call_later(max(timeout_ms, 0) / 1000, self._time_is_up)
        context.allow_pipelined_produces()
        self._partition.when_committed(self._result.last_offset + 1, self._committed)
        return PENDING

    def _committed(self, error: ErrorCode) -> None:
        timer, self._timer = self._timer, None
        if timer is None:
            return  # too late
        timer.cancel()
        if error:
            self._fail(error)
        else:
            self._context.complete(RawResponse(self._body))

    def _time_is_up(self) -> None:
        self._timer = None
        self._fail(ErrorCode.REQUEST_TIMED_OUT)

    def _fail(self, error: ErrorCode) -> None:
        answer = appended_answer(self._partition.partition, self._result)
        answer.error_code = error
        if error == ErrorCode.KAFKA_STORAGE_ERROR:
            answer.base_offset = answer.log_start_offset = answer.log_append_time_ms = -1
        response = one_answer(self._partition, answer)
        tell_leaders(self._context, response)
        self._context.complete(response)


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
            for address in addresses(context, leaders)
        ]
