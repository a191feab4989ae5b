"""What is counted of requests: their number, their times and their errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.requests.request_metrics import (
    BUCKETS,
    SHORT_US,
    RequestMetrics,
    count_time,
    new_buckets,
    upper_bound_s,
)
from barnabas.broker.tests.leader import Leader
from barnabas.broker.tests.virtual_client import Client
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from barnabas.wire.messages.heartbeat import HeartbeatResponse
from barnabas.wire.messages.list_groups import ListGroupsResponse

PRODUCE, FETCH, LIST_OFFSETS, API_VERSIONS = 0, 1, 2, 18


@given(st.integers(0, 2**47))
def test_a_bucket_ends_at_most_an_eighth_behind_its_times(microseconds: int) -> None:
    buckets = new_buckets()
    count_time(buckets, microseconds / 1e6)
    assert sum(buckets) == 1
    end_us = upper_bound_s(buckets.index(1)) * 1e6
    assert microseconds * (1 - 1e-9) - 1 <= end_us <= microseconds * (9 / 8) + 2


def test_the_buckets_follow_each_other() -> None:
    ends = [upper_bound_s(bucket) for bucket in range(BUCKETS)]
    assert ends == sorted(set(ends))
    assert ends[SHORT_US - 1] == pytest.approx(256e-6)


def metrics(leader: Leader, api_key: int) -> list[RequestMetrics]:
    return [each for each in leader.node._dispatcher.metrics() if each.api_key == api_key]


def test_requests_are_counted_by_api_and_version(tmp_path: Path) -> None:
    leader = Leader(tmp_path)
    leader.create(replicas=[1])
    client = Client(leader)
    for _ in range(3):
        client.send(client.produce("x", acks=1))
    client.send(client.versions())
    client.send(client.latest())
    assert [(each.api_version, each.requests) for each in metrics(leader, PRODUCE)] == [(12, 3)]
    assert [(each.api_version, each.requests) for each in metrics(leader, API_VERSIONS)] == [(3, 1)]
    assert [(each.api_version, each.requests) for each in metrics(leader, LIST_OFFSETS)] == [(10, 1)]


def test_the_time_that_a_request_waits_is_its_remote_time(tmp_path: Path) -> None:
    leader = Leader(tmp_path)
    leader.create(replicas=[1])
    client = Client(leader)
    client.send(client.fetch(max_wait_ms=500))
    of_consumers, of_followers = metrics(leader, FETCH)
    assert of_consumers.waits is None
    leader.runtime.advance(1)
    assert len(client.answers) == 1
    assert (of_consumers.requests, of_followers.requests) == (1, 0)
    waits = of_consumers.waits
    assert waits is not None
    for buckets, expected_s in ((waits.total, 0.5), (waits.local, 0.0), (waits.remote, 0.5)):
        assert expected_s <= upper_bound_s(buckets.index(1)) <= expected_s * 9 / 8 + 1e-6
    client.send(client.produce("x", acks=1))
    client.send(client.fetch())
    assert of_consumers.requests == 2
    assert sum(waits.total) == 1


def test_errors_are_counted_wherever_they_are_in_a_response() -> None:
    counted = RequestMetrics(FETCH, 17)
    failed = [PartitionData(partition_index=0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE, high_watermark=-1)]
    served = [PartitionData(partition_index=1, high_watermark=1)]
    counted.count_errors(
        FetchResponse(
            responses=[FetchableTopicResponse("a", partitions=failed * 2 + served)],
        )
    )
    counted.count_errors(FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
    counted.count_errors(HeartbeatResponse())
    counted.count_errors(ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    assert counted.errors == {
        ErrorCode.OFFSET_OUT_OF_RANGE: 2,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND: 1,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: 1,
    }


def test_errors_of_refused_requests_are_counted(tmp_path: Path) -> None:
    leader = Leader(tmp_path)
    leader.create(replicas=[1])
    client = Client(leader)
    client.send(client.produce("x", index=7))
    client.send(client.fetch(offset=99))
    (produce,) = metrics(leader, PRODUCE)
    assert produce.errors == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 1}
    assert metrics(leader, FETCH)[0].errors == {ErrorCode.OFFSET_OUT_OF_RANGE: 1}


def test_a_slow_request_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = Leader(tmp_path)
    leader.create(replicas=[1])
    client = Client(leader)
    client.send(client.fetch(max_wait_ms=5000))
    leader.runtime.advance(6)
    client.send(client.latest())
    assert "took" not in caplog.text, "waiting does not count"
    monkeypatch.setattr(leader.node._dispatcher, "_monotonic", lambda: leader.runtime.monotonic() + 2)
    client.send(client.latest())
    assert "ListOffsets v10 of c at 127.0.0.1 took 2000 ms" in caplog.text
    caplog.clear()
    for _ in range(100):
        client.send(client.latest())
    assert "took" not in caplog.text, "counted, and logged once a minute"


def test_fetches_of_brokers_are_counted_apart(tmp_path: Path) -> None:
    leader = Leader(tmp_path)
    leader.create(replicas=[1])
    client = Client(leader)
    client.send(client.produce("x", acks=1))
    client.send(client.fetch())
    (connection,) = leader.node._connections.open
    connection.peer.broker_id = 2
    client.send(client.fetch())
    client.send(client.fetch())
    of_consumers, of_followers = metrics(leader, FETCH)
    assert (of_consumers.requests, of_followers.requests) == (1, 2)
