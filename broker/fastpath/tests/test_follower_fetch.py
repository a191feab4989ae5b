"""The short ways of what acks=all waits for (produce, a follower's fetch, its answer) against the general ones: two leaders
that get the same requests, one of which may take the fast path, must behave alike."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.api.fetch import fetch
from barnabas.broker.api.produce import produce
from barnabas.broker.fastpath.fetch import fast_fetch
from barnabas.broker.fastpath.produce import fast_produce
from barnabas.broker.fastpath.replica_fetch import read_fast_fetch_response
from barnabas.broker.partitions.partition import Partition
from barnabas.broker.replica_fetcher.session import FollowerSession
from barnabas.broker.replica_fetcher.state import FetchState
from barnabas.broker.requests.context import Outcome, RawResponse, RequestContext
from barnabas.broker.tests.leader import TOPIC_ID, Follower, Leader, batch
from barnabas.broker.tests.reply import Reply, make_context
from barnabas.storage.disk.disk import FileRegion
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode
from barnabas.wire.message_type import MessageType
from barnabas.wire.messages.fetch import (
    FETCH_REQUEST,
    FETCH_RESPONSE,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ReplicaState,
)
from barnabas.wire.messages.produce import (
    PRODUCE_REQUEST,
    PRODUCE_RESPONSE,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

FETCH_VERSION, PRODUCE_VERSION = 18, 13
APIS: dict[int, tuple[MessageType[Any], MessageType[Any], Any, Any]] = {
    0: (PRODUCE_REQUEST, PRODUCE_RESPONSE, fast_produce, produce),
    1: (FETCH_REQUEST, FETCH_RESPONSE, fast_fetch, fetch),
}


def encoded(kind: MessageType[Any], version: int, message: msgspec.Struct) -> bytes:
    return joined(kind.encode(version, message))


def joined(parts: list[Any]) -> bytes:
    return b"".join(
        part.file.pread(part.length, part.position) if isinstance(part, FileRegion) else bytes(part)
        for part in parts
    )


class EncodedReply(Reply):
    """Its answer as bytes."""

    def complete(self, context: RequestContext[Any], response: Any) -> None:
        if isinstance(response, RawResponse):
            response = response.body
        elif not isinstance(response, Outcome):
            response = encoded(APIS[context.api_key][1], context.api_version, response)
        super().complete(context, response)


class Side(Leader):
    """Asked with bytes."""

    def __init__(self, *, fast: bool) -> None:
        super().__init__("/d", MemoryDisk())
        self.fast = fast
        self.short = 0  # requests that went the short way
        self.register(2, 3)
        self.create(partitions=2)

    def ask(self, key: int, version: int, request: msgspec.Struct, peer_broker_id: int = -1) -> Reply:
        request_kind, response_kind, fast, handler = APIS[key]
        call = EncodedReply(peer_broker_id)
        context = make_context(self.node.services, call, key, version)
        body = encoded(request_kind, version, request)
        buffer = memoryview(bytearray(b"\2\2" + body + b"\2\2\2"))
        answer: Any = fast(context, buffer, 2, 2 + len(body)) if self.fast else None
        if answer is None:
            answer = handler(context, request_kind.readers[version](buffer, 2, 2 + len(body))[0])
        else:
            self.short += 1
        buffer[:] = b"\xff" * len(buffer)  # the next request overwrites it
        if isinstance(answer, list):
            answer = joined(answer)
        if isinstance(answer, bytes) or answer is not Outcome.PENDING:
            call.answer = answer if isinstance(answer, bytes) else encoded(response_kind, version, answer)
        return call

    def append(self, count: int, size: int, acks: int, index: int) -> Reply:
        data = PartitionProduceData(index, memoryview(bytearray(batch(*["v" * size] * count))))
        topics = [TopicProduceData("", TOPIC_ID, [data])]
        return self.ask(0, PRODUCE_VERSION, ProduceRequest(None, acks, 1000, topics))


def decoded(call: Reply) -> FetchResponse:
    response, end = FETCH_RESPONSE.readers[FETCH_VERSION](call.answer, 0, len(call.answer))
    assert end == len(call.answer)
    answer: FetchResponse = response
    return answer


class Both:
    """Both leaders, with followers 2 and 3 of each, that take what they get."""

    def __init__(self) -> None:
        self.sides = [Side(fast=True), Side(fast=False)]
        self.followers: list[dict[int, Follower]] = []
        self.ends: dict[tuple[int, int], int] = {}
        self.waiting: dict[
            int, tuple[list[Reply], int]
        ] = {}  # fetches of a follower, and the partition they name
        self.produced: list[list[Reply]] = []
        for side in self.sides:
            made = {broker_id: side.follower(broker_id) for broker_id in (2, 3)}
            for follower in made.values():
                follower.session_epoch = 0
                follower.max_wait_ms = 500
            self.followers.append(made)

    def fetch(self, broker_id: int, index: int, *, back: int, wait: bool, last_epoch: bool) -> None:
        if broker_id in self.waiting:
            self.overtake(broker_id)
        end = max(0, self.ends.get((broker_id, index), 0) - back)
        calls = []
        for side, followers in zip(self.sides, self.followers, strict=True):
            follower = followers[broker_id]
            epoch = side.partition(index).leader_epoch
            begins = follower.session_id == 0
            if begins:
                follower.session_epoch = 0
            call = follower.fetch(
                end,
                index=index,
                wait=wait and not begins,
                last_epoch=epoch if last_epoch else -1,
                version=FETCH_VERSION,
            )
            follower.session_epoch += 1
            calls.append(call)
        self.waiting[broker_id] = calls, index
        self.take(broker_id)

    def overtake(self, broker_id: int) -> None:
        """What waits is answered before more is asked, as on a connection."""
        for side in self.sides:
            side.runtime.advance(0.6)
        self.settle()
        assert broker_id not in self.waiting

    def take(self, broker_id: int) -> None:
        calls, _ = self.waiting[broker_id]
        assert (calls[0].answer is None) == (calls[1].answer is None)
        if calls[0].answer is None:
            return
        assert calls[0].answer == calls[1].answer
        del self.waiting[broker_id]
        response = decoded(calls[0])
        for followers in self.followers:
            followers[broker_id].session_id = response.session_id
            if response.error_code:
                followers[broker_id].session_id = 0
        for topic in response.responses:
            for data in topic.partitions:
                if data.error_code or not data.records or data.diverging_epoch.epoch != -1:
                    continue
                records = joined([data.records])
                position = 0
                while position < len(records):
                    size = 12 + int.from_bytes(records[position + 8 : position + 12], "big")
                    last = int.from_bytes(records[position : position + 8], "big") + int.from_bytes(
                        records[position + 23 : position + 27], "big"
                    )
                    if position + size <= len(records):
                        self.ends[broker_id, data.partition_index] = last + 1
                    position += size

    def settle(self) -> None:
        for side in self.sides:
            side.run()
        for broker_id in sorted(self.waiting):
            self.take(broker_id)
        for calls in self.produced:
            assert calls[0].answer == calls[1].answer
            assert calls[0].outcome == calls[1].outcome
        for index in range(2):
            one, other = (side.partition(index) for side in self.sides)
            assert one.high_watermark == other.high_watermark
            assert one.log.log_end_offset == other.log.log_end_offset
            assert one.isr == other.isr

    def run(self, step: tuple[Any, ...]) -> None:
        kind, *rest = step
        if kind == "produce":  # all in one turn of the loop
            for one in rest[0]:
                self.produced.append([side.append(*one) for side in self.sides])
        elif kind == "fetch":
            broker_id, index, back, wait, last_epoch = rest
            self.fetch(broker_id, index, back=back, wait=wait, last_epoch=last_epoch)
        elif kind == "advance":
            for side in self.sides:
                side.runtime.advance(rest[0])
        elif kind == "isr":
            for side in self.sides:
                side.change(rest[0], isr=rest[1])
        elif kind == "new epoch":
            for side in self.sides:
                side.change(rest[0], leader=1)
        elif kind == "resign":
            for side in self.sides:
                side.change(rest[0], leader=2)
                side.change(rest[0], leader=1)
            for broker_id in (2, 3):
                self.ends.pop((broker_id, rest[0]), None)
        elif kind == "trim":
            for side in self.sides:
                log = side.partition(rest[0]).log
                log.increment_log_start_offset(min(log.high_watermark, log.log_start_offset + 1))
                side.partition(rest[0]).interrupt_waiters()
        self.settle()


indexes = st.integers(0, 1)


def mostly(usual: Any, *others: Any) -> Any:
    return st.sampled_from([usual] * 9 + list(others))


fetches = st.tuples(
    st.just("fetch"),
    st.sampled_from([2, 3]),
    mostly(0, 1),
    mostly(0, 1),
    mostly(True, False),
    mostly(True, False),
)
one_produce = st.tuples(
    st.integers(1, 3), st.sampled_from([1, 100, 3000, 9000]), st.sampled_from([-1, 1]), mostly(0, 1)
)  # fmt: skip
produces = st.tuples(
    st.just("produce"), st.one_of(st.tuples(one_produce), st.tuples(one_produce, one_produce))
)
others = st.one_of(
    st.tuples(st.just("advance"), st.sampled_from([0.001, 0.006, 0.6, 1.1])),
    st.tuples(st.just("isr"), indexes, st.sampled_from([[1], [1, 2], [1, 2, 3]])),
    st.tuples(st.just("new epoch"), indexes),
    st.tuples(st.just("resign"), indexes),
    st.tuples(st.just("trim"), indexes),
)


@pytest.mark.slow
@given(st.lists(st.one_of(fetches, fetches, produces, produces, others), min_size=5, max_size=60))
def test_both_ways_behave_alike(steps: list[tuple[Any, ...]]) -> None:
    both = begun()
    for step in steps:
        both.run(step)
    both.overtake(0)


def test_what_another_partition_has_to_say_comes_along() -> None:
    both = begun()
    both.run(("fetch", 2, 0, 0, False, True))
    both.run(("fetch", 2, 1, 0, False, True))
    both.run(("fetch", 2, 0, 0, True, True))
    before = both.sides[0].short
    both.run(("fetch", 2, 0, 0, True, True))
    assert both.sides[0].short == before + 1, "it waits as on the fast path"
    both.run(("produce", [(1, 100, -1, 0), (1, 100, -1, 1)]))
    assert (both.ends[2, 0], both.ends[2, 1]) == (3, 1)


def begun() -> Both:
    """Both followers have a session, and everything up to the first record."""
    both = Both()
    for _ in range(2):
        for broker_id in (2, 3):
            both.run(("fetch", broker_id, 0, 0, False, False))
        both.run(("produce", [(1, 100, -1, 0)]))
    return both


def test_the_fast_fetch_requests_go_the_short_way() -> None:
    both = begun()
    for broker_id in (2, 3):
        both.run(("fetch", broker_id, 0, 0, False, True))
    before = both.sides[0].short
    for number in range(2, 10):
        for broker_id in (2, 3):
            both.run(("fetch", broker_id, 0, 0, True, True))
        assert both.sides[0].partition().high_watermark == number
        both.run(("produce", [(1, 100, -1, 0)]))
        assert sorted(both.waiting) == [], "both followers have been answered"
    assert both.sides[0].short - before == 8 * 3
    assert [call.answer for call in both.produced[-2]] != [None, None]


@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize("bounds", [(0, 1 << 20), (-1, 1 << 20), (2, 1 << 20), (1, 150), (1, 0), (1, -5)])
def test_unusual_bounds_count_as_ever(bounds: tuple[int, int], offset: int) -> None:
    min_bytes, max_bytes = bounds
    answers = []
    for side in (Side(fast=True), Side(fast=False)):
        two = side.follower(2)
        two.session_epoch = 0
        session_id = decoded(two.fetch(0, version=FETCH_VERSION)).session_id
        for _ in range(3):
            side.append(1, 100, 1, 0)
        epoch = side.partition().leader_epoch
        request = FetchRequest(
            replica_state=ReplicaState(2, two.broker_epoch),
            max_wait_ms=500,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            session_id=session_id,
            session_epoch=1,
            topics=[FetchTopic("t", TOPIC_ID, [FetchPartition(0, epoch, offset, epoch, 0, 1 << 20)])],
        )
        answer = side.ask(1, FETCH_VERSION, request, peer_broker_id=2).answer
        answers.append(None if answer is None else answer[:6] + answer[10:])  # without the session's id
    assert answers[0] == answers[1]


@pytest.mark.parametrize("fast", [False, True])
def test_a_stranger_does_not_go_on_with_a_followers_session(fast: bool) -> None:
    side = Side(fast=fast)
    two = side.follower(2)
    two.session_epoch = 0
    session_id = decoded(two.fetch(0, version=FETCH_VERSION)).session_id
    side.append(1, 100, 1, 0)
    epoch = side.partition().leader_epoch
    request = FetchRequest(
        replica_state=ReplicaState(2, two.broker_epoch),
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=session_id,
        session_epoch=1,
        topics=[FetchTopic("t", TOPIC_ID, [FetchPartition(0, epoch, 1, epoch, 0, 1 << 20)])],
    )
    before = side.short
    for peer in (-1, 3):
        call = side.ask(1, FETCH_VERSION, request, peer_broker_id=peer)
        assert decoded(call).responses[0].partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    leadership = side.partition().leadership
    assert leadership is not None
    assert leadership.replicas[2].end_offset == 0
    assert side.short == before
    side.ask(1, FETCH_VERSION, request, peer_broker_id=2)
    assert leadership.replicas[2].end_offset == 1
    assert side.short == before + fast


class Chained(EncodedReply):
    """Its client has sent more behind it, which is served once it is answered."""

    def __init__(self, then: Callable[[], object]) -> None:
        super().__init__()
        self._then = then

    def complete(self, context: RequestContext[Any], response: Any) -> None:
        super().complete(context, response)
        self._then()


@pytest.mark.parametrize("fast", [False, True])
def test_what_a_fetch_lets_others_append_elsewhere_is_answered_at_once(fast: bool) -> None:
    side = Side(fast=fast)
    followers = [side.follower(2), side.follower(3)]
    for follower in followers:
        follower.session_epoch = 0
        follower.session_id = decoded(follower.fetch(0, version=FETCH_VERSION)).session_id
        follower.session_epoch = 1

    def fetch(at: int, offset: int, *, index: int = 0, wait: bool = False) -> Reply:
        last_epoch = side.partition(index).log.epochs.latest_epoch
        call = followers[at].fetch(
            offset, index=index, wait=wait, last_epoch=last_epoch, version=FETCH_VERSION
        )
        followers[at].session_epoch += 1
        side.run()
        return call

    side.append(1, 100, 1, 0)
    for at in range(2):  # they know all there is of both partitions
        for index, offset in ((1, 0), (0, 0), (1, 0), (0, 1), (0, 1)):
            fetch(at, offset, index=index)
    produced = Chained(lambda: side.append(1, 100, -1, 1))
    data = PartitionProduceData(0, memoryview(batch("v")))
    request = ProduceRequest(None, -1, 1000, [TopicProduceData("", TOPIC_ID, [data])])
    body = encoded(PRODUCE_REQUEST, PRODUCE_VERSION, request)
    context = make_context(side.node.services, produced, 0, PRODUCE_VERSION)
    assert fast_produce(context, memoryview(bytearray(body)), 0, len(body)) is Outcome.PENDING
    fetch(0, 1)
    fetch(1, 1)
    fetch(1, 2)
    assert not produced.done
    answer = fetch(0, 2, wait=True)
    assert produced.done
    assert side.partition(1).log.log_end_offset == 1
    assert answer.done, "it says that the other partition has grown"


def test_a_batch_that_waits_for_its_replicas_keeps_nothing_of_its_request() -> None:
    side = Side(fast=True)
    call = EncodedReply()
    context = make_context(side.node.services, call, 0, PRODUCE_VERSION)
    data = PartitionProduceData(0, memoryview(batch("v" * 100)))
    request = ProduceRequest(None, -1, 1000, [TopicProduceData("", TOPIC_ID, [data])])
    buffer = bytearray(encoded(PRODUCE_REQUEST, PRODUCE_VERSION, request))
    view = memoryview(buffer)
    assert fast_produce(context, view, 0, len(view)) is Outcome.PENDING
    view.release()
    buffer.clear()  # BufferError while something looks into it
    assert not call.done


class Ends:
    log_end_offset, log_start_offset = 123_456_789_012, 5
    epochs = SimpleNamespace(latest_epoch=6)


def followed(log: Any) -> Partition:
    partition = Partition("t", TOPIC_ID, 3, log)
    partition.leader_epoch = 7
    return partition


def test_a_followers_request_has_the_same_bytes_either_way() -> None:
    bodies = []
    for is_short in (True, False):
        session = FollowerSession(500, 1, 10_485_760, 1_048_576)
        state = FetchState(followed(Ends()))
        session.add(state)
        session.next_request(2, 9)
        session.answered(session.request_number, 77)
        session.next_request(2, 9)
        assert session.fast_request(2, 9) is None, "there is nothing to say"
        session.changed(state)
        if is_short:
            bodies.append(session.fast_request(2, 9))
        else:
            bodies.append(encoded(FETCH_REQUEST, FETCH_VERSION, session.next_request(2, 9)))
        assert (session.request_number, state.named_in, state.sent_offset) == (3, 3, Ends.log_end_offset)
        assert session.next_request(2, 9).session_epoch == 3
    assert bodies[0] == bodies[1]


def test_an_answer_says_the_same_either_way() -> None:
    side = Side(fast=True)
    two = side.follower(2)
    two.session_epoch = 0
    call = two.fetch(0, version=FETCH_VERSION)
    two.session_id, two.session_epoch = decoded(call).session_id, 1
    for size, read in ((100, True), (7000, True), (20_000, True)):
        side.append(1, size, 1, 0)
        end = side.partition().log.log_end_offset
        answer = two.fetch(end - 1, version=FETCH_VERSION).answer
        two.session_epoch += 1
        found = read_fast_fetch_response(memoryview(b"12345" + answer), 5)
        assert (found is not None) == read
        data = partition_of(answer)
        assert found is not None
        assert (found.session_id, found.topic_id, found.partition) == (two.session_id, TOPIC_ID, 0)
        assert (found.high_watermark, found.log_start_offset) == (data.high_watermark, data.log_start_offset)
        assert bytes(found.records) == bytes(data.records)
        for end in range(len(answer)):
            assert read_fast_fetch_response(memoryview(answer[:end]), 0) is None
        assert read_fast_fetch_response(memoryview(answer + b"\0"), 0) is None
    assert (
        read_fast_fetch_response(memoryview(two.fetch(1, version=FETCH_VERSION, leader_epoch=9).answer), 0)
        is None
    )


def partition_of(answer: bytes) -> Any:
    return FETCH_RESPONSE.readers[FETCH_VERSION](answer, 0, len(answer))[0].responses[0].partitions[0]


@given(st.binary(max_size=200))
def test_any_bytes_are_dealt_with(data: bytes) -> None:
    read_fast_fetch_response(memoryview(data), 0)
