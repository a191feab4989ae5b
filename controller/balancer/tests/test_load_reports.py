"""Load reports: those that can't be true, old ones, and slow replicas."""

from __future__ import annotations

import math

import msgspec
import pytest

from barnabas.controller.balancer.load_reports import (
    PARTITIONS_MAX,
    ClusterLoads,
    LoadReport,
    PartitionLoad,
    problem_of,
)
from barnabas.controller.link.messages import MalformedMessage, decode, encode

TOPIC = b"t" * 16
LOAD = PartitionLoad(TOPIC, 0, 5.0, 6.0, 7)
REPORT = LoadReport([LOAD], 5.0, 6.0, 7, 50, 100, {2: 1})


def hedged(count: int, replica: int = 3) -> LoadReport:
    return LoadReport([], 0, 0, 0, 0, 0, {replica: count})


@pytest.mark.parametrize(
    "changes",
    [
        {"bytes_in": -1.0},
        {"bytes_in": math.nan},
        {"bytes_out": math.inf},
        {"bytes_out": 1e300},
        {"size": -5},
        {"usable_bytes": -1},
        {"usable_bytes": 101},
        {"bytes_in": 3.0},  # less than its partition's
        {"size": 5},
        {"hedges": {2: -1}},
        {"partitions": [msgspec.structs.replace(LOAD, bytes_out=math.nan)]},
        {"partitions": [msgspec.structs.replace(LOAD, size=-1)]},
        {"partitions": [PartitionLoad(TOPIC, 0, 0, 0, 0)] * (PARTITIONS_MAX + 1)},
    ],
)
def test_a_report_that_cannot_be_true_counts_as_missing(changes: dict[str, object]) -> None:
    loads = ClusterLoads()
    loads.receive(1, REPORT, 100.0)
    assert loads.missing([1], 101.0, 30.0) == []
    false = msgspec.structs.replace(REPORT, **changes)
    assert problem_of(false)
    loads.receive(1, false, 101.0)
    assert loads.missing([1], 101.0, 30.0) == [1]
    assert 1 not in loads.reports


def test_a_report_on_a_link() -> None:
    assert decode(encode(REPORT), LoadReport) == REPORT
    assert not problem_of(REPORT)
    with pytest.raises(MalformedMessage):
        decode(msgspec.msgpack.encode(["no", "report"]), LoadReport)


def test_old_and_missing_reports() -> None:
    loads = ClusterLoads()
    loads.receive(1, REPORT, 100.0)
    loads.receive(2, REPORT, 120.0)
    assert loads.missing([3, 2, 1], 129.0, 30.0) == [3]
    assert loads.missing([3, 2, 1], 131.0, 30.0) == [1, 3]
    assert loads.age_s(1, 131.0) == 31.0
    loads.clear()
    assert loads.missing([1], 131.0, 30.0) == [1]


def test_a_replica_is_slow_when_two_leaders_say_so() -> None:
    loads = ClusterLoads()
    loads.receive(1, hedged(30), 0.0)
    assert loads.slow(0.0) == {}
    loads.receive(2, hedged(1), 10.0)
    assert loads.slow(10.0) == {3: 0.0}
    assert loads.slow(200.0) == {3: 190.0}
    assert loads.slow(301.0) == {}, "the hedges are more than five minutes old"


def test_few_hedges_are_not_slow() -> None:
    loads = ClusterLoads()
    loads.receive(1, hedged(10), 0.0)
    loads.receive(2, hedged(10), 0.0)
    assert loads.slow(0.0) == {}
    loads.receive(2, hedged(1), 1.0)
    assert loads.slow(1.0) == {3: 0.0}


def test_a_replica_stays_slow_as_long_as_it_is_hedged() -> None:
    loads = ClusterLoads()
    for turn in range(100):
        loads.receive(1, hedged(1), 10.0 * turn)
        loads.receive(2, hedged(1), 10.0 * turn)
    assert 800 < loads.slow(990.0)[3] < 990
