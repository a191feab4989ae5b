"""Clients that exceed a quota, over the virtual network: answered at once, with the time, and not served until it has passed."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.requests.context import Outcome
from barnabas.broker.requests.registry import REGISTRATIONS
from barnabas.broker.requests.throttling import throttle_time_of, with_throttle_time
from barnabas.broker.security.caller import ANONYMOUS, Caller
from barnabas.broker.tests.leader import Leader
from barnabas.broker.tests.one_node import OneNode
from barnabas.broker.tests.reply import Reply, encoded
from barnabas.broker.tests.virtual_client import Client
from barnabas.broker.tests.virtual_cluster import VirtualCluster
from barnabas.controller.metadata.decision import Decision
from barnabas.controller.metadata.image import QuotaEntity, quota_record
from barnabas.wire.errors import ErrorCode as E
from barnabas.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from barnabas.wire.messages.create_topics import (
    CREATE_TOPICS_RESPONSE,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from barnabas.wire.registry import request_type, response_type

USER: QuotaEntity = (("user", "ANONYMOUS"),)
CREATE_TOPICS = 19
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
    limit(leader, "producer_byte_rate", 100, (("user", "another user"),))
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


def make_requests_take(leader: Leader, seconds: float) -> None:
    """Each look at the clock costs so much; a request takes two of them at least."""
    quotas = leader.node.services.client_quotas
    assert quotas is not None
    looks = itertools.count()
    quotas.monotonic = lambda: leader.runtime.monotonic() + next(looks) * seconds


def test_a_client_that_takes_too_much_time_is_throttled_for_a_second_at_most(leader: Leader) -> None:
    limit(leader, "request_percentage", 1)
    make_requests_take(leader, 0.06)
    client = Client(leader)
    client.send(client.versions())
    assert throttle_times(client) == [0], "a tenth of a second is allowed in 10 s"
    client.send(client.latest() + client.latest())
    assert [answer.throttle_time_ms > 0 for _, answer in client.answers] == [False, True]
    assert throttle_times(client)[1] <= 1000
    advance(leader, throttle_times(client)[1] / 1000 + 0.01)
    assert len(client.answers) == 3, "the other is served then"


def test_a_consumer_that_takes_too_much_time_gets_nothing(leader: Leader) -> None:
    fill(leader, 1)
    limit(leader, "request_percentage", 0.1)
    make_requests_take(leader, 0.03)
    client = Client(leader)
    client.send(client.versions())
    advance(leader, 1.1)
    client.send(client.fetch(0))
    answer = client.answers[1][1]
    assert answer.throttle_time_ms > 0
    assert answer.responses == []


def created(node: OneNode, name: str, partitions: int, version: int = 7) -> tuple[int, int]:
    """The error, and the throttle time."""
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    answer = node.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), version)
    return answer.topics[0].error_code, answer.throttle_time_ms


def test_partitions_beyond_the_quota_are_not_created(tmp_path: Path) -> None:
    node = OneNode(f"log.dirs={tmp_path}")
    record = quota_record(USER, "controller_mutation_rate", 1)
    node.node.services.controller.run(lambda _: Decision([record], None), lambda _: None)
    node.runtime.advance(0)
    assert created(node, "a", 15) == (0, 0), "a burst of 11, which one request may exceed"
    error, throttle_ms = created(node, "b", 1)
    assert error == E.THROTTLING_QUOTA_EXCEEDED
    assert is_near(throttle_ms, 4)
    answer = node.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="a")], timeout_ms=1000), 6)
    assert answer.responses[0].error_code == E.THROTTLING_QUOTA_EXCEEDED
    more = CreatePartitionsTopic(name="a", count=16, assignments=None)
    answer = node.ask(CreatePartitionsRequest(topics=[more], timeout_ms=1000), 3)
    assert answer.results[0].error_code == E.THROTTLING_QUOTA_EXCEEDED
    error, throttle_ms = created(node, "old", 6, version=5)
    assert error == 0, "versions that do not know the error are throttled"
    assert is_near(throttle_ms, 10)
    node.runtime.advance(10.1)
    assert created(node, "b", 1) == (0, 0)
    node.node.stop()


class Sender(Reply):
    """A client's connection to a node that forwards its requests."""

    caller = Caller(ANONYMOUS, "PLAINTEXT", "10.0.0.1")
    context: Any = None

    def complete(self, context: Any, response: Any) -> None:
        super().complete(context, response)
        self.context = context


def test_a_forwarded_request_is_charged_by_the_active_controller_and_throttled_where_it_came_in() -> None:
    cluster = VirtualCluster()
    active = cluster.active()
    cluster.run_until(lambda: all("ready" in said for said in cluster.said.values()))
    record = quota_record(USER, "controller_mutation_rate", 1)
    cluster.nodes[active].services.controller.run(lambda _: Decision([record], None), lambda _: None)
    cluster.run_until(lambda: all(node.services.client_quotas is not None for node in cluster.nodes.values()))

    def create(node_id: int, name: str, partitions: int) -> tuple[int, int, float]:
        """The error, the throttle time, and for how many seconds the connection is not served."""
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        body = encoded(request_type(CREATE_TOPICS), 7, CreateTopicsRequest(topics=[topic], timeout_ms=1000))
        frame = struct.pack(">hhihx", CREATE_TOPICS, 7, 1, -1) + body
        sender, dispatcher = Sender(), cluster.nodes[node_id]._dispatcher
        assert dispatcher.dispatch(sender, memoryview(frame), 0, len(frame)) is Outcome.PENDING
        cluster.run_until(lambda: sender.done)
        answer = dispatcher.encode(sender.context, sender.answer)
        assert isinstance(answer, bytes)
        response = response_type(CREATE_TOPICS).decode(7, answer, 9)[0]
        return response.topics[0].error_code, response.throttle_time_ms, sender.throttled_s

    first, second = (each for each in cluster.nodes if each != active)
    assert create(first, "a", 20) == (0, 0, 0)
    error, throttle_ms, throttled_s = create(second, "b", 1)
    assert error == E.THROTTLING_QUOTA_EXCEEDED, "whichever broker a client asks, it has one quota"
    assert 5_000 < throttle_ms <= 9_000
    assert throttled_s == throttle_ms / 1000


def test_what_the_active_controller_says_of_a_throttle_holds_here() -> None:
    for version in (6, 7):
        body = encoded(CREATE_TOPICS_RESPONSE, version, CreateTopicsResponse(throttle_time_ms=77))
        assert throttle_time_of(CREATE_TOPICS, version, body) == 77
        (changed,) = with_throttle_time(CREATE_TOPICS, version, [body], 99)
        assert throttle_time_of(CREATE_TOPICS, version, bytes(changed)) == 99  # type: ignore[call-overload]


def test_every_response_that_has_a_throttle_time_gets_one() -> None:
    for key in REGISTRATIONS:
        kind = response_type(key)
        for version in range(REGISTRATIONS[key].min_version, REGISTRATIONS[key].max_version + 1):
            body = encoded(kind, version, kind.message_class())
            if "throttle_time_ms" not in kind.message_class.__struct_fields__:
                assert with_throttle_time(key, version, [body], 99) == [body]
                continue
            as_bytes = b"".join(map(bytes, with_throttle_time(key, version, [body], 99)))  # type: ignore[arg-type]
            assert as_bytes == encoded(kind, version, kind.message_class(throttle_time_ms=99))
