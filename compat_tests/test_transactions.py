"""Transactions of real clients: what each reader sees after commits, aborts, fences and timeouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import pytest
from confluent_kafka.admin import AdminClient

from compat_tests.harness.broker import Broker
from compat_tests.harness.committed import committed
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import BrokerFactory, TopicFactory, UniqueName
from compat_tests.harness.java_transactions import JavaClients
from compat_tests.harness.topics import create_topic
from compat_tests.harness.transactional_clients import (
    PRODUCERS,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    READERS,
    AlreadyEnded,
    Fenced,
    Read,
    TransactionalProducer,
    Value,
    read_with_confluent,
)

JAVA = "java"
LIBRARIES = (*PRODUCERS, pytest.param(JAVA, marks=pytest.mark.jvm))
by_library = pytest.mark.parametrize("library", LIBRARIES)


class Clients(Protocol):
    """`clients(bootstrap, transactional_id)` makes a producer of the test's library."""

    def __call__(
        self, bootstrap: str, transactional_id: str, *, timeout_ms: int = 60_000
    ) -> TransactionalProducer: ...


@pytest.fixture(scope="module")
def java_clients() -> Iterator[JavaClients]:
    """The JVM of this file's Java clients."""
    clients = JavaClients()
    yield clients
    clients.close()


@pytest.fixture
def clients(library: str, request: pytest.FixtureRequest) -> Iterator[Clients]:
    """Makes producers and closes them at the end."""
    made: list[TransactionalProducer] = []

    def make(bootstrap: str, transactional_id: str, *, timeout_ms: int = 60_000) -> TransactionalProducer:
        new: Callable[..., TransactionalProducer] = (
            request.getfixturevalue("java_clients").producer if library == JAVA else PRODUCERS[library]
        )
        made.append(new(bootstrap, transactional_id, timeout_ms=timeout_ms))
        return made[-1]

    yield make
    for producer in made:
        producer.close()


@pytest.fixture
def readers(library: str, request: pytest.FixtureRequest) -> list[Read]:
    """The three Python libraries, and Java where the producer is Java's."""
    return [*READERS, *([request.getfixturevalue("java_clients").read] if library == JAVA else [])]


def _values(text: str, count: int = 3) -> list[Value]:
    return [(partition, f"{text}-{number}") for partition in range(2) for number in range(count)]


def _begin_and_send(producer: TransactionalProducer, topic: str, values: list[Value]) -> None:
    producer.begin()
    producer.send(topic, values)


def _await_read(read: Read, bootstrap: str, topic: str, isolation_level: str, expected: list[Value]) -> None:
    """Wait until a reader gets every record once and in the order of its partition; before that it may lack the last ones,
    whose markers are still being written."""

    def is_whole() -> bool:
        found = read(bootstrap, topic, 2, isolation_level)
        for partition in range(2):
            mine = [value for where, value in found if where == partition]
            wanted = [value for where, value in expected if where == partition]
            assert mine == wanted[: len(mine)], (isolation_level, partition)
        return len(found) == len(expected)

    eventually(is_whole)


@by_library
def test_readers_see_what_was_committed(
    broker: Broker, topic: TopicFactory, unique: UniqueName, clients: Clients, readers: list[Read]
) -> None:
    name = topic(partitions=2)
    producer = clients(broker.bootstrap, unique("transaction"))
    producer.initialize()
    sent: list[Value] = []
    expected: list[Value] = []
    for number, commits in enumerate((True, False, False, True, True, False)):
        values = _values(f"{number}-{'committed' if commits else 'aborted'}")
        producer.begin()
        producer.send(name, values[:2])
        producer.send(name, values[2:])
        sent += values
        _await_read(read_with_confluent, broker.bootstrap, name, READ_UNCOMMITTED, sent)
        _await_read(read_with_confluent, broker.bootstrap, name, READ_COMMITTED, expected)
        if commits:
            producer.commit()
            expected += values
        else:
            producer.abort()
    for read in readers:
        _await_read(read, broker.bootstrap, name, READ_COMMITTED, expected)
        _await_read(read, broker.bootstrap, name, READ_UNCOMMITTED, sent)


