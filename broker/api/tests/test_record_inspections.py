"""Produces whose records have to be read first: others are served meanwhile, and what counts is how things are then."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.broker.api import produce as produce_api
from barnabas.broker.requests.context import CLOSE_CONNECTION, NO_RESPONSE
from barnabas.broker.tests.leader import TIME, TOPIC_ID, Leader
from barnabas.broker.tests.reply import Reply
from barnabas.broker.tests.virtual_client import Client
from barnabas.controller.metadata.image import PartitionState
from barnabas.storage.log import validation
from barnabas.storage.log.log_config import LogConfig
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.compression import Codec
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.produce import (
    PRODUCE_RESPONSE,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from barnabas.wire.records import Record, build_batch, record_heads

COMPACTED = LogConfig(cleanup_policy=frozenset({"compact"}))
MANY = 5000


def batch(count: int = 1, *, key: bytes | None = b"k", codec: Codec = Codec.ZSTD, **fields: Any) -> bytes:
    records = [Record(at, TIME, key, b"v") for at in range(count)]
    return build_batch(records, codec=codec, **fields)


@pytest.fixture
def leader() -> Leader:
    made = Leader("/d", MemoryDisk())
    made.create(replicas=[1], partitions=3)
    for index in range(3):
        made.partition(index).log.update_config(COMPACTED)
    return made


def produce(leader: Leader, *parts: tuple[int, bytes], acks: int = -1) -> Reply:
    data = [PartitionProduceData(index, memoryview(bytearray(records))) for index, records in parts]
    return leader.ask(0, 12, ProduceRequest(None, acks, 30_000, [TopicProduceData("t", TOPIC_ID, data)]))


def answers(call: Reply) -> list[tuple[int, int, int]]:
    """(partition, error, base offset) of each."""
    assert call.answer is not None, "it has not been answered"
    (topic,) = call.answer.responses
    return [(one.index, one.error_code, one.base_offset) for one in topic.partition_responses]


def ends(leader: Leader) -> list[int]:
    return [leader.partition(index).log.log_end_offset for index in range(3)]


def test_few_records_are_read_at_once(leader: Leader) -> None:
    assert answers(produce(leader, (0, batch(100)))) == [(0, E.NONE, 0)]


def test_others_are_served_while_many_records_are_read(leader: Leader) -> None:
    many, few = produce(leader, (0, batch(MANY))), produce(leader, (0, batch()))
    assert not many.done
    assert answers(few) == [(0, E.NONE, 0)]
    leader.runtime.run_until_idle()
    assert answers(many) == [(0, E.NONE, 1)]
    assert ends(leader) == [MANY + 1, 0, 0]


def test_a_batch_of_some_records_does_not_wait_for_very_large_ones(leader: Leader) -> None:
    large = [produce(leader, (0, batch(validation.MEDIUM_RECORDS + 1))) for _ in range(3)]
    medium = produce(leader, (1, batch(MANY)))
    while not medium.done:
        assert leader.runtime.step()
    assert answers(medium) == [(1, E.NONE, 0)]
    assert not any(call.done for call in large[1:])
    leader.runtime.run_until_idle()
    assert all(call.done for call in large)


def test_a_request_is_served_in_its_order(leader: Leader) -> None:
    """Partition 0 twice: what needs no reading does not overtake."""
    call = produce(
        leader, (1, batch()), (0, batch(MANY)), (0, batch(2)), (2, batch(MANY, key=None)), (2, batch())
    )
    assert ends(leader) == [0, 1, 0]
    leader.runtime.run_until_idle()
    assert answers(call) == [
        (1, E.NONE, 0),
        (0, E.NONE, 0),
        (0, E.NONE, MANY),
        (2, E.INVALID_RECORD, -1),
        (2, E.NONE, 0),
    ]


def test_a_connection_is_answered_in_its_order(leader: Leader) -> None:
    client, other = Client(leader), Client(leader)
    data = PartitionProduceData(0, memoryview(batch(MANY)))
    many = ProduceRequest(None, -1, 30_000, [TopicProduceData("t", TOPIC_ID, [data])])
    leader.runtime.thread_delay_s = lambda: 1.0
    client.send(client.frame(0, many) + client.versions() + client.frame(0, many))
    other.send(other.versions())
    assert (client.order, other.order) == ([], [1])
    leader.runtime.advance(5)
    assert client.order == [1, 2, 3]
    assert client.errors() == [E.NONE, E.NONE]
    assert ends(leader) == [2 * MANY, 0, 0]


def test_a_produce_that_waits_for_replicas_afterwards_keeps_its_place() -> None:
    leader = Leader("/d", MemoryDisk())
    leader.register(2)
    leader.create(replicas=[1, 2])
    leader.partition().log.update_config(COMPACTED)
    leader.follower(2).fetch(0)
    client = Client(leader)

    def frame(count: int) -> bytes:
        data = PartitionProduceData(0, memoryview(batch(count)))
        return client.frame(0, ProduceRequest(None, -1, 30_000, [TopicProduceData("t", TOPIC_ID, [data])]))

    client.send(frame(1) + frame(MANY) + frame(1) + client.versions())
    leader.runtime.advance(0.1)
    assert leader.partition().log.log_end_offset == MANY + 2, "the produce behind it is served meanwhile"
    assert client.order == []
    leader.follower(2).fetch(MANY + 1)
    leader.runtime.advance(0.01)
    assert client.order == [1, 2]
    leader.follower(2).fetch(MANY + 2)
    leader.runtime.advance(0.01)
    assert client.order == [1, 2, 3, 4]


def test_leadership_that_goes_meanwhile_counts(leader: Leader) -> None:
    call = produce(leader, (0, batch(MANY)))
    partition = leader.partition()
    state = PartitionState(replicas=[1, 2], isr=[2], leader=2, leader_epoch=5, partition_epoch=5)
    partition.follow(state)
    leader.runtime.run_until_idle()
    assert [error for _, error, _ in answers(call)] == [E.NOT_LEADER_OR_FOLLOWER]
    assert ends(leader) == [0, 0, 0]


def test_settings_that_change_meanwhile_count(leader: Leader) -> None:
    leader.partition().log.update_config(LogConfig(validate_records=True))
    call = produce(leader, (0, batch(MANY, key=None)))
    leader.partition().log.update_config(COMPACTED)
    leader.runtime.run_until_idle()
    assert [error for _, error, _ in answers(call)] == [E.INVALID_RECORD]


def test_what_the_producer_wrote_meanwhile_counts(leader: Leader) -> None:
    """Of two copies of a batch in flight one is appended."""
    many = batch(MANY, producer_id=7, producer_epoch=0, base_sequence=0)
    calls = [produce(leader, (0, many)), produce(leader, (0, many))]
    leader.runtime.run_until_idle()
    assert [answers(call) for call in calls] == [[(0, E.NONE, 0)]] * 2
    assert ends(leader) == [MANY, 0, 0]


def test_without_acknowledgement_a_refusal_closes(leader: Leader) -> None:
    good, bad = produce(leader, (0, batch(MANY)), acks=0), produce(leader, (0, batch(MANY, key=None)), acks=0)
    leader.runtime.run_until_idle()
    assert [good.outcome, bad.outcome] == [NO_RESPONSE, CLOSE_CONNECTION]


@pytest.mark.slow
def test_one_turn_reads_few_records_whatever_is_sent(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several clients at once: by turns of the loop, with a clock that goes on at each look."""
    count = 0

    def counted(header: Any, data: Any) -> Iterator[Any]:
        nonlocal count
        for head in record_heads(header, data):
            count += 1
            yield head

    monkeypatch.setattr(validation, "record_heads", counted)
    ticks = 0

    def monotonic() -> float:
        nonlocal ticks
        ticks += 1
        return leader.runtime.world.now + ticks / 1000

    monkeypatch.setattr(leader.runtime, "monotonic", monotonic)
    calls = [produce(leader, *((index, batch(20 * MANY)) for index in range(3))) for _ in range(3)]
    assert count == 0
    most = 0
    while not all(call.done for call in calls):
        before = count
        assert leader.runtime.step()
        most = max(most, count - before)
    assert count == 9 * 20 * MANY
    assert most <= 3 * validation.RECORDS_PER_STEP
    assert sum(ends(leader)) == count


