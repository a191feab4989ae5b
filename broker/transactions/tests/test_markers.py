"""The sender of transaction markers, with brokers that answer what the test says."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.cluster.peer_client import SMALL_ANSWER_BYTES
from barnabas.broker.requests.large_requests import BODY_BYTES_MAX
from barnabas.broker.transactions.markers import (
    REQUEST_PARTITIONS_MAX,
    REQUESTS_MAX,
    RETRY_MAX_S,
    TransactionMarkerSender,
)
from barnabas.broker.transactions.tests.scripted_brokers import Asked, ScriptedBrokers, image_of
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from barnabas.wire.registry import request_type, response_type
from compat_tests.virtual.runtime import VirtualRuntime

if TYPE_CHECKING:
    import msgspec

    from barnabas.wire.message_type import MessageType

RETRIABLE = [
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_SERVER_ERROR,
]


class World:
    """A sender, and scripted brokers 1 and 2: a-0 and b-0 are led by 1, a-1 by 2."""

    def __init__(self) -> None:
        self.runtime = VirtualRuntime()
        self.brokers = ScriptedBrokers()
        self.leaders = {("a", 0): 1, ("a", 1): 2, ("b", 0): 1}
        self.registered = {1, 2}
        self.sender = TransactionMarkerSender(
            self.runtime, self.brokers.ask, lambda: image_of(self.leaders, self.registered)
        )
        self.done: dict[int, list[tuple[str, int]]] = {}
        self.fenced: list[int] = []

    def send(self, producer_id: int, *partitions: tuple[str, int], shard: int = 7, **changes: Any) -> None:
        done = self.done.setdefault(producer_id, [])
        fields: dict[str, Any] = {"commit": True, "transaction_version": 2, **changes}
        self.sender.send(
            shard,
            3,
            f"id-{producer_id}",
            producer_id,
            5,
            partitions=partitions,
            written=done.extend,
            fenced=lambda: self.fenced.append(producer_id),
            **fields,
        )

    def requests(self) -> list[Asked]:
        self.runtime.run_until_idle()
        return self.brokers.take()

    def later(self) -> list[Asked]:
        """The requests once what failed is due again."""
        self.runtime.advance(RETRY_MAX_S)
        return self.brokers.take()


def marked(asked: Asked) -> dict[int, list[tuple[str, int]]]:
    """Partitions of a request by producer id."""
    return {
        marker.producer_id: [
            (topic.name, index) for topic in marker.topics for index in topic.partition_indexes
        ]
        for marker in asked.request.markers
    }


def answer(asked: Asked, **errors: ErrorCode) -> None:
    """Answer with NONE, or with the error of a partition: `a_0=error`."""
    asked.answer(
        WriteTxnMarkersResponse(
            [
                WritableTxnMarkerResult(
                    marker.producer_id,
                    [
                        WritableTxnMarkerTopicResult(
                            topic.name,
                            [
                                WritableTxnMarkerPartitionResult(
                                    index, errors.get(f"{topic.name}_{index}", ErrorCode.NONE)
                                )
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in reversed(asked.request.markers)
            ]
        )
    )


def encoded_bytes(kind: MessageType[Any], message: msgspec.Struct) -> int:
    return sum(map(len, kind.encode(2, message)))


def test_markers_for_one_broker_travel_together() -> None:
    world = World()
    world.send(10, ("a", 0), ("a", 1), ("b", 0))
    world.send(11, ("b", 0), shard=8, commit=False, transaction_version=0)
    first, second = world.requests()
    assert (first.node_id, first.api_key, first.version) == (1, 27, 2)
    assert marked(first) == {10: [("a", 0), ("b", 0)], 11: [("b", 0)]}
    assert (second.node_id, marked(second)) == (2, {10: [("a", 1)]})
    markers = first.request.markers
    assert [each.transaction_result for each in markers] == [True, False]
    assert [each.transaction_version for each in markers] == [2, 0]
    assert {(each.producer_epoch, each.coordinator_epoch) for each in markers} == {(5, 3)}
    answer(first)
    answer(second)
    assert {pid: set(done) for pid, done in world.done.items()} == {
        10: {("a", 0), ("a", 1), ("b", 0)},
        11: {("b", 0)},
    }
    assert not world.later()


@pytest.mark.parametrize("error", RETRIABLE)
def test_a_marker_that_was_not_written_is_sent_again_to_the_leader_of_that_time(error: ErrorCode) -> None:
    world = World()
    world.send(10, ("a", 0), ("b", 0))
    [asked] = world.requests()
    answer(asked, a_0=error)
    assert world.done[10] == [("b", 0)]
    world.leaders["a", 0] = 2
    [again] = world.later()
    assert (again.node_id, marked(again)) == (2, {10: [("a", 0)]})
    answer(again)
    assert world.done[10] == [("b", 0), ("a", 0)]
    assert not world.fenced


def test_retries_go_on_for_ever_with_longer_pauses() -> None:
    world = World()
    world.send(10, ("a", 0))
    requests = world.requests()
    for _ in range(30):
        [asked] = requests
        answer(asked, a_0=ErrorCode.NOT_ENOUGH_REPLICAS)
        assert not world.requests()
        requests = world.later()
    answer(requests[0])
    assert world.done[10] == [("a", 0)]


def test_a_request_without_an_answer_is_sent_again() -> None:
    world = World()
    world.send(10, ("a", 0))
    [asked] = world.requests()
    asked.fail(ErrorCode.NETWORK_EXCEPTION)
    [again] = world.later()
    assert marked(again) == marked(asked)


def test_a_partition_that_is_missing_from_the_answer_is_sent_again() -> None:
    world = World()
    world.send(10, ("a", 0), ("b", 0))
    [asked] = world.requests()
    asked.answer(WriteTxnMarkersResponse([]))
    [again] = world.later()
    assert marked(again) == marked(asked)


@pytest.mark.parametrize("error", [ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION])
def test_a_partition_that_cannot_hold_markers_needs_none(error: ErrorCode) -> None:
    world = World()
    world.send(10, ("a", 0))
    [asked] = world.requests()
    answer(asked, a_0=error)
    assert world.done[10] == [("a", 0)]
    assert not world.later()


def test_a_partition_with_a_higher_epoch_needs_no_marker_and_the_others_get_theirs() -> None:
    world = World()
    world.send(10, ("a", 0), ("b", 0), ("a", 1))
    to_first, to_second = world.requests()
    answer(to_first, a_0=ErrorCode.INVALID_PRODUCER_EPOCH, b_0=ErrorCode.NOT_ENOUGH_REPLICAS)
    assert world.done[10] == [("a", 0)]
    answer(to_second)
    [again] = world.later()
    assert marked(again) == {10: [("b", 0)]}
    answer(again)
    assert world.done[10] == [("a", 0), ("a", 1), ("b", 0)]
    assert not world.fenced
    assert not world.later()


def test_a_newer_coordinator_sends_the_markers_itself() -> None:
    world = World()
    error = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    world.send(10, ("a", 0), ("b", 0), ("a", 1))
    to_first, to_second = world.requests()
    answer(to_second, a_1=ErrorCode.NOT_ENOUGH_REPLICAS)
    answer(to_first, a_0=error, b_0=error)
    assert world.fenced == [10]
    assert not world.done[10]
    assert not world.later()


def test_a_deleted_partition_needs_no_marker() -> None:
    world = World()
    world.send(10, ("a", 0), ("gone", 0), ("b", 9))
    assert set(world.done[10]) == {("gone", 0), ("b", 9)}
    [asked] = world.requests()
    del world.leaders["a", 0]
    answer(asked, a_0=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert not world.later()
    assert ("a", 0) in world.done[10]


def test_a_partition_without_a_leader_waits_for_the_metadata() -> None:
    world = World()
    world.leaders["a", 0] = -1
    world.registered.remove(2)
    world.send(10, ("a", 0), ("a", 1))
    assert not world.later()
    assert world.sender.unknown_destinations == 1
    world.leaders["a", 0] = 1
    world.sender.metadata_changed()
    [asked] = world.requests()
    assert marked(asked) == {10: [("a", 0)]}
    assert world.sender.unknown_destinations == 1
    world.registered.add(2)
    world.sender.metadata_changed()
    [asked] = world.requests()
    assert marked(asked) == {10: [("a", 1)]}
    assert world.sender.unknown_destinations == 0


def test_forgotten_shards_send_and_call_nothing() -> None:
    world = World()
    world.send(10, ("a", 0))
    [sent] = world.requests()
    world.leaders["b", 0] = -1
    world.send(11, ("a", 0), ("b", 0))
    world.send(12, ("a", 1), shard=8)
    world.sender.forget(7)
    world.sender.forget(7)
    assert world.sender.unknown_destinations == 0
    answer(sent, a_0=ErrorCode.NOT_ENOUGH_REPLICAS)
    [other] = world.later()
    assert marked(other) == {12: [("a", 1)]}
    world.sender.stop()
    answer(other)
    assert not world.later()
    assert world.done == {10: [], 11: [], 12: []}


def test_a_shard_that_is_forgotten_by_the_callback_of_a_marker() -> None:
    """As when the last record of the transaction finds that the partition is led elsewhere."""
    world = World()
    done = []

    def written(partitions: Collection[tuple[str, int]]) -> None:
        done.append(list(partitions))
        world.sender.forget(7)

    for partitions in ([("gone", 0), ("gone", 1), ("a", 0)], [("a", 0), ("b", 0)]):
        world.sender.send(
            7, 3, "x", 10, 5, commit=True, partitions=partitions, transaction_version=2,
            written=written, fenced=lambda: None,
        )  # fmt: skip
    [asked] = world.requests()
    answer(asked)
    assert done == [[("gone", 0), ("gone", 1)], [("a", 0), ("b", 0)]]
    assert not world.later()


def test_one_request_has_one_marker_of_a_producer_id() -> None:
    world = World()
    world.send(10, ("a", 0), commit=True)
    world.send(10, ("a", 0), commit=False, shard=8)
    first, second = world.requests()
    assert [each.transaction_result for each in first.request.markers] == [True]
    assert [each.transaction_result for each in second.request.markers] == [False]


def test_only_so_many_requests_wait_for_one_broker() -> None:
    world = World()
    for producer_id in range(REQUESTS_MAX + 2):
        world.send(producer_id, ("a", 0))
        world.runtime.run_until_idle()
    waiting = world.requests()
    assert len(waiting) == REQUESTS_MAX
    answer(waiting[0])
    [next_one] = world.requests()
    assert set(marked(next_one)) == {REQUESTS_MAX, REQUESTS_MAX + 1}


@pytest.mark.slow
def test_a_large_transaction_takes_several_requests() -> None:
    world = World()
    large = [("a", index) for index in range(2 * REQUEST_PARTITIONS_MAX + 1)]
    world.leaders = dict.fromkeys(large, 1)
    world.send(10, ("a", 0))
    world.send(11, *large)
    world.send(12, ("a", 0))
    requests = world.requests()
    assert [{pid: len(partitions) for pid, partitions in marked(each).items()} for each in requests] == [
        {10: 1, 11: REQUEST_PARTITIONS_MAX - 1},
        {12: 1, 11: REQUEST_PARTITIONS_MAX - 1},
        {11: 3},
    ]
    first, second, third = requests
    answer(second)
    first.fail(ErrorCode.NETWORK_EXCEPTION)
    answer(third, **{f"a_{large[-1][1]}": ErrorCode.NOT_LEADER_OR_FOLLOWER})
    for asked in world.later():
        answer(asked)
    assert {pid: len(done) for pid, done in world.done.items()} == {10: 1, 11: len(large), 12: 1}
    assert set(world.done[11]) == set(large)
    assert not world.later()


def test_the_largest_request_and_its_answer_are_not_too_large() -> None:
    world = World()
    partitions = [(f"{number:0>249}", 2**31 - 1) for number in range(REQUEST_PARTITIONS_MAX + 1)]
    image = image_of(dict.fromkeys(partitions, 1), {1})
    world.sender._image = lambda: image  # made once
    for producer_id, partition in enumerate(partitions):
        world.send(2**62 + producer_id, partition)
    first, _ = world.requests()
    sizes: list[int] = []
    first.answered = lambda response, _error: sizes.append(encoded_bytes(response_type(27), response))
    answer(first, **{f"{topic}_{index}": ErrorCode.NOT_ENOUGH_REPLICAS for topic, index in partitions})
    assert encoded_bytes(request_type(27), first.request) < BODY_BYTES_MAX
    assert sizes[0] < SMALL_ANSWER_BYTES
    assert sizes[0] > SMALL_ANSWER_BYTES / 2, "more would fit"


@given(data=st.data())
def test_each_partition_is_done_once_whatever_happens(data: st.DataObject) -> None:
    """Random errors, lost answers and moves: in the end each partition is done exactly once, or the transaction is fenced."""
    world = World()
    errors = [
        ErrorCode.NONE,
        *RETRIABLE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    ]
    wanted: dict[int, set[tuple[str, int]]] = {}
    for producer_id in range(data.draw(st.integers(1, 4))):
        wanted[producer_id] = data.draw(st.sets(st.sampled_from(list(world.leaders)), min_size=1))
        world.send(producer_id, *wanted[producer_id])
    for _ in range(data.draw(st.integers(0, 6))):
        partition = data.draw(st.sampled_from(list(world.leaders)))
        world.leaders[partition] = data.draw(st.sampled_from([-1, 1, 2]))
        world.sender.metadata_changed()
        for asked in world.later():
            if data.draw(st.booleans()):
                asked.fail(ErrorCode.NETWORK_EXCEPTION)
            else:
                answer(asked, **{name: data.draw(st.sampled_from(errors)) for name in ("a_0", "a_1", "b_0")})
    world.leaders = dict.fromkeys(world.leaders, 1)
    world.sender.metadata_changed()
    for _ in range(20):
        for asked in world.later():
            answer(asked)
    assert len(world.fenced) == len(set(world.fenced))
    for producer_id, partitions in wanted.items():
        done = world.done[producer_id]
        assert len(done) == len(set(done))
        assert set(done) == partitions or (producer_id in world.fenced and set(done) < partitions)
