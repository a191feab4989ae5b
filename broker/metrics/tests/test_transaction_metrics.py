"""Metrics of the transactions of a node's partitions, from a node without a listener."""

from __future__ import annotations

from barnabas.broker.metrics.tests.node_samples import samples
from barnabas.broker.tests.leader import Leader
from barnabas.storage.log.verification import VERIFICATION_OFF
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.records import Record, build_batch

MANAGER = "kafka_server_replicamanager"
VERIFICATION = "kafka_server_addpartitionstotxnmanager_verification"
TRANSACTION_TIMEOUT_MAX_S, LATE_AFTER_S = 900, 300


def append(leader: Leader, index: int, producer: int, *, transactional: bool) -> None:
    batch = build_batch(
        [Record(0, leader.runtime.time_ms(), b"k", b"v")],
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        transactional=transactional,
    )
    leader.partition(index).append(memoryview(bytearray(batch)), verification=VERIFICATION_OFF)


def test_producers_and_late_transactions() -> None:
    leader = Leader("/d", MemoryDisk())
    leader.create(replicas=[1], partitions=3)
    append(leader, 0, 1, transactional=False)
    append(leader, 0, 2, transactional=True)
    append(leader, 1, 2, transactional=True)
    found = samples(leader)
    assert found[f"{MANAGER}_produceridcount"] == 3
    leader.runtime.advance(TRANSACTION_TIMEOUT_MAX_S + LATE_AFTER_S)
    assert samples(leader)[f"{MANAGER}_partitionswithlatetransactionscount"] == 0
    leader.runtime.advance(1)
    assert samples(leader)[f"{MANAGER}_partitionswithlatetransactionscount"] == 2
    leader.partition(1).append_marker(
        2, 0, commit=False, coordinator_epoch=0, transaction_version=0, done=lambda _: None
    )
    assert samples(leader)[f"{MANAGER}_partitionswithlatetransactionscount"] == 1
    leader.register(2)
    leader.change(0, replicas=[1, 2], isr=[1, 2], leader=2)
    assert samples(leader)[f"{MANAGER}_partitionswithlatetransactionscount"] == 0, "led elsewhere"


def test_verifications() -> None:
    leader = Leader("/d", MemoryDisk())
    manager = leader.node.services.add_partitions_to_txn
    assert samples(leader)[f"{VERIFICATION}failurerate_total"] == 0
    assert not [name for name in samples(leader) if name.startswith(f"{VERIFICATION}timems")]
    manager.failures = 4
    manager.times_s.extend(number / 1000 for number in range(1, 101))
    found = samples(leader)
    assert found[f"{VERIFICATION}failurerate_total"] == 4
    assert found[f'{VERIFICATION}timems{{quantile="0.50"}}'] == 51
    assert found[f'{VERIFICATION}timems{{quantile="0.999"}}'] == 100
