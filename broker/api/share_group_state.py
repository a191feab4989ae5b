"""The share coordinator's APIs (KIP-932), from brokers: InitializeShareGroupState (83) version 0, ReadShareGroupState (84)
version 0, WriteShareGroupState (85) versions 0-1, DeleteShareGroupState (86) version 0, ReadShareGroupStateSummary (87)
versions 0-1.

v1 of 85 and 87 have the number of offsets whose delivery is complete. Each share partition that a request names gets a result
of its own. As in Kafka, a request without a group, without topics, or with a topic without partitions gets an empty response.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from barnabas.broker.requests.authorization import allows_cluster
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.sliced_handler import answer_in_slices, sliced
from barnabas.broker.services import HandlerContext
from barnabas.broker.share_coordinator.state import (
    TOO_MANY_WRITTEN,
    UNKNOWN_COUNT,
    WRITTEN_MAX,
    SharePartitionKey,
    ShareState,
    refusal,
)
from barnabas.broker.share_coordinator.state_batches import NO_START, STORED_STATES, StateBatch
from barnabas.controller.metadata.acls import Operation
from barnabas.controller.metadata.decision import ApiError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import delete_share_group_state as deleting
from barnabas.wire.messages import initialize_share_group_state as initializing
from barnabas.wire.messages import read_share_group_state as reading
from barnabas.wire.messages import read_share_group_state_summary as summarizing
from barnabas.wire.messages import write_share_group_state as writing

OFFSET_MAX: Final = (1 << 63) - 1  # no record has it: a start offset can be behind any

R = TypeVar("R")
Begin = Callable[[SharePartitionKey, Any, Callable[[R], object]], object]


@api(83, 0, 0)
@sliced
def initialize_share_group_state(
    context: HandlerContext, request: initializing.InitializeShareGroupStateRequest
) -> Generator[None, None, msgspec.Struct | Outcome]:
    coordinator = context.services.share_coordinator

    def begin(key: SharePartitionKey, asked: initializing.PartitionData, done: Callable[..., object]) -> None:
        coordinator.initialize(key, asked.state_epoch, asked.start_offset, done)

    return (
        yield from _serve(
            context,
            request,
            begin,
            initializing.PartitionResult,
            initializing.InitializeStateResult,
            initializing.InitializeShareGroupStateResponse,
        )
    )


@api(84, 0, 0)
@sliced
def read_share_group_state(
    context: HandlerContext, request: reading.ReadShareGroupStateRequest
) -> Generator[None, None, msgspec.Struct | Outcome]:
    coordinator = context.services.share_coordinator

    def begin(key: SharePartitionKey, asked: reading.PartitionData, done: Callable[..., object]) -> None:
        coordinator.read(key, asked.leader_epoch, done)

    return (
        yield from _serve(
            context,
            request,
            begin,
            _read_result,
            reading.ReadStateResult,
            reading.ReadShareGroupStateResponse,
        )
    )


@api(85, 0, 1)
@sliced
def write_share_group_state(
    context: HandlerContext, request: writing.WriteShareGroupStateRequest
) -> Generator[None, None, msgspec.Struct | Outcome]:
    coordinator = context.services.share_coordinator

    def begin(key: SharePartitionKey, asked: writing.PartitionData, done: Callable[..., object]) -> None:
        if len(asked.state_batches) > WRITTEN_MAX:
            done(TOO_MANY_WRITTEN)
            return
        if not all(map(_is_valid, asked.state_batches)):
            done(refusal(ErrorCode.INVALID_REQUEST))
            return
        batches = [
            StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
            for each in asked.state_batches
        ]
        coordinator.write(
            key,
            asked.state_epoch,
            asked.leader_epoch,
            asked.start_offset,
            asked.delivery_complete_count,
            batches,
            done,
        )

    return (
        yield from _serve(
            context,
            request,
            begin,
            writing.PartitionResult,
            writing.WriteStateResult,
            writing.WriteShareGroupStateResponse,
        )
    )


@api(86, 0, 0)
@sliced
def delete_share_group_state(
    context: HandlerContext, request: deleting.DeleteShareGroupStateRequest
) -> Generator[None, None, msgspec.Struct | Outcome]:
    coordinator = context.services.share_coordinator

    def begin(key: SharePartitionKey, _asked: deleting.PartitionData, done: Callable[..., object]) -> None:
        coordinator.delete(key, done)

    return (
        yield from _serve(
            context,
            request,
            begin,
            deleting.PartitionResult,
            deleting.DeleteStateResult,
            deleting.DeleteShareGroupStateResponse,
        )
    )


@api(87, 0, 1)
@sliced
def read_share_group_state_summary(
    context: HandlerContext, request: summarizing.ReadShareGroupStateSummaryRequest
) -> Generator[None, None, msgspec.Struct | Outcome]:
    coordinator = context.services.share_coordinator

    def begin(key: SharePartitionKey, _asked: summarizing.PartitionData, done: Callable[..., object]) -> None:
        coordinator.summary_of(key, done)

    return (
        yield from _serve(
            context,
            request,
            begin,
            _summary_result,
            summarizing.ReadStateSummaryResult,
            summarizing.ReadShareGroupStateSummaryResponse,
        )
    )


def _read_result(
    partition: int, error: ErrorCode, message: str | None, state: ShareState | None = None
) -> reading.PartitionResult:
    if state is None:
        return reading.PartitionResult(partition, error, message, 0, 0, [])
    batches = [
        reading.StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
        for each in state.batches
    ]
    return reading.PartitionResult(partition, error, message, state.state_epoch, state.start_offset, batches)


def _summary_result(
    partition: int, error: ErrorCode, message: str | None, state: ShareState | None = None
) -> summarizing.PartitionResult:
    if state is None:
        start, count = (0, UNKNOWN_COUNT) if error else (NO_START, UNKNOWN_COUNT)
        return summarizing.PartitionResult(partition, error, message, 0, 0, start, count)
    return summarizing.PartitionResult(
        partition,
        error,
        message,
        state.state_epoch,
        state.leader_epoch,
        state.start_offset,
        state.delivery_complete_count,
    )


def _is_valid(batch: writing.StateBatch) -> bool:
    return (
        0 <= batch.first_offset <= batch.last_offset < OFFSET_MAX
        and batch.delivery_state in STORED_STATES
        and batch.delivery_count >= 0
    )


def _serve(
    context: HandlerContext,
    request: Any,
    begin: Begin[Any],
    make_result: Callable[..., Any],
    make_topic: Callable[[bytes, list[Any]], Any],
    make_response: Callable[[list[Any]], msgspec.Struct],
) -> Generator[None, None, msgspec.Struct | Outcome]:
    """Have `begin(key, partition of the request, done)` ask for each share partition; respond when all are done, with
    make_result(partition, error, message[, state]) of each. `done` takes an ApiError, a state or None."""
    may_ask = allows_cluster(context, Operation.CLUSTER_ACTION)
    if not request.group_id or not request.topics or not all(topic.partitions for topic in request.topics):
        return make_response([])
    found: dict[bytes, dict[int, Any]] = {}
    missing = 1  # and 1 more until all are begun

    def done(topic_id: bytes, partition: int, answer: Any) -> None:
        nonlocal missing
        if isinstance(answer, ApiError):
            result = make_result(partition, answer.error, answer.message)
        elif answer is None:
            result = make_result(partition, ErrorCode.NONE, None)
        else:
            result = make_result(partition, ErrorCode.NONE, None, answer)
        found[topic_id][partition] = result
        missing -= 1
        if not missing:
            answer_in_slices(context, respond())

    def respond() -> Generator[None, None, msgspec.Struct]:
        topics = []
        for topic_id, results in found.items():
            topics.append(make_topic(topic_id, list(results.values())))
            yield from _steps(results)
        return make_response(topics)

    for topic in request.topics:
        of_topic = found.setdefault(topic.topic_id, {})
        for asked in topic.partitions:
            if asked.partition in of_topic:
                continue  # a repetition
            of_topic[asked.partition] = None
            missing += 1
            answered = partial(done, topic.topic_id, asked.partition)
            if may_ask:
                begin(SharePartitionKey(request.group_id, topic.topic_id, asked.partition), asked, answered)
            else:
                answered(refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
            yield
    missing -= 1
    if missing:
        return PENDING
    return (yield from respond())


def _steps(results: dict[int, Any]) -> Iterator[None]:
    for _ in results:
        yield
