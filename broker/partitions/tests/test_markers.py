"""Transactions in replicated partitions: verification, markers, the last stable offset, and leaders that change."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.broker.tests.leader import Leader
from barnabas.broker.tests.replicas import Replica, Replicas
from barnabas.storage.errors import StorageError
from barnabas.storage.log.verification import VERIFICATION_OFF, Verification
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.records import Record, build_batch

PRODUCER = 7


def append(
    replica: Replica, sequence: int, verification: Verification | None = VERIFICATION_OFF, epoch: int = 0
) -> int:
    batch = build_batch(
        [Record(0, replica.runtime.time_ms(), b"k", b"v")],
        producer_id=PRODUCER,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
    partition = replica.partition
    return partition.append(memoryview(bytearray(batch)), verification=verification).base_offset


def end(replica: Replica, epoch: int = 0, *, version: int = 0, coordinator_epoch: int = 0) -> list[E]:
    """Commit. The result, once it is known."""
    results: list[E] = []
    replica.partition.append_marker(
        PRODUCER,
        epoch,
        commit=True,
        coordinator_epoch=coordinator_epoch,
        transaction_version=version,
        done=results.append,
    )
    return results


def begin(
    replica: Replica, epoch: int = 0, sequence: int = 0, *, version_2: bool = False
) -> Verification | None:
    return replica.partition.begin_verification(PRODUCER, epoch, sequence, supports_epoch_bump=version_2)


def test_a_marker_is_answered_when_every_replica_in_sync_has_it() -> None:
    replicas = Replicas()
    replicas.run()
    append(replicas[1], 0, begin(replicas[1]))
    result = end(replicas[1])
    assert result == []
    assert replicas[1].partition.last_stable_offset == 0
    replicas.run()
    assert result == [E.NONE]
    replicas.run(1)
    for replica in replicas.alive.values():
        assert (replica.partition.high_watermark, replica.partition.last_stable_offset) == (2, 2)


def test_with_one_replica_a_marker_is_answered_at_once() -> None:
    replicas = Replicas(ids=(1,))
    append(replicas[1], 0, begin(replicas[1]))
    assert end(replicas[1]) == [E.NONE]
    assert replicas[1].partition.last_stable_offset == 2


def test_only_the_leader_verifies_and_ends() -> None:
    """However old the epochs are: the answer must not look as if the transaction had a new owner."""
    replicas = Replicas()
    append(replicas[1], 0, epoch=3)
    replicas.run()
    assert replicas[2].log.log_end_offset == 1
    assert end(replicas[2]) == [E.NOT_LEADER_OR_FOLLOWER]
    with pytest.raises(StorageError) as caught:
        begin(replicas[2])
    assert caught.value.error == E.NOT_LEADER_OR_FOLLOWER
    assert end(replicas[1]) == [E.INVALID_PRODUCER_EPOCH]
    assert end(replicas[1], 3, coordinator_epoch=4) == [], "until the others have it"
    assert end(replicas[1], 3, coordinator_epoch=3) == [E.TRANSACTION_COORDINATOR_FENCED]


def test_a_marker_needs_enough_replicas_in_sync() -> None:
    replicas = Replicas(min_insync_replicas="2")
    append(replicas[1], 0, epoch=3)
    replicas.run()
    replicas.kill(2, 3)
    replicas.elect(1, isr=[1])
    assert end(replicas[1], 3) == [E.NOT_ENOUGH_REPLICAS]
    assert end(replicas[1]) == [E.NOT_ENOUGH_REPLICAS], "before the epochs are compared, as in Kafka"
    assert replicas[1].log.log_end_offset == 1


def test_a_leader_that_stops_leading_answers() -> None:
    replicas = Replicas()
    replicas.run()
    append(replicas[1], 0)
    replicas.kill(2, 3)
    result = end(replicas[1])
    replicas.elect(-1)
    assert result == [E.NOT_LEADER_OR_FOLLOWER]


def test_a_new_leader_knows_the_open_transaction() -> None:
    replicas = Replicas()
    replicas.run()
    append(replicas[1], 0, begin(replicas[1]))
    replicas.run()
    replicas.kill(1)
    replicas.elect(2, isr=[2, 3])
    replicas.run()
    assert replicas[2].partition.last_stable_offset == 0
    assert begin(replicas[2], sequence=1) is None
    append(replicas[2], 1, None)
    result = end(replicas[2], 1, version=2)
    replicas.run(1)
    assert result == [E.NONE]
    assert [replicas[each].partition.last_stable_offset for each in (2, 3)] == [3, 3]
    with pytest.raises(StorageError) as caught:
        append(replicas[2], 2, None)
    assert caught.value.error == E.INVALID_PRODUCER_EPOCH


def test_a_verification_does_not_outlast_the_marker_of_another_leader() -> None:
    """The broker verifies, loses its leadership, gets the marker by replication and leads again."""
    replicas = Replicas()
    replicas.run()
    verification = begin(replicas[1])
    replicas.elect(2, isr=[1, 2, 3])
    replicas.run(1)
    append(replicas[2], 0, begin(replicas[2]))
    end(replicas[2])
    replicas.run(1)
    replicas.elect(1, isr=[1, 2, 3])
    replicas.run(1)
    with pytest.raises(StorageError) as caught:
        append(replicas[1], 1, verification)
    assert caught.value.error == E.INVALID_TXN_STATE
    append(replicas[1], 1, begin(replicas[1], sequence=1))


def test_an_uncommitted_marker_that_is_cut_off_leaves_the_transaction_open() -> None:
    replicas = Replicas()
    replicas.run()
    append(replicas[1], 0)
    replicas.run()
    replicas.kill(2, 3)
    end(replicas[1])
    assert replicas[1].partition.last_stable_offset == 0
    replicas.kill(1)
    replicas.start(2)
    replicas.start(3)
    for broker_id in (2, 3):
        replicas.tell(broker_id)
    replicas.elect(2, isr=[2, 3])
    replicas.run(1)
    append(replicas[2], 1)
    replicas.run(1)
    replicas.start(1)
    replicas.tell(1)
    replicas.run(2)
    replicas.check_identical()
    for replica in replicas.alive.values():
        assert (replica.log.log_end_offset, replica.partition.last_stable_offset) == (2, 0)


def test_a_partition_whose_disk_has_failed_refuses() -> None:
    leader = Leader("/d", MemoryDisk())
    leader.register(2, 3)
    leader.create()
    partition = leader.partition()
    partition.log.fail("the disk has failed")
    results: list[E] = []
    partition.append_marker(
        1, 0, commit=True, coordinator_epoch=0, transaction_version=0, done=results.append
    )
    assert results == [E.KAFKA_STORAGE_ERROR]
    with pytest.raises(StorageError) as caught:
        partition.begin_verification(1, 0, 0, supports_epoch_bump=True)
    assert caught.value.error == E.KAFKA_STORAGE_ERROR


def test_a_marker_is_not_counted_on_after_a_restart_until_it_is_committed(tmp_path: Path) -> None:
    """The marker was not replicated: another leader could have cut it off."""
    leader = Leader(tmp_path)
    leader.register(2)
    leader.create(replicas=[1, 2])
    batch = build_batch(
        [Record(0, leader.runtime.time_ms(), b"k", b"v")],
        producer_id=PRODUCER,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    leader.partition().append(memoryview(bytearray(batch)), verification=VERIFICATION_OFF)
    leader.follower(2).fetch(1)
    leader.partition().append_marker(
        PRODUCER, 0, commit=True, coordinator_epoch=0, transaction_version=0, done=lambda _: None
    )
    assert (leader.partition().high_watermark, leader.partition().last_stable_offset) == (1, 0)
    leader = leader.restart(tmp_path)
    assert (leader.partition().high_watermark, leader.partition().last_stable_offset) == (1, 0)
    leader.follower(2).fetch(2)
    assert (leader.partition().high_watermark, leader.partition().last_stable_offset) == (2, 2)
    leader.node.stop()