@by_library
def test_a_second_producer_fences_the_first(
    broker: Broker, topic: TopicFactory, unique: UniqueName, clients: Clients
) -> None:
    name, transactional_id = topic(partitions=2), unique("transaction")
    first, second = (clients(broker.bootstrap, transactional_id) for _ in range(2))
    first.initialize()
    first.begin()
    first.send(name, _values("committed"))
    first.commit()
    first.begin()
    first.send(name, _values("fenced"))
    second.initialize()  # aborts the first one's transaction
    with pytest.raises(Fenced):
        first.commit()
    second.begin()
    second.send(name, _values("second"))
    second.commit()
    _await_read(
        read_with_confluent, broker.bootstrap, name, READ_COMMITTED, _values("committed") + _values("second")
    )


@by_library
def test_a_fenced_producer_cannot_send(
    broker: Broker, topic: TopicFactory, unique: UniqueName, clients: Clients
) -> None:
    name, transactional_id = topic(partitions=2), unique("transaction")
    first, second = (clients(broker.bootstrap, transactional_id) for _ in range(2))
    first.initialize()
    second.initialize()
    with pytest.raises(Fenced):
        _begin_and_send(first, name, _values("fenced"))
    second.begin()
    second.send(name, _values("second"))
    second.commit()
    for isolation_level in (READ_COMMITTED, READ_UNCOMMITTED):
        _await_read(read_with_confluent, broker.bootstrap, name, isolation_level, _values("second"))


@by_library
def test_a_transaction_that_takes_too_long_is_aborted(
    broker: Broker, topic: TopicFactory, unique: UniqueName, clients: Clients
) -> None:
    name, transactional_id = topic(partitions=2), unique("transaction")
    slow, other = (
        clients(broker.bootstrap, transactional_id, timeout_ms=1_000),
        clients(broker.bootstrap, unique("transaction")),
    )
    slow.initialize()
    slow.begin()
    slow.send(name, _values("late"))
    other.initialize()
    other.begin()
    other.send(name, _values("other"))
    other.commit()
    # behind the open transaction, whose abort lets read_committed go on
    _await_read(read_with_confluent, broker.bootstrap, name, READ_COMMITTED, _values("other"))
    with pytest.raises((Fenced, AlreadyEnded)):
        slow.commit()
    successor = clients(broker.bootstrap, transactional_id)
    successor.initialize()
    successor.begin()
    successor.send(name, _values("successor"))
    successor.commit()
    _await_read(
        read_with_confluent, broker.bootstrap, name, READ_COMMITTED, _values("other") + _values("successor")
    )


@by_library
def test_offsets_of_a_group_in_a_transaction(
    broker: Broker, topic: TopicFactory, unique: UniqueName, clients: Clients
) -> None:
    source, target, group = topic(partitions=1), topic(partitions=2), unique("group")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def offset() -> int | None:
        found = [each.offset for each in committed(admin, group) if each.topic == source]
        return found[0] if found else None

    producer = clients(broker.bootstrap, unique("transaction"))
    producer.initialize()
    for number, commits in enumerate((False, True, False, True)):
        before = offset()
        producer.begin()
        producer.send(target, _values(f"{number}"))
        producer.send_offset(group, source, 0, 10 + number)
        assert offset() == before, "the transaction is open"
        if commits:
            producer.commit()
            eventually(lambda: offset() == 10 + number)  # noqa: B023 - called at once
        else:
            producer.abort()
            assert offset() == before
    _await_read(read_with_confluent, broker.bootstrap, target, READ_COMMITTED, _values("1") + _values("3"))


@by_library
@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
def test_a_transaction_outlives_a_restart(
    fresh_broker: BrokerFactory, unique: UniqueName, clients: Clients, kill: bool
) -> None:
    broker = fresh_broker()
    name = create_topic(broker.bootstrap, unique("topic"), 2)
    committing, aborting = (clients(broker.bootstrap, unique("transaction")) for _ in range(2))
    for producer in (committing, aborting):
        producer.initialize()
    committing.begin()
    committing.send(name, _values("first"))
    committing.commit()
    for producer, text in ((committing, "second"), (aborting, "aborted")):
        producer.begin()
        producer.send(name, _values(text))
    broker.restart(kill=kill)
    _await_read(read_with_confluent, broker.bootstrap, name, READ_COMMITTED, _values("first"))
    committing.send(name, _values("third"))
    committing.commit()
    aborting.abort()
    expected = _values("first") + _values("second") + _values("third")
    _await_read(read_with_confluent, broker.bootstrap, name, READ_COMMITTED, expected)
    aborting.begin()
    aborting.send(name, _values("fourth"))
    aborting.commit()
    _await_read(read_with_confluent, broker.bootstrap, name, READ_COMMITTED, expected + _values("fourth"))
