"""Replication throttles (KIP-73): what counts, how it is measured, who is held back."""

from __future__ import annotations

import pytest

from barnabas.broker.partitions.replication_quota import (
    FOLLOWER,
    ReplicationQuota,
    reassignment_quota,
    replication_quota,
    throttled_partitions,
)
from barnabas.broker.quotas.rate import NO_LIMIT
from barnabas.broker.tests.replicas import TOPIC_ID, Replica, Replicas
from barnabas.wire.messages.metadata_records import ConfigRecord, PartitionChangeRecord
from compat_tests.virtual.runtime import VirtualRuntime


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", frozenset()),
        ("*", None),
        ("0:1,3:1,4:2", frozenset({0, 3})),
        (" 7:1 , 8:1", frozenset({7, 8})),
        ("none", frozenset()),
    ],
)
def test_the_list_of_throttled_replicas(text: str, expected: frozenset[int] | None) -> None:
    assert throttled_partitions(text, 1) == expected


def test_the_rate_is_kept_over_time() -> None:
    runtime = VirtualRuntime()
    quota = ReplicationQuota(runtime, lambda: 1000.0, lambda _: True)
    copied = 0
    while runtime.monotonic() < 100:
        delay_s = quota.delay_s()
        if delay_s > 0:
            assert quota.is_exceeded
            runtime.advance(delay_s)
        else:
            quota.record(500)
            copied += 500
            runtime.advance(0.01)
    assert 90_000 <= copied <= 115_000  # the windows may be filled at once at the beginning


def test_without_a_rate_a_quota_is_never_exceeded() -> None:
    quota = ReplicationQuota(VirtualRuntime(), lambda: NO_LIMIT, lambda _: True)
    quota.record(1 << 50)
    assert not quota.is_set
    assert not quota.is_exceeded


def fill(replicas: Replicas) -> None:
    """100 KB in the leader; follower 2 has nothing and is not in sync."""
    replicas.kill(2)
    replicas.elect(1, [1, 3])
    for _ in range(100):
        replicas.produce(1, "x" * 1000)
    replicas.run()
    replicas.wipe(2)


def quotas_of(replica: Replica, **limits: str) -> list[ReplicationQuota]:
    """Those of a follower with these dynamic configs of its broker."""
    services = replica.node.services
    config = services.config
    config.stored_cluster = {
        name.replace("_", "."): value for name, value in limits.items() if name.startswith("follower")
    }
    config.barnabas_reassignment_throttled_rate = int(limits.get("reassignment", 2**63 - 1))
    return [
        replication_quota(replica.runtime, config, FOLLOWER, lambda: services.controller.image),
        reassignment_quota(replica.runtime, config),
    ]


def catching_up(**limits: str) -> Replicas:
    """Follower 2 has these quotas and has just begun."""
    replicas = Replicas(fetching={"max_bytes": 3000})
    fill(replicas)
    follower = replicas.start(2)
    follower.fetchers._settings.quotas = quotas_of(follower, **limits)
    replicas.tell(2)
    return replicas


@pytest.mark.parametrize("is_throttled", [True, False])
def test_a_follower_that_catches_up_is_throttled(is_throttled: bool) -> None:
    replicas = catching_up(follower_replication_throttled_rate="1000")
    follower = replicas[2]
    name, value = "follower.replication.throttled.replicas", "0:2" if is_throttled else "1:2"
    follower.commit([ConfigRecord(resource_type=2, resource_name="t", name=name, value=value)])
    replicas.run(20)
    if is_throttled:
        assert 10 < follower.log.log_end_offset < 45
        follower.fetchers._settings.quotas = ()
        replicas.run(5)
    assert follower.log.log_end_offset == 100


@pytest.mark.parametrize("is_added", [True, False])
def test_a_replica_that_a_reassignment_adds_is_throttled(is_added: bool) -> None:
    """And no other one that catches up."""
    replicas = catching_up(reassignment="1000")
    follower = replicas[2]
    if is_added:
        replicas.commit(PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, adding_replicas=[2]))
    replicas.run(20)
    if is_added:
        assert 10 < follower.log.log_end_offset < 45
        replicas.commit(PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, adding_replicas=[]))
        replicas.run(5)
    assert follower.log.log_end_offset == 100


def test_a_leader_throttles_followers_out_of_sync() -> None:
    replicas = Replicas(fetching={"max_bytes": 3000})
    fill(replicas)
    leader = replicas[1]
    leader.node.services.leader_quota = ReplicationQuota(leader.runtime, lambda: 1000.0, lambda _: True)
    replicas.start(2)
    replicas.tell(2)
    errors = replicas.produce(1, "y", acks=-1)
    replicas.run(0.1)
    assert errors, "a replica in sync is not held back"
    replicas.run(20)
    assert 10 < replicas[2].log.log_end_offset < 50
    leader.node.services.leader_quota = None
    replicas.run(5)
    assert replicas[2].log.log_end_offset == 101
