"""Requests whose controller loses its term on the way: asked again, and known as what has been done already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from barnabas.broker.requests.context import RawResponse
from barnabas.broker.requests.registry import REGISTRATIONS
from barnabas.broker.tests.reply import Reply, make_context
from barnabas.broker.tests.virtual_cluster import VirtualCluster
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.registry import response_type

CREATE_TOPICS, VERSION = 19, 7
REQUEST = CreateTopicsRequest(
    topics=[CreatableTopic(name="t", num_partitions=20, replication_factor=3)], timeout_ms=30_000
)


def send(cluster: VirtualCluster, node_id: int) -> list[tuple[Any, ErrorCode]]:
    """Have a node ask for its topic: what it is answered."""
    answers: list[tuple[Any, ErrorCode]] = []
    cluster.nodes[node_id].services.controller_channel.send(
        CREATE_TOPICS, REQUEST, lambda *answered: answers.append(answered)
    )
    return answers


def check(cluster: VirtualCluster, answers: list[tuple[Any, ErrorCode]], node_id: int) -> None:
    """One answer: it has been created, and is what this node knows by that name."""
    ((response, error),) = answers
    assert error is ErrorCode.NONE
    (result,) = response.topics
    assert (result.error_code, result.error_message) == (0, None)
    assert (result.num_partitions, result.replication_factor) == (20, 3)
    topic = cluster.nodes[node_id].services.controller.image.topics["t"]
    assert result.topic_id == topic.topic_id
    assert len(topic.partitions) == 20


def cut_off(cluster: VirtualCluster, node_id: int) -> None:
    """What this node says is lost; it hears the others."""
    for other in cluster.nodes:
        if other != node_id:
            cluster.network.block(f"n{node_id}", f"n{other}")


@pytest.fixture
def cluster() -> VirtualCluster:
    made = VirtualCluster()
    made.advance(10)
    return made


def test_what_was_committed_and_not_answered_is_the_requests_own(cluster: VirtualCluster) -> None:
    active = cluster.active()
    asker = active % 3 + 1
    answers = send(cluster, asker)
    # it is committed, and the active controller stops before its answer is out
    cluster.run_until(lambda: "t" in cluster.nodes[active].services.controller.image.topics)
    cut_off(cluster, active)
    cluster.runtimes[active].hold_until(cluster.now + 60)
    cluster.run_until(lambda: answers)
    assert cluster.active() != active
    check(cluster, answers, asker)
    again = send(cluster, asker)  # another request of the same name is another matter
    cluster.run_until(lambda: again)
    ((response, _),) = again
    assert response.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_controller_that_loses_its_term_has_its_own_request_done_by_the_next(
    cluster: VirtualCluster,
) -> None:
    active = cluster.active()
    cut_off(cluster, active)
    answers = send(cluster, active)
    cluster.run_until(lambda: not cluster.nodes[active].services.controller.is_active)
    assert answers == []
    cluster.network.unblock_all()
    cluster.run_until(lambda: answers)
    check(cluster, answers, active)


def test_a_client_of_a_controller_that_loses_its_term_is_answered_by_the_next(
    cluster: VirtualCluster,
) -> None:
    active = cluster.active()
    cut_off(cluster, active)
    services, reply = cluster.nodes[active].services, Reply()
    context = make_context(services, reply, CREATE_TOPICS, VERSION)
    REGISTRATIONS[CREATE_TOPICS].handler(context, REQUEST)
    cluster.run_until(lambda: not services.controller.is_active)
    cluster.network.unblock_all()
    cluster.run_until(lambda: reply.responses)
    (raw,) = reply.responses
    assert isinstance(raw, RawResponse)
    response, _ = response_type(CREATE_TOPICS).decode(VERSION, raw.body, 0)
    check(cluster, [(response, ErrorCode.NONE)], active)


def test_a_broker_that_makes_many_partitions_keeps_its_session(
    cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    active = cluster.active()
    busy = active % 3 + 1
    waiting: list[Callable[[], object]] = []
    monkeypatch.setattr(
        cluster.nodes[busy].services.controller_channel, "_when_settled", waiting.append
    )  # never done
    answers = send(cluster, busy)
    cluster.advance(30)
    assert answers == []
    assert waiting
    brokers = cluster.nodes[active].services.controller.image.brokers
    assert {broker_id: broker.fenced for broker_id, broker in brokers.items()} == {
        1: False,
        2: False,
        3: False,
    }
