"""Transactions of a test broker that go wrong, and how real clients react.

The broker runs in this process, whatever `--broker` says.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import ProducerFenced
from kafka import KafkaProducer
from kafka.errors import KafkaError

from barnabas.testing import Broker
from compat_tests.harness.eventually import TIMEOUT_S, eventually

pytestmark = pytest.mark.barnabas_only


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def broker(shared: Broker) -> Iterator[Broker]:
    shared.reset()
    shared.create_topic("t", 2)
    yield shared
    shared.faults.reset()


def confluent(broker: Broker, transactional_id: str = "p", **settings: Any) -> confluent_kafka.Producer:
    fixed = {
        "bootstrap.servers": broker.bootstrap_servers,
        "transactional.id": transactional_id,
        "retry.backoff.ms": 10,
        "log_level": 0,
    }
    producer = confluent_kafka.Producer({**fixed, **settings})
    producer.init_transactions(TIMEOUT_S)
    return producer


def kafka_python(broker: Broker, transactional_id: str = "p") -> KafkaProducer:
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, transactional_id=transactional_id, retry_backoff_ms=10
    )
    producer.init_transactions()
    return producer


def committed(broker: Broker) -> list[bytes | None]:
    return [record.value for record in broker.records("t")]


def state(broker: Broker) -> str:
    found = broker.transactions.get("p")
    assert found is not None
    return found.state


@pytest.mark.parametrize("api", ["InitProducerId", "AddPartitionsToTxn", "EndTxn"])
@pytest.mark.parametrize(
    "error", ["CONCURRENT_TRANSACTIONS", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"]
)
def test_confluent_retries_each_step(broker: Broker, api: str, error: str) -> None:
    rule = broker.on(api, transactional_id="p", times=2).error(error)
    producer = confluent(broker)
    producer.begin_transaction()
    producer.produce("t", b"v")
    producer.commit_transaction(TIMEOUT_S)
    assert rule.hits == 2
    eventually(lambda: committed(broker) == [b"v"])


@pytest.mark.parametrize("api", ["AddPartitionsToTxn", "EndTxn"])
def test_kafka_python_retries_a_step_that_was_done(broker: Broker, api: str) -> None:
    producer = kafka_python(broker)
    rule = broker.on(api, transactional_id="p", times=1).close(served=True)
    producer.begin_transaction()
    producer.send("t", b"v")
    producer.commit_transaction()
    producer.close()
    assert rule.hits == 1
    eventually(lambda: committed(broker) == [b"v"])


def test_a_commit_does_not_wait_for_its_markers_and_the_next_transaction_does(broker: Broker) -> None:
    producer = confluent(broker)
    rule = broker.transactions.hold_markers()
    producer.begin_transaction()
    producer.produce("t", b"1")
    producer.commit_transaction(TIMEOUT_S)
    assert (state(broker), committed(broker)) == ("PrepareCommit", [])
    producer.begin_transaction()
    producer.produce("t", b"2")
    assert producer.flush(0.3) == 1
    rule.release()
    producer.commit_transaction(TIMEOUT_S)
    eventually(lambda: sorted(filter(None, committed(broker))) == [b"1", b"2"])


@pytest.mark.parametrize("steer", ["abort", "fence", "time_out"])
def test_a_producer_that_is_fenced_learns_it(broker: Broker, steer: str) -> None:
    producer = confluent(broker)
    producer.begin_transaction()
    producer.produce("t", b"v")
    assert producer.flush(TIMEOUT_S) == 0
    getattr(broker.transactions, steer)("p")
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        producer.commit_transaction(TIMEOUT_S)
    assert caught.value.args[0].fatal()
    assert committed(broker) == []
    confluent(broker)  # the next one with the id works
    assert state(broker) == "Empty"


def test_kafka_python_is_fenced(broker: Broker) -> None:
    producer = kafka_python(broker)
    producer.begin_transaction()
    producer.send("t", b"v").get(TIMEOUT_S)
    broker.transactions.fence("p")
    with pytest.raises(KafkaError):
        producer.commit_transaction()
    producer.close()
    assert committed(broker) == []


def test_aiokafka_is_fenced() -> None:
    async def work() -> None:
        async with Broker() as broker:
            await broker.create_topic("t", 1)
            producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id="p")
            async with producer:
                await producer.begin_transaction()
                await producer.send_and_wait("t", b"v")
                await broker.transactions.fence("p")
                with pytest.raises(ProducerFenced):
                    await producer.commit_transaction()
            assert broker.records("t") == []

    asyncio.run(work())


def test_an_aborted_transaction_leaves_nothing_for_readers_of_what_is_committed(broker: Broker) -> None:
    producer = confluent(broker)
    for commit in (True, False, True):
        producer.begin_transaction()
        producer.produce("t", b"%d" % commit, partition=0)
        if commit:
            producer.commit_transaction(TIMEOUT_S)
        else:
            assert producer.flush(TIMEOUT_S) == 0
            producer.abort_transaction(TIMEOUT_S)
    eventually(lambda: committed(broker) == [b"1", b"1"])
    assert len(broker.records("t", isolation_level="read_uncommitted")) == 3


def test_a_coordinator_that_moves_under_a_client() -> None:
    with Broker(nodes=3) as broker:
        broker.create_topic("t", 1)
        producer = confluent(broker)
        for number in range(2):
            producer.begin_transaction()
            producer.produce("t", b"%d" % number)
            assert producer.flush(TIMEOUT_S) == 0
            broker.transactions.move_coordinator("p")
            producer.commit_transaction(TIMEOUT_S)
        eventually(lambda: committed(broker) == [b"0", b"1"])


def test_transactions_are_whole_with_any_fault(broker: Broker) -> None:
    for api, client_id in (
        ("AddPartitionsToTxn", None),
        ("EndTxn", None),
        ("WriteTxnMarkers", "broker-*"),
        ("AddPartitionsToTxn", "broker-*"),
    ):
        for served in (False, True):
            broker.on(api, client_id=client_id, probability=0.05).close(served=served)
            broker.on(api, client_id=client_id, probability=0.05).delay(0.01, served=served)
    broker.on("EndTxn", probability=0.05).error("CONCURRENT_TRANSACTIONS")
    broker.on("WriteTxnMarkers", client_id="broker-*", probability=0.1).error("NOT_LEADER_OR_FOLLOWER")
    settings: dict[str, Any] = {"reconnect.backoff.ms": 5, "reconnect.backoff.max.ms": 20}
    producer = confluent(broker, **settings)
    chosen = random.Random(7)
    expected: list[bytes] = []
    for number in range(30):
        producer.begin_transaction()
        values = [b"%d-%d" % (number, index) for index in range(chosen.randint(1, 4))]
        for value in values:
            producer.produce("t", value)
        if chosen.random() < 0.5:
            producer.commit_transaction(TIMEOUT_S)
            expected += values
        else:
            assert producer.flush(TIMEOUT_S) == 0
            producer.abort_transaction(TIMEOUT_S)
    broker.faults.reset()
    eventually(lambda: not broker.transactions.open())
    assert sorted(filter(None, committed(broker))) == sorted(expected)
