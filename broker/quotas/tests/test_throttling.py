"""Clients that exceed a quota, over the virtual network: answered at once, with the time, and not served until it has passed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.tests.leader import Leader
from barnabas.broker.tests.virtual_client import Client
from barnabas.controller.metadata.image import QuotaEntity, quota_record

USER: QuotaEntity = (("user", "ANONYMOUS"),)
WINDOW_S = 10  # over which a new rate is measured


@pytest.fixture
def leader(tmp_path: Path) -> Leader:
    leader = Leader(tmp_path)
    leader.create(replicas=[1])
    return leader


def limit(leader: Leader, kind: str, value: float | None, entity: QuotaEntity = USER) -> None:
    leader.commit(quota_record(entity, kind, value))


def advance(leader: Leader, seconds: float) -> None:
    leader.runtime.advance(seconds)


def throttle_times(client: Client) -> list[int]:
    return [answer.throttle_time_ms for _, answer in client.answers]


def is_near(found_ms: int, expected_s: float) -> bool:
    return abs(found_ms / 1000 - expected_s) < 0.1


def test_a_producer_over_its_quota_is_answered_at_once_and_served_later(leader: Leader) -> None:
    limit(leader, "producer_byte_rate", 100)
    client = Client(leader)
    frame = client.produce("x" * 2000)
    client.send(frame)
    assert client.errors() == [0]
    expected_s = (len(frame) - 4) / 100 - WINDOW_S
    assert is_near(throttle_times(client)[0], expected_s)
    client.send(client.produce("y") + client.produce("z"))
    advance(leader, expected_s - 0.5)
    assert len(client.answers) == 1
    advance(leader, 1)
    assert client.errors() == [0, 0, 0], "both are served when the time is over"


def test_a_producer_without_answers_is_not_read_either(leader: Leader) -> None:
    limit(leader, "producer_byte_rate", 100)
    client = Client(leader)
    client.send(client.produce("x" * 2000, acks=0) + client.versions())
    assert client.answers == []
    assert leader.partition().log.log_end_offset == 1
    advance(leader, 30)
    assert len(client.answers) == 1


def test_a_producer_within_its_quota_is_not_throttled(leader: Leader) -> None:
    limit(leader, "producer_byte_rate", 1000)
    client = Client(leader)
    for _ in range(60):
        client.send(client.produce("x" * 100))
        advance(leader, 0.3)
    assert set(throttle_times(client)) == {0}


def test_the_clients_of_a_user_share_its_quota_and_others_do_not(leader: Leader) -> None:
    limit(leader, "producer_byte_rate", 100)
    first, second = Client(leader), Client(leader)
    first.send(first.produce("x" * 2000))
    second.send(second.produce("x"))
    assert throttle_times(second)[0] > 0
    limit(leader, "producer_byte_rate", None)
    limit(leader, "producer_byte_rate", 100, (("user", "somebody else"),))
    third = Client(leader)
    third.send(third.produce("x" * 2000))
    assert throttle_times(third) == [0]


def test_a_throttled_connection_ends_its_wait_when_it_is_closed(leader: Leader) -> None:
    limit(leader, "producer_byte_rate", 1)
    client = Client(leader)
    client.send(client.produce("x" * 2000))
    client._transport.close()
    advance(leader, 3000)
    other = Client(leader)
    other.send(other.versions())
    assert len(other.answers) == 1


def test_produces_that_wait_for_replicas_are_throttled_as_they_come(leader: Leader) -> None:
    leader.register(2)
    leader.create(replicas=[1, 2], name="u", topic_id=b"u".ljust(16))
    limit(leader, "producer_byte_rate", 100)
    client = Client(leader)
    frames = b"".join(client.produce("x" * 2000, timeout_ms=5000, topic="u") for _ in range(2))
    client.send(frames)
    partition = leader.partition(name="u")
    assert partition.log.log_end_offset == 1, "the second waits, although the first has no answer yet"
    advance(leader, 5.1)
    assert client.errors() == [7], "REQUEST_TIMED_OUT"
    assert throttle_times(client)[0] > 0
    advance(leader, 30)
    assert partition.log.log_end_offset == 2


def fill(leader: Leader, count: int) -> None:
    client = Client(leader)
    for number in range(count):
        client.send(client.produce(f"{number}" + "x" * 1000))


def records(answer: Any) -> int:
    return sum(len(part.records or b"") for topic in answer.responses for part in topic.partitions)


def test_a_consumer_over_its_quota_gets_nothing_until_it_may(leader: Leader) -> None:
    fill(leader, 10)
    limit(leader, "consumer_byte_rate", 300)
    client = Client(leader)
    client.send(client.fetch(0))
    assert 1000 < records(client.answers[0][1]) <= 300 * WINDOW_S
    assert throttle_times(client) == [0]
    client.send(client.fetch(2))
    late = client.answers[1][1]
    assert (late.error_code, late.responses) == (0, [])
    assert late.throttle_time_ms > 1000
    client.send(client.fetch(2))
    advance(leader, late.throttle_time_ms / 1000 - 0.5)
    assert len(client.answers) == 2
    advance(leader, 1)
    assert len(client.answers) == 3


def test_a_throttled_fetch_leaves_its_session_as_it_was(leader: Leader) -> None:
    fill(leader, 10)
    client = Client(leader)
    client.send(client.fetch(0, epoch=0))
    session_id = client.answers[0][1].session_id
    assert session_id > 0
    limit(leader, "consumer_byte_rate", 300)
    client.send(client.fetch(0, session_id=session_id, epoch=1))
    client.send(client.fetch(2, session_id=session_id, epoch=2))
    throttled = client.answers[2][1]
    assert (throttled.session_id, throttled.responses) == (session_id, [])
    advance(leader, throttled.throttle_time_ms / 1000 + 12)
    client.send(client.fetch(2, session_id=session_id, epoch=3))
    answer = client.answers[3][1]
    assert (answer.error_code, answer.session_id) == (0, session_id)
    assert records(answer) > 0


def test_a_record_that_is_larger_than_the_windows_is_read(leader: Leader) -> None:
    fill(leader, 3)
    limit(leader, "consumer_byte_rate", 10)
    client = Client(leader)
    client.send(client.fetch(0))
    assert records(client.answers[0][1]) > 1000
    client.send(client.fetch(1))
    assert records(client.answers[1][1]) == 0
    advance(leader, client.answers[1][1].throttle_time_ms / 1000 + 1)
    client.send(client.fetch(1))
    assert records(client.answers[2][1]) > 1000


def test_a_fetch_that_waited_is_throttled_when_it_is_answered(leader: Leader) -> None:
    fill(leader, 1)
    limit(leader, "consumer_byte_rate", 150)
    client = Client(leader)
    client.send(client.fetch(0))
    client.send(client.fetch(1, max_wait_ms=10_000))
    assert throttle_times(client) == [0]
    fill(leader, 1)
    assert throttle_times(client)[1] > 1000
    assert records(client.answers[1][1]) == 0


def test_a_fetch_of_all_there_is_has_the_same_answer_as_without_quotas(leader: Leader) -> None:
    fill(leader, 3)
    client = Client(leader)
    client.send(client.fetch(0))
    limit(leader, "consumer_byte_rate", 1_000_000)
    client.send(client.fetch(0))
    assert client.answers[0][1] == client.answers[1][1]


def test_without_its_quota_a_client_is_as_before(leader: Leader) -> None:
    limit(leader, "producer_byte_rate", 1)
    assert leader.node.services.client_quotas is not None
    limit(leader, "producer_byte_rate", None)
    assert leader.node.services.client_quotas is None
    client = Client(leader)
    client.send(client.produce("x" * 2000))
    assert throttle_times(client) == [0]
