"""Transactional ids of in-process brokers, steered, as a producer meets it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from barnabas.testing import Broker
from barnabas.testing.contents import StoredRecord
from barnabas.testing.steering.transactions import TransactionInfo, UnknownTransactionalId
from barnabas.testing.tests.transactional_client import TransactionalClient
from barnabas.wire.errors import ErrorCode
from compat_tests.harness.eventually import eventually

pytestmark = pytest.mark.sockets

CONCURRENT, FENCED = ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.PRODUCER_FENCED


@pytest.fixture(scope="module", params=[1, 3])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(nodes=request.param) as broker:
        yield broker


@pytest.fixture(autouse=True)
def _again(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "broker" in request.fixturenames:
        broker = request.getfixturevalue("broker")
        broker.faults.reset()
        broker.delete_topics("orders")


@pytest.fixture
def connect(request: pytest.FixtureRequest, broker: Broker) -> Callable[..., TransactionalClient]:
    def make(transactional_id: str, timeout_ms: int = 60_000) -> TransactionalClient:
        producer = TransactionalClient(broker, transactional_id, timeout_ms)
        request.addfinalizer(producer.close)
        return producer

    return make


Connect = Callable[..., TransactionalClient]


def values(records: list[StoredRecord]) -> list[bytes | None]:
    return [each.value for each in records]


def info(broker: Broker, transactional_id: str) -> TransactionInfo:
    found = broker.transactions.get(transactional_id)
    assert found is not None
    return found


def await_end(producer: TransactionalClient, broker: Broker) -> None:
    eventually(lambda: not info(broker, producer.transactional_id).is_open)


def test_what_is_open_and_what_is_committed(broker: Broker, connect: Connect) -> None:
    broker.create_topic("orders", 2)
    producer = connect("a")
    assert info(broker, "a").state == "Empty"
    assert producer.send("orders", b"1") == producer.send("orders", b"2", 1) == 0
    found = info(broker, "a")
    assert (found.state, found.is_open, found.partitions) == (
        "Ongoing",
        True,
        (("orders", 0), ("orders", 1)),
    )
    assert (found.producer_id, found.producer_epoch) == (producer.producer_id, producer.epoch)
    assert found.coordinator == producer.node == broker.transactions.coordinator("a")
    assert "a" in [each.transactional_id for each in broker.transactions.open()]
    assert broker.records("orders") == []
    assert values(broker.records("orders", isolation_level="read_uncommitted")) == [b"1", b"2"]
    assert producer.end(commit=True) == 0
    await_end(producer, broker)
    assert info(broker, "a").state == "CompleteCommit"
    assert values(broker.records("orders")) == [b"1", b"2"]
    assert broker.transactions.get("unknown") is None
    with pytest.raises(ValueError, match="an isolation_level is read_committed or read_uncommitted"):
        broker.records("orders", isolation_level="serializable")


def test_aborted_records_are_left_out_between_committed_ones(broker: Broker, connect: Connect) -> None:
    broker.create_topic("orders", 1)
    first, second = connect("a"), connect("b")
    for number in range(6):
        assert first.send("orders", b"a%d" % number) == 0
        if number % 2:
            assert second.send("orders", b"b%d" % number) == 0
        assert first.end(commit=number % 3 == 0) == 0
        await_end(first, broker)
    assert second.end(commit=True) == 0
    await_end(second, broker)
    assert values(broker.records("orders")) == [b"a0", b"b1", b"a3", b"b3", b"b5"]
    assert len(broker.records("orders", isolation_level="read_uncommitted")) == 9


def test_an_abort(broker: Broker, connect: Connect) -> None:
    broker.create_topic("orders", 1)
    producer = connect("a")
    assert producer.send("orders", b"1") == 0
    broker.transactions.abort("a")
    assert info(broker, "a").state == "CompleteAbort"
    assert broker.records("orders") == []
    assert producer.end(commit=True) == FENCED
    with pytest.raises(ValueError, match="'a' has no open transaction: it is CompleteAbort"):
        broker.transactions.abort("a")
    with pytest.raises(UnknownTransactionalId):
        broker.transactions.abort("unknown")


def test_a_fence(broker: Broker, connect: Connect) -> None:
    broker.create_topic("orders", 1)
    producer = connect("a")
    assert producer.send("orders", b"1") == 0
    broker.transactions.fence("a")
    found = info(broker, "a")
    assert (found.state, found.is_open) == ("Empty", False)
    assert found.producer_epoch > producer.epoch
    assert producer.end(commit=True) == FENCED
    idle = connect("idle")
    broker.transactions.fence("idle")
    assert idle.add("orders") == FENCED
    with pytest.raises(UnknownTransactionalId):
        broker.transactions.fence("unknown")


def test_a_timeout(broker: Broker, connect: Connect) -> None:
    broker.create_topic("orders", 1)
    producer, patient = connect("a", 60_000), connect("patient", 600_000)
    assert producer.send("orders", b"1") == patient.send("orders", b"2") == 0
    broker.transactions.time_out("a")
    assert info(broker, "a").state == "CompleteAbort"
    assert info(broker, "patient").state == "Ongoing"
    assert producer.end(commit=True) == FENCED
    assert patient.end(commit=True) == 0
    await_end(patient, broker)
    assert values(broker.records("orders")) == [b"2"]
    with pytest.raises(ValueError, match="no open transaction"):
        broker.transactions.time_out("a")


def test_markers_are_held(broker: Broker, connect: Connect) -> None:
    broker.create_topic("orders", 2)
    producer = connect("a")
    rule = broker.transactions.hold_markers("orders", 1)
    assert producer.send("orders", b"1") == producer.send("orders", b"2", 1) == 0
    assert producer.end(commit=True) == 0
    rule.wait_held()
    assert info(broker, "a").state == "PrepareCommit"
    assert producer.add("orders") == CONCURRENT
    assert broker.records("orders", 1) == []
    rule.release()
    await_end(producer, broker)
    assert values(broker.records("orders")) == [b"1", b"2"]


def test_aborts_and_fences_do_not_wait_for_held_markers(broker: Broker, connect: Connect) -> None:
    broker.create_topic("orders", 1)
    for transactional_id, steer in (("a", broker.transactions.abort), ("b", broker.transactions.fence)):
        producer = connect(transactional_id)
        assert producer.send("orders", b"1") == 0
        with broker.transactions.hold_markers():
            steer(transactional_id)
            assert info(broker, transactional_id).state == "PrepareAbort"
        await_end(producer, broker)
    assert broker.records("orders") == []


def test_a_coordinator_that_loads(broker: Broker, connect: Connect) -> None:
    broker.create_topic("orders", 1)
    producer = connect("a")
    broker.transactions.load_coordinator("a")
    assert producer.add("orders") == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert broker.transactions.get("a") is None
    broker.transactions.coordinator_loaded("a")
    assert producer.add("orders") == 0
    broker.transactions.load_coordinator("a", seconds=5)
    broker.clock.advance(6)
    assert producer.end(commit=False) == 0


def test_a_coordinator_that_moves_with_an_open_transaction() -> None:
    with Broker(nodes=3) as broker:
        with pytest.raises(UnknownTransactionalId, match="there has been no transactional id yet"):
            broker.transactions.coordinator("a")
        broker.create_topic("orders", 1)
        producer = TransactionalClient(broker, "a")
        assert producer.send("orders", b"1") == 0
        before = broker.transactions.coordinator("a")
        broker.transactions.move_coordinator("a")
        assert broker.transactions.coordinator("a") != before
        assert info(broker, "a").state == "Ongoing"
        assert producer.end(commit=True) == ErrorCode.NOT_COORDINATOR
        producer.find_again()
        assert producer.end(commit=True) == 0
        await_end(producer, broker)
        assert values(broker.records("orders")) == [b"1"]
        producer.close()


def test_a_coordinator_that_moves_before_the_markers_sends_them_again() -> None:
    with Broker(nodes=3) as broker:
        broker.create_topic("orders", 1)
        producer = TransactionalClient(broker, "a")
        assert producer.send("orders", b"1") == 0
        rule = broker.transactions.hold_markers()
        assert producer.end(commit=True) == 0
        rule.wait_held()
        broker.transactions.move_coordinator("a")
        rule.wait_held(2)  # those of the old coordinator and of the new one
        rule.release()
        await_end(producer, broker)
        assert values(broker.records("orders")) == [b"1"]
        producer.close()


def test_in_the_running_loop() -> None:
    async def work() -> None:
        async with Broker() as broker:
            assert list(broker.transactions) == []
            assert broker.transactions.open() == []
            with pytest.raises(UnknownTransactionalId):
                await broker.transactions.abort("a")

    asyncio.run(work())
