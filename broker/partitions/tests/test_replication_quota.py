"""Replication throttles (KIP-73): what counts, how it is measured, who is held back."""

from __future__ import annotations

import pytest

from barnabas.broker.partitions.replication_quota import ReplicationQuota, throttled_partitions
from barnabas.broker.quotas.rate import NO_LIMIT
from barnabas.broker.tests.replicas import Replicas
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
    quota = ReplicationQuota(runtime, 1, lambda: 1000.0, lambda _: "*")
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
    quota = ReplicationQuota(VirtualRuntime(), 1, lambda: NO_LIMIT, lambda _: "*")
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


def test_a_follower_that_catches_up_is_throttled() -> None:
    replicas = Replicas(fetching={"max_bytes": 3000})
    fill(replicas)
    follower = replicas.start(2)
    follower.fetchers._settings.quota = ReplicationQuota(follower.runtime, 2, lambda: 1000.0, lambda _: "0:2")
    replicas.tell(2)
    replicas.run(20)
    assert 10 < follower.log.log_end_offset < 45
    follower.fetchers._settings.quota = None
    replicas.run(5)
    assert follower.log.log_end_offset == 100


def test_a_leader_throttles_followers_out_of_sync() -> None:
    replicas = Replicas(fetching={"max_bytes": 3000})
    fill(replicas)
    leader = replicas[1]
    leader.node.services.leader_quota = ReplicationQuota(leader.runtime, 1, lambda: 1000.0, lambda _: "0:1")
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