def test_many_partitions_of_a_few_records_each_are_served_in_turns(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is small enough to be read at once, and together they are not."""
    ticks = 0

    def monotonic() -> float:
        nonlocal ticks
        ticks += 1
        return leader.runtime.world.now + ticks / 1000

    monkeypatch.setattr(leader.runtime, "monotonic", monotonic)
    call = produce(leader, *((0, batch(900)) for _ in range(100)))
    assert 0 < ends(leader)[0] <= 900 * 8 * 1000 * produce_api.FIRST_TURN_S
    leader.runtime.run_until_idle()
    assert [base for _, _, base in answers(call)] == list(range(0, 90_000, 900))


def test_a_request_of_many_partitions_is_served_in_turns(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = 0

    def monotonic() -> float:
        nonlocal ticks
        ticks += 1
        return leader.runtime.world.now + ticks / 1000

    monkeypatch.setattr(leader.runtime, "monotonic", monotonic)
    log = leader.partition().log
    monkeypatch.setattr(produce_api, "FIRST_TURN_S", 1000)
    call = produce(leader, *((0, batch()) for _ in range(2000)))
    assert log.log_end_offset == produce_api.TURN_PARTITIONS
    most = 0
    while not call.done:
        before = log.log_end_offset
        assert leader.runtime.step()
        most = max(most, log.log_end_offset - before)
    call.answer, _ = PRODUCE_RESPONSE.decode(12, call.answer.body)  # which a thread has encoded
    assert [base for _, _, base in answers(call)] == list(range(2000))
    assert most <= 3


def test_records_that_wait_are_held_once(leader: Leader) -> None:
    """A copy of those that are left; nothing refers to the buffer that they came in."""
    records = [batch(MANY, codec=Codec.NONE), batch(1), batch(MANY, codec=Codec.NONE)]
    size = len(b"".join(records))
    tracemalloc.start()
    buffer = bytearray(batch(1) + b"".join(records))
    data, end = [], 0
    for index, each in enumerate([batch(1), *records]):
        data.append(PartitionProduceData(index % 3, memoryview(buffer)[end : end + len(each)]))
        end += len(each)
    request = ProduceRequest(None, -1, 30_000, [TopicProduceData("t", TOPIC_ID, data)])
    del data
    before = tracemalloc.get_traced_memory()[0]
    call = leader.ask(0, 12, request)
    del request
    buffer.clear()  # BufferError while something looks into it
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < size / 4  # the copy has taken the buffer's place
    assert leader.node.services.waiting_produce_bytes == size
    leader.runtime.run_until_idle()
    assert [error for _, error, _ in answers(call)] == [E.NONE] * 4
    assert leader.node.services.waiting_produce_bytes == 0


def test_what_waits_is_bounded(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients retry, as after a timeout, and nothing has been appended."""
    many = batch(MANY, codec=Codec.NONE)
    monkeypatch.setattr(produce_api, "WAITING_BYTES_MAX", 3 * len(many))
    calls = [produce(leader, (1, batch()), (0, many), (2, batch())) for _ in range(6)]
    assert [call.done for call in calls] == [False] * 3 + [True] * 3
    assert answers(calls[5]) == [(1, E.NONE, 5), (0, E.REQUEST_TIMED_OUT, -1), (2, E.REQUEST_TIMED_OUT, -1)]
    leader.runtime.run_until_idle()
    assert ends(leader) == [3 * MANY, 6, 3]
    assert leader.node.services.waiting_produce_bytes == 0
    again = produce(leader, (0, many))
    leader.runtime.run_until_idle()
    assert answers(again) == [(0, E.NONE, 3 * MANY)]
