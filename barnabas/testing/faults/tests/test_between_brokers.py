"""Rules for the requests that brokers send each other, or themselves, for transactions: markers and verifications."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from barnabas.testing import Broker
from barnabas.testing.tests.transactional_client import TransactionalClient
from barnabas.wire.errors import ErrorCode
from compat_tests.harness.eventually import eventually

pytestmark = pytest.mark.sockets

CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.fixture(params=[1, 3])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(nodes=request.param) as broker:
        broker.create_topic("orders", 4)
        yield broker


@pytest.fixture
def producer(broker: Broker) -> Iterator[TransactionalClient]:
    producer = TransactionalClient(broker, "payments")
    yield producer
    producer.close()


def test_markers_are_held_and_released(broker: Broker, producer: TransactionalClient) -> None:
    rule = broker.on("WriteTxnMarkers", client_id="broker-*").hold()
    for partition in range(4):
        assert producer.send("orders", b"1", partition) == 0
    assert producer.end(commit=True) == 0
    rule.wait_held()
    assert producer.add("orders") == CONCURRENT
    rule.release()
    eventually(lambda: producer.add("orders") == 0)


@pytest.mark.parametrize("served", [False, True])
def test_markers_that_fail_are_sent_again(
    broker: Broker, producer: TransactionalClient, served: bool
) -> None:
    rule = broker.on("WriteTxnMarkers", topic="orders", partition=1, client_id="broker-*", times=3)
    rule.error("NOT_LEADER_OR_FOLLOWER", served=served)
    assert producer.send("orders", b"1", 1) == producer.send("orders", b"2", 2) == 0
    assert producer.end(commit=True) == 0
    eventually(lambda: producer.add("orders") == 0)
    assert rule.hits == 3


@pytest.mark.parametrize("action", ["close", "drop_answer", "truncate"])
def test_markers_without_an_answer_are_sent_again(broker: Broker, action: str) -> None:
    if len(broker.nodes) > 1 and action == "drop_answer":
        pytest.skip("the connection is silent for as long as a broker waits")
    producer = TransactionalClient(broker, "payments")
    rule = broker.on("WriteTxnMarkers", client_id="broker-*", times=2)
    rule.truncate(10) if action == "truncate" else getattr(rule, action)()
    assert producer.send("orders", b"1") == 0
    assert producer.end(commit=True) == 0
    eventually(lambda: producer.add("orders") == 0)
    assert rule.hits == 2
    producer.close()


def test_a_verification_fails(broker: Broker, producer: TransactionalClient) -> None:
    rule = broker.on("AddPartitionsToTxn", client_id="broker-*", times=1).error("COORDINATOR_NOT_AVAILABLE")
    assert producer.add("orders") == 0
    assert producer.produce("orders", b"1") == ErrorCode.NOT_ENOUGH_REPLICAS
    assert producer.produce("orders", b"1") == 0
    assert rule.hits == 1


def test_rules_that_name_no_client_leave_brokers_alone(broker: Broker, producer: TransactionalClient) -> None:
    markers = broker.on("WriteTxnMarkers").close()
    adds = broker.on("AddPartitionsToTxn", times=1).error("CONCURRENT_TRANSACTIONS")
    everything = broker.on("*", topic="orders-2").close()
    assert [producer.add("orders"), producer.add("orders")] == [CONCURRENT, 0]
    assert producer.produce("orders", b"1") == 0
    assert producer.end(commit=False) == 0
    eventually(lambda: producer.add("orders") == 0)
    assert (markers.hits, adds.hits, everything.hits) == (0, 1, 0)
    assert not broker.requests.of("WriteTxnMarkers")
    assert {each.client_id for each in broker.requests.of("AddPartitionsToTxn")} == {"c"}
