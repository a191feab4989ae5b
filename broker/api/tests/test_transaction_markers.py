"""WriteTxnMarkers and DescribeProducers: markers that wait for replicas, that are refused, and the producers of partitions.

Expected errors are Apache Kafka 4.3.1's answers to the same requests.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import ANY

import pytest

from barnabas.broker.tests.leader import TIME, Leader
from barnabas.broker.tests.reply import Reply, as_received
from barnabas.storage.log.verification import VERIFICATION_OFF
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages import describe_producers as dp
from barnabas.wire.messages import find_coordinator as fc
from barnabas.wire.messages import write_txn_markers as wm
from barnabas.wire.records import Record, build_batch
from barnabas.wire.registry import request_type, response_type

WRITE_TXN_MARKERS, DESCRIBE_PRODUCERS, FIND_COORDINATOR = 27, 61, 10
PRODUCER = 7


@pytest.fixture
def leader() -> Leader:
    made = Leader("/d", MemoryDisk())
    made.create(replicas=[1], partitions=3)
    return made


def append(
    leader: Leader, index: int = 0, *, producer: int = PRODUCER, epoch: int = 0, sequence: int = 0
) -> None:
    """The next batch of a transaction."""
    batch = build_batch(
        [Record(0, TIME, b"k", b"v")],
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
    leader.partition(index).append(memoryview(bytearray(batch)), verification=VERIFICATION_OFF)


def marker(
    topics: dict[str, list[int]],
    *,
    producer: int = PRODUCER,
    epoch: int = 0,
    commit: bool = True,
    coordinator_epoch: int = 0,
    version: int = 0,
) -> wm.WritableTxnMarker:
    named = [wm.WritableTxnMarkerTopic(name, indexes) for name, indexes in topics.items()]
    return wm.WritableTxnMarker(producer, epoch, commit, named, coordinator_epoch, version)


def write(leader: Leader, *markers: wm.WritableTxnMarker, version: int = 2) -> Reply:
    sent = as_received(request_type(WRITE_TXN_MARKERS), version, wm.WriteTxnMarkersRequest(list(markers)))
    reply = leader.ask(WRITE_TXN_MARKERS, version, sent)
    leader.run()
    return reply


def errors(reply: Reply, version: int = 2) -> dict[tuple[int, str, int], E]:
    """By producer, topic and partition."""
    answer = as_received(response_type(WRITE_TXN_MARKERS), version, reply.answer)
    found = [
        ((result.producer_id, topic.name, one.partition_index), E.of(one.error_code))
        for result in answer.markers
        for topic in result.topics
        for one in topic.partitions
    ]
    assert len(dict(found)) == len(found), "each is answered once"
    return dict(found)


def producers(leader: Leader, index: int = 0, topic: str = "t") -> Any:
    """The answer of DescribeProducers about one partition."""
    request = dp.DescribeProducersRequest([dp.TopicRequest(topic, [index])])
    reply = leader.ask(DESCRIBE_PRODUCERS, 0, request)
    leader.run()
    answer = as_received(response_type(DESCRIBE_PRODUCERS), 0, reply.answer)
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize("version", [1, 2])
def test_markers_end_transactions(leader: Leader, version: int) -> None:
    append(leader, 0)
    append(leader, 1)
    append(leader, 2, producer=8, epoch=5)
    assert [leader.partition(index).last_stable_offset for index in range(3)] == [0, 0, 0]
    reply = write(
        leader, marker({"t": [0, 1]}), marker({"t": [2]}, producer=8, epoch=5, commit=False), version=version
    )
    assert errors(reply, version) == {
        (PRODUCER, "t", 0): E.NONE,
        (PRODUCER, "t", 1): E.NONE,
        (8, "t", 2): E.NONE,
    }
    assert [leader.partition(index).last_stable_offset for index in range(3)] == [2, 2, 2]
    assert leader.partition(2).log.producers.collect_aborted(0, 1)[0].producer_id == 8
    assert not leader.partition(1).log.producers.collect_aborted(0, 1)


def test_no_markers(leader: Leader) -> None:
    assert errors(write(leader)) == {}


def test_markers_of_one_producer_share_a_result(leader: Leader) -> None:
    """As in Kafka; a partition that one marker repeats gets it once."""
    append(leader)
    reply = write(leader, marker({"t": [0, 0]}), marker({"t": [1]}), marker({"nothing": [4]}))
    assert errors(reply) == {
        (PRODUCER, "t", 0): E.NONE,
        (PRODUCER, "t", 1): E.NONE,
        (PRODUCER, "nothing", 4): E.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert leader.partition().log.log_end_offset == 2


def test_the_version_of_the_transaction(leader: Leader) -> None:
    """In version 2 a marker of the same epoch would be one of an earlier transaction; request version 1 has no such field."""
    append(leader, epoch=3)
    same = marker({"t": [0]}, epoch=3, version=2)
    assert errors(write(leader, same)) == {(PRODUCER, "t", 0): E.INVALID_PRODUCER_EPOCH}
    assert leader.partition().last_stable_offset == 0
    assert errors(write(leader, same, version=1), 1) == {(PRODUCER, "t", 0): E.NONE}


def test_markers_that_are_out_of_date(leader: Leader) -> None:
    append(leader, epoch=3)
    assert errors(write(leader, marker({"t": [0]}, epoch=2))) == {
        (PRODUCER, "t", 0): E.INVALID_PRODUCER_EPOCH
    }
    assert errors(write(leader, marker({"t": [0]}, epoch=3, coordinator_epoch=9))) == {
        (PRODUCER, "t", 0): E.NONE
    }
    assert errors(write(leader, marker({"t": [0]}, epoch=3, coordinator_epoch=8))) == {
        (PRODUCER, "t", 0): E.TRANSACTION_COORDINATOR_FENCED
    }


def test_a_producer_that_cannot_be(leader: Leader) -> None:
    reply = write(leader, marker({"t": [0], "nothing": [0]}, producer=-1), marker({"t": [1]}, epoch=-1))
    assert errors(reply) == {
        (-1, "t", 0): E.UNKNOWN_SERVER_ERROR,
        (-1, "nothing", 0): E.UNKNOWN_TOPIC_OR_PARTITION,
        (PRODUCER, "t", 1): E.UNKNOWN_SERVER_ERROR,
    }
    assert [leader.partition(index).log.log_end_offset for index in range(3)] == [0, 0, 0]


def test_markers_are_answered_when_they_are_replicated() -> None:
    leader = Leader("/d", MemoryDisk())
    leader.register(2)
    leader.create(replicas=[1, 2], partitions=2)
    append(leader)
    reply = write(leader, marker({"t": [0, 1]}))
    assert not reply.done
    follower = leader.follower(2)
    follower.fetch(2)
    leader.run()
    assert not reply.done, "partition 1 is missing"
    follower.fetch(1, index=1)
    leader.run()
    assert errors(reply) == {(PRODUCER, "t", 0): E.NONE, (PRODUCER, "t", 1): E.NONE}


def test_markers_that_are_not_replicated_in_time() -> None:
    leader = Leader("/d", MemoryDisk(), request_timeout_ms="9000")
    leader.register(2)
    leader.create(replicas=[1, 2], partitions=2)
    reply = write(leader, marker({"t": [0, 1]}))
    follower = leader.follower(2)
    follower.fetch(1)
    leader.runtime.advance(8.9)
    assert not reply.done
    leader.runtime.advance(0.1)
    assert errors(reply) == {(PRODUCER, "t", 0): E.NONE, (PRODUCER, "t", 1): E.REQUEST_TIMED_OUT}
    follower.fetch(1, index=1)
    leader.run()


def test_only_the_leader_writes_markers() -> None:
    leader = Leader("/d", MemoryDisk())
    leader.register(2)
    leader.create(replicas=[1, 2], leader=2)
    leader.create(replicas=[2], leader=2, name="elsewhere", topic_id=b"elsewhere".ljust(16))
    assert errors(write(leader, marker({"t": [0], "elsewhere": [0]}))) == {
        (PRODUCER, "t", 0): E.NOT_LEADER_OR_FOLLOWER,
        (PRODUCER, "elsewhere", 0): E.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_offsets_of_groups(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    """The marker goes through the group coordinator, so the offsets can be read when it is answered."""
    coordinator = fc.FindCoordinatorRequest(key="group", coordinator_keys=["group"])
    leader.ask(FIND_COORDINATOR, 4, coordinator)
    leader.run()
    topic = "__consumer_offsets"
    shard = leader.node.services.groups.shards.led[0].shard
    ended: list[Any] = []
    monkeypatch.setattr(shard, "end_transaction", lambda *arguments: ended.append(arguments))
    reply = write(leader, marker({topic: [0]}, epoch=4, coordinator_epoch=2, version=2))
    assert not reply.done
    [(seen, done)] = ended
    assert (seen.producer_id, seen.producer_epoch, seen.commit) == (PRODUCER, 4, True)
    assert (seen.coordinator_epoch, seen.transaction_version) == (2, 2)
    done(E.COORDINATOR_NOT_AVAILABLE)
    assert errors(reply) == {(PRODUCER, topic, 0): E.NOT_LEADER_OR_FOLLOWER}


def test_many_markers_are_written_in_slices() -> None:
    leader = Leader("/d", MemoryDisk())
    leader.create(replicas=[1], partitions=300)
    reply = write(leader, *(marker({"t": list(range(300))}, producer=producer) for producer in range(20)))
    leader.runtime.run_until_idle()
    found = errors(reply)
    assert len(found) == 6000
    assert set(found.values()) == {E.NONE}


def test_producers_of_a_partition(leader: Leader) -> None:
    append(leader)
    append(leader, sequence=1)
    append(leader, producer=8, epoch=2)
    write(leader, marker({"t": [0]}, coordinator_epoch=5))
    answer = producers(leader)
    now = leader.runtime.time_ms()
    assert (answer.error_code, answer.error_message) == (E.NONE, None)
    assert answer.active_producers == [
        dp.ProducerState(PRODUCER, 0, 1, now, 5, -1),
        dp.ProducerState(8, 2, 0, TIME, -1, 2),
    ]
    assert producers(leader, 1).active_producers == []


def test_a_producer_of_markers_only(leader: Leader) -> None:
    write(leader, marker({"t": [0]}, epoch=6, coordinator_epoch=5))
    assert producers(leader).active_producers == [
        dp.ProducerState(PRODUCER, 6, -1, leader.runtime.time_ms(), 5, -1)
    ]


def test_every_replica_describes_its_producers() -> None:
    leader = Leader("/d", MemoryDisk())
    leader.register(2)
    leader.create(replicas=[1, 2])
    append(leader)
    leader.change(leader=2, isr=[1, 2])
    assert [each.producer_id for each in producers(leader).active_producers] == [PRODUCER]


def test_partitions_that_are_not_here(leader: Leader) -> None:
    leader.register(2)
    leader.create(replicas=[2], leader=2, name="elsewhere", topic_id=b"elsewhere".ljust(16))
    for topic, index, error, message in (
        ("elsewhere", 0, E.NOT_LEADER_OR_FOLLOWER, None),
        ("t", 3, E.UNKNOWN_TOPIC_OR_PARTITION, None),
        ("nothing", 0, E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_OR_PARTITION.message),
        ("bad name", 0, E.INVALID_TOPIC_EXCEPTION, ANY),
    ):
        answer = producers(leader, index, topic)
        assert (answer.error_code, answer.error_message) == (error, message)
    leader.partition(1).log.fail("the disk has failed")
    assert producers(leader, 1).error_code == E.KAFKA_STORAGE_ERROR


def test_a_request_that_repeats_a_partition_gets_no_endless_answer(leader: Leader) -> None:
    append(leader)
    request = dp.DescribeProducersRequest([dp.TopicRequest("t", [0] * 100)])
    reply = leader.ask(DESCRIBE_PRODUCERS, 0, request)
    leader.run()
    codes = [each.error_code for each in reply.answer.topics[0].partitions]
    assert codes == [E.NONE] * 11 + [E.INVALID_REQUEST] * 89
