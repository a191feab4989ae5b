"""Consumers that read from followers (KIP-392): what a leader advises, and what a follower serves."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.tests.one_of_several import TOPIC_ID, View, state
from barnabas.controller.metadata.image import partition_record
from barnabas.storage.segment.transaction_marker import build_marker
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.metadata_records import ConfigRecord
from barnabas.wire.records import Record, build_batch

RACK_AWARE = "replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector"
BATCH_COUNT = 4


def batch(offset: int) -> bytes:
    records = [Record(offset=offset, timestamp=1_700_000_000_000, key=None, value=b"v" * 20)]
    return build_batch(records, base_offset=offset, leader_epoch=7)


def in_transaction(offset: int, producer: int) -> bytes:
    """The producer's first batch, as the leader has it."""
    record = Record(offset=offset, timestamp=1_700_000_000_000, key=None, value=b"v" * 20)
    return build_batch(
        [record],
        base_offset=offset,
        leader_epoch=7,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )


def marker(offset: int, producer: int, *, commit: bool) -> bytes:
    built = build_marker(producer, 0, commit=commit, coordinator_epoch=0, timestamp=1_700_000_000_000)
    return struct.pack(">q", offset) + built[8:12] + struct.pack(">i", 7) + built[16:]


class Replicas(View):
    """Node 1 in rack r1, broker 2 in r2, broker 3 in r3, and partition t-0 on all of them."""

    def __init__(self, directory: Path, *more: str) -> None:
        super().__init__(directory, *more)
        self.register(2, rack="r2")
        self.register(3, rack="r3")

    @property
    def hosted(self) -> Any:
        return self.node.services.partitions.get("t", 0)

    def lead(self) -> None:
        """This node leads and has all; broker 2 has that as well and broker 3 half of it, and is not in sync."""
        self.partitions(state(1, [1, 2, 3], [1, 2]))
        for _ in range(BATCH_COUNT):
            self.hosted.append(batch(0))
        self.follows(2, BATCH_COUNT)
        self.follows(3, BATCH_COUNT // 2)

    def follows(self, broker_id: int, offset: int) -> None:
        assert self.hosted.follower_fetched(broker_id, 100 + broker_id, offset, 0) == E.NONE

    def follow(self) -> None:
        """Broker 2 leads. This node has what it has sent so far, of which less is known to be committed."""
        self.partitions(state(2, [1, 2, 3]))
        self.hosted.log.append_as_follower(memoryview(b"".join(map(batch, range(BATCH_COUNT)))))
        self.hosted.set_follower_high_watermark(BATCH_COUNT - 1)

    def request(self, offset: int, *, rack: str = "", epoch: int = -1, **fields: Any) -> FetchRequest:
        topic = FetchTopic(
            topic="t",
            topic_id=TOPIC_ID,
            partitions=[
                FetchPartition(
                    partition=0, fetch_offset=offset, current_leader_epoch=epoch, partition_max_bytes=1 << 20
                )
            ],
        )
        fields = {"max_wait_ms": 0, "min_bytes": 1, "session_epoch": -1, **fields}
        return FetchRequest(max_bytes=1 << 20, topics=[topic], rack_id=rack, **fields)

    def fetch(self, offset: int, version: int = 12, **fields: Any) -> Any:
        return self.ask(1, self.request(offset, **fields), version)

    def fetched(self, offset: int, **fields: Any) -> Any:
        return self.fetch(offset, **fields).responses[0].partitions[0]


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    view = Replicas(tmp_path, RACK_AWARE)
    yield view
    view.node.stop()


def test_a_leader_sends_a_consumer_to_its_rack(replicas: Replicas) -> None:
    replicas.lead()
    answer = replicas.fetched(1, rack="r2")
    assert (answer.preferred_read_replica, answer.error_code, answer.records) == (2, 0, b"")
    assert (answer.high_watermark, answer.log_start_offset) == (BATCH_COUNT, 0)
    for rack in ("", "r1", "r3", "r9"):  # none, its own, one that is not in sync, one without replicas
        answer = replicas.fetched(1, rack=rack)
        assert answer.preferred_read_replica == -1
        assert len(answer.records) > 0
    assert replicas.fetched(1, rack="r2", version=10).preferred_read_replica == -1


def test_a_follower_is_not_advised_that_lacks_the_offset_or_is_gone(replicas: Replicas) -> None:
    replicas.lead()
    replicas.hosted.append(batch(0))
    assert replicas.fetched(BATCH_COUNT, rack="r2").preferred_read_replica == 2
    assert replicas.fetched(BATCH_COUNT + 1, rack="r2").preferred_read_replica == -1
    replicas.register(2, rack="r2", fenced=True)
    assert replicas.fetched(0, rack="r2").preferred_read_replica == -1
    replicas.register(2, rack="r2", listener="OTHER")
    assert replicas.fetched(0, rack="r2").preferred_read_replica == -1


def test_a_leader_sends_a_consumer_to_an_observer(replicas: Replicas) -> None:
    replicas.lead()
    replicas.commit(ConfigRecord(resource_type=2, resource_name="t", name="barnabas.observers", value="3"))
    assert replicas.fetched(BATCH_COUNT // 2, rack="r3").preferred_read_replica == 3
    assert replicas.fetched(BATCH_COUNT // 2 + 1, rack="r3").preferred_read_replica == -1, "it lacks that"
    assert replicas.fetched(1, rack="r2").preferred_read_replica == 2


def test_advice_is_given_at_once_and_in_a_session(replicas: Replicas) -> None:
    replicas.lead()
    begun = replicas.fetch(BATCH_COUNT, rack="r9", session_epoch=0)
    assert begun.session_id != 0
    replicas.hosted.append(batch(0))
    replicas.follows(2, BATCH_COUNT + 1)
    response = replicas.fetch(
        BATCH_COUNT, rack="r2", session_id=begun.session_id, session_epoch=1, max_wait_ms=10_000
    )
    assert response.responses[0].partitions[0].preferred_read_replica == 2


def test_without_a_selector_consumers_read_from_leaders(tmp_path: Path) -> None:
    view = Replicas(tmp_path)
    view.lead()
    answer = view.fetched(1, rack="r2")
    assert (answer.preferred_read_replica, len(answer.records) > 0) == (-1, True)
    view.node.stop()


def test_a_follower_serves_what_it_knows_to_be_committed(replicas: Replicas) -> None:
    replicas.follow()
    size = len(batch(0))
    for offset, error, count in (
        (0, E.NONE, BATCH_COUNT - 1),
        (BATCH_COUNT - 2, E.NONE, 1),
        (BATCH_COUNT - 1, E.NONE, 0),  # here, and not known to be committed
        (BATCH_COUNT, E.NONE, 0),
        (BATCH_COUNT + 1, E.OFFSET_OUT_OF_RANGE, 0),
        (-1, E.OFFSET_OUT_OF_RANGE, 0),
    ):
        answer = replicas.fetched(offset, epoch=7)
        assert (E(answer.error_code), len(answer.records or b"")) == (error, count * size), offset
        assert answer.preferred_read_replica == -1
    assert E(replicas.fetched(0, version=10).error_code) == E.NOT_LEADER_OR_FOLLOWER
    assert E(replicas.fetched(0, epoch=6).error_code) == E.FENCED_LEADER_EPOCH
    assert E(replicas.fetched(0, epoch=8).error_code) == E.UNKNOWN_LEADER_EPOCH
    assert E(replicas.fetched(0, replica_id=3).error_code) == E.TOPIC_AUTHORIZATION_FAILED


def test_a_fetch_that_waits_at_a_follower_is_answered_when_the_high_watermark_moves(
    replicas: Replicas,
) -> None:
    replicas.follow()
    begun = replicas.ask_later(1, replicas.request(BATCH_COUNT - 1, max_wait_ms=10_000), 12)
    assert begun.responses == []
    replicas.hosted.set_follower_high_watermark(BATCH_COUNT)
    replicas.runtime.advance(0)
    (response,) = begun.responses
    answer = response.responses[0].partitions[0]
    assert (answer.high_watermark, len(answer.records) > 0) == (BATCH_COUNT, True)


def test_a_fetch_that_waits_at_a_follower_is_answered_when_the_replica_is_removed(replicas: Replicas) -> None:
    replicas.follow()
    begun = replicas.ask_later(1, replicas.request(BATCH_COUNT - 1, max_wait_ms=10_000), 12)
    replicas.commit(partition_record(TOPIC_ID, 0, state(2, [2, 3])))
    (response,) = begun.responses
    assert E(response.responses[0].partitions[0].error_code) == E.NOT_LEADER_OR_FOLLOWER


def test_a_follower_serves_committed_transactions(replicas: Replicas) -> None:
    """As far as it knows their markers to be committed."""
    replicas.partitions(state(2, [1, 2, 3]))
    log = replicas.hosted.log
    batches = (
        in_transaction(0, 5),
        in_transaction(1, 6),
        marker(2, 5, commit=False),
        marker(3, 6, commit=True),
    )
    log.append_as_follower(memoryview(b"".join(batches)))

    def committed(offset: int) -> tuple[int, int, list[tuple[int, int]], int]:
        """(high watermark, last stable offset, aborted transactions, bytes)"""
        answer = replicas.fetched(offset, isolation_level=1)
        aborted = [(each.producer_id, each.first_offset) for each in answer.aborted_transactions]
        return answer.high_watermark, answer.last_stable_offset, aborted, len(answer.records or b"")

    replicas.hosted.set_follower_high_watermark(2)
    assert committed(0) == (2, 0, [], 0), "the abort marker could be cut off"
    waiting = replicas.ask_later(1, replicas.request(0, max_wait_ms=10_000, isolation_level=1), 12)
    replicas.hosted.set_follower_high_watermark(3)
    replicas.runtime.advance(0)
    [response] = waiting.responses
    assert response.responses[0].partitions[0].last_stable_offset == 1
    assert committed(0) == (3, 1, [(5, 0)], len(batches[0]))
    waiting = replicas.ask_later(1, replicas.request(1, max_wait_ms=10_000, isolation_level=1), 12)
    replicas.hosted.set_follower_high_watermark(4)
    replicas.runtime.advance(0)
    assert waiting.done
    assert committed(0) == (4, 4, [(5, 0)], sum(map(len, batches)))
    assert committed(3) == (4, 4, [], len(batches[3]))


def test_a_follower_cuts_off_a_marker(replicas: Replicas) -> None:
    replicas.partitions(state(2, [1, 2, 3]))
    log = replicas.hosted.log
    log.append_as_follower(memoryview(in_transaction(0, 5) + marker(1, 5, commit=True)))
    replicas.hosted.set_follower_high_watermark(1)
    log.truncate_to(1)
    log.append_as_follower(memoryview(marker(1, 5, commit=False)))
    assert replicas.fetched(0, isolation_level=1).last_stable_offset == 0
    replicas.hosted.set_follower_high_watermark(2)
    answer = replicas.fetched(0, isolation_level=1)
    assert (answer.last_stable_offset, answer.aborted_transactions[0].producer_id) == (2, 5)
