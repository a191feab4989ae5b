"""kafka-transactions.sh and Admin.fenceProducers: what they show of transactions, and that they end those that hang.
kafka-features.sh: transaction.version is lowered and raised while producers go on."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator

import pytest

from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from compat_tests.conform.batches import TRANSACTIONAL, batch
from compat_tests.conform.client import Connection
from compat_tests.harness.broker import Broker
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import BrokerFactory, TopicFactory, UniqueName
from compat_tests.harness.java_tools import JavaTools
from compat_tests.harness.java_transactions import JavaClients
from compat_tests.harness.topics import create_topic
from compat_tests.harness.transactional_clients import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ConfluentProducer,
    Fenced,
    read_with_confluent,
)

Rows = Callable[..., list[dict[str, str]]]
HANGING_PRODUCER = 4242
TRANSACTION_VERSION_1 = 11  # the last version of Produce whose broker does not add the partition
STATE_TOPIC = "__transaction_state"
HOUR_MS = 3_600_000


@pytest.fixture
def rows(java_tools: JavaTools) -> Rows:
    """`rows(broker, command, *arguments)`: the table that kafka-transactions.sh prints, each row by column."""

    def run(broker: Broker, *arguments: str) -> list[dict[str, str]]:
        where = ("--bootstrap-server", broker.bootstrap)
        printed = java_tools.run("kafka-transactions", *where, *arguments).stdout
        columns, *lines = [line.split() for line in printed.strip().splitlines()]
        return [dict(zip(columns, line, strict=False)) for line in lines]

    return run


@pytest.fixture(scope="module")
def java_clients() -> Iterator[JavaClients]:
    clients = JavaClients()
    yield clients
    clients.close()


@pytest.fixture
def producers() -> Iterator[Callable[[Broker, str], ConfluentProducer]]:
    """Makes initialized producers, and closes them at the end."""
    made: list[ConfluentProducer] = []

    def make(broker: Broker, transactional_id: str) -> ConfluentProducer:
        producer = ConfluentProducer(broker.bootstrap, transactional_id)
        made.append(producer)
        producer.initialize()
        return producer

    yield make
    for producer in made:
        producer.close()


Producers = Callable[[Broker, str], ConfluentProducer]


def test_transactions_are_listed_and_described(
    broker: Broker, topic: TopicFactory, unique: UniqueName, producers: Producers, rows: Rows
) -> None:
    name, prefix = topic(partitions=2), unique("listed")
    producers(broker, f"{prefix}.unused")
    committing, aborting, ongoing = (
        producers(broker, f"{prefix}.{kind}") for kind in ("committed", "aborted", "open")
    )
    for producer in (committing, aborting, ongoing):
        producer.begin()
        producer.send(name, [(0, "a"), (1, "b")])
    committing.commit()
    aborting.abort()

    def states(*arguments: str) -> dict[str, str]:
        return {
            row["TransactionalId"].removeprefix(f"{prefix}."): row["TransactionState"]
            for row in rows(broker, "list", *arguments)
            if row["TransactionalId"].startswith(f"{prefix}.")
        }

    everything = {
        "unused": "Empty",
        "committed": "CompleteCommit",
        "aborted": "CompleteAbort",
        "open": "Ongoing",
    }
    eventually(lambda: states() == everything)  # once the markers are written
    assert states("--duration-filter", "-1") == everything
    assert states("--duration-filter", "99999999999999") == {}
    assert states("--transactional-id-pattern", f"{prefix}\\..*ted") == {
        "committed": "CompleteCommit",
        "aborted": "CompleteAbort",
    }
    assert states("--transactional-id-pattern", "(?i).*LISTED.*OPEN") == {"open": "Ongoing"}
    assert states("--transactional-id-pattern", prefix) == {}, "a pattern matches the whole id"

    (listed,) = rows(broker, "list", "--transactional-id-pattern", f"{prefix}.open")
    (described,) = rows(broker, "describe", "--transactional-id", f"{prefix}.open")
    assert described["CoordinatorId"] == listed["Coordinator"] == "1"
    assert described["ProducerId"] == listed["ProducerId"]
    assert (described["ProducerEpoch"], described["TransactionState"]) == ("0", "Ongoing")
    assert described["TransactionTimeoutMs"] == "60000"
    assert abs(int(described["CurrentTransactionStartTimeMs"]) - time.time() * 1000) < 600_000
    assert 0 <= int(described["TransactionDurationMs"]) < 600_000
    assert set(described["TopicPartitions"].split(",")) == {f"{name}-0", f"{name}-1"}
    (unused,) = rows(broker, "describe", "--transactional-id", f"{prefix}.unused")
    assert (unused["TransactionState"], unused["CurrentTransactionStartTimeMs"]) == ("Empty", "None")

    found = {row["ProducerId"]: row for row in rows(broker, "describe-producers", *_partition(name))}
    assert len(found) == 3
    mine = found[listed["ProducerId"]]
    assert (mine["ProducerEpoch"], mine["LastSequence"], mine["LatestCoordinatorEpoch"]) == (
        *("0", "0", "-1"),
    )
    open_since = [row["CurrentTransactionStartOffset"] for row in found.values()]
    assert sorted(open_since) == sorted(["None", "None", mine["CurrentTransactionStartOffset"]])
    ongoing.commit()
    eventually(lambda: states()["open"] == "CompleteCommit")


def test_unknown_ids_and_bad_patterns_are_errors(
    broker: Broker, topic: TopicFactory, java_tools: JavaTools
) -> None:
    for arguments, error in (
        (("describe", "--transactional-id", "no-such-id"), "no-such-id"),
        (("list", "--transactional-id-pattern", "("), "ListTransactions"),
        (("abort", *_partition(topic()), "--start-offset", "0"), "Could not find any open transactions"),
    ):
        result = java_tools.run(
            "kafka-transactions", "--bootstrap-server", broker.bootstrap, *arguments, status=1
        )
        assert error in result.output


def _partition(topic: str, index: int = 0) -> tuple[str, ...]:
    return "--topic", topic, "--partition", str(index)


def _append_hanging(broker: Broker, topic: str) -> None:
    """What a late Produce could do before KIP-890: a transaction that no coordinator knows. Its time is an hour ago."""
    data = batch(
        attributes=TRANSACTIONAL,
        producer_id=HANGING_PRODUCER,
        producer_epoch=3,
        base_sequence=0,
        timestamp=int(time.time() * 1000) - HOUR_MS,
    )
    connection = Connection("127.0.0.1", broker.port)
    request = ProduceRequest(
        transactional_id="late",
        acks=-1,
        timeout_ms=10_000,
        topic_data=[
            TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=data)])
        ],
    )
    answer = connection.ask(request, TRANSACTION_VERSION_1)
    assert answer.responses[0].partition_responses[0].error_code == 0
    connection.close()


@pytest.mark.parametrize("by_offset", [True, False], ids=["start offset", "producer id"])
def test_hanging_transactions_are_found_and_aborted(
    fresh_broker: BrokerFactory, producers: Producers, rows: Rows, java_tools: JavaTools, by_offset: bool
) -> None:
    broker = fresh_broker({"transaction.partition.verification.enable": "false"})
    name = create_topic(broker.bootstrap, "topic", 1)
    producer = producers(broker, "alive")
    producer.begin()
    producer.send(name, [(0, "committed")])
    producer.commit()
    eventually(lambda: read_with_confluent(broker.bootstrap, name, 1, READ_COMMITTED) == [(0, "committed")])
    _append_hanging(broker, name)
    producer.begin()
    producer.send(name, [(0, "behind")])
    producer.commit()
    assert read_with_confluent(broker.bootstrap, name, 1, READ_COMMITTED) == [(0, "committed")]
    for scope in (("--broker-id", "1"), ("--topic", name), _partition(name)):
        (found,) = rows(broker, "find-hanging", *scope)
        assert (found["Topic"], found["Partition"], found["ProducerId"], found["ProducerEpoch"]) == (
            *(name, "0", str(HANGING_PRODUCER), "3"),
        )
        assert (found["CoordinatorEpoch"], found["StartOffset"]) == ("-1", "2")
        assert 55 <= int(found["Duration(min)"]) <= 70
    assert rows(broker, "find-hanging", "--topic", name, "--max-transaction-timeout", "120") == []
    which = (
        ("--start-offset", found["StartOffset"])
        if by_offset
        else (
            *("--producer-id", found["ProducerId"], "--producer-epoch", found["ProducerEpoch"]),
            *("--coordinator-epoch", found["CoordinatorEpoch"]),
        )
    )
    java_tools.run(
        "kafka-transactions", "--bootstrap-server", broker.bootstrap, "abort", *_partition(name), *which
    )
    expected = [(0, "committed"), (0, "behind")]
    eventually(lambda: read_with_confluent(broker.bootstrap, name, 1, READ_COMMITTED) == expected)
    assert rows(broker, "find-hanging", "--broker-id", "1") == []
    states = {row["ProducerId"]: row for row in rows(broker, "describe-producers", *_partition(name))}
    hanging = states[str(HANGING_PRODUCER)]
    assert (hanging["ProducerEpoch"], hanging["CurrentTransactionStartOffset"]) == ("3", "None")
    assert hanging["LatestCoordinatorEpoch"] == "0"
    assert len(read_with_confluent(broker.bootstrap, name, 1, READ_UNCOMMITTED)) == 3


@pytest.mark.parametrize("way", ["tool", "admin"])
def test_an_open_transaction_is_ended_by_force(
    broker: Broker,
    topic: TopicFactory,
    unique: UniqueName,
    producers: Producers,
    rows: Rows,
    java_tools: JavaTools,
    java_clients: JavaClients,
    way: str,
) -> None:
    name, transactional_id = topic(partitions=1), unique("forced")
    producer = producers(broker, transactional_id)
    producer.begin()
    producer.send(name, [(0, "lost")])
    if way == "tool":
        java_tools.run(
            *("kafka-transactions", "--bootstrap-server", broker.bootstrap),
            *("forceTerminateTransaction", "--transactionalId", transactional_id),
        )
    else:
        java_clients.fence(broker.bootstrap, transactional_id)
    with pytest.raises(Fenced):
        producer.commit()
    (described,) = rows(broker, "describe", "--transactional-id", transactional_id)
    assert (described["TransactionState"], described["ProducerEpoch"]) == ("Empty", "2")
    successor = producers(broker, transactional_id)
    successor.begin()
    successor.send(name, [(0, "kept")])
    successor.commit()
    eventually(lambda: read_with_confluent(broker.bootstrap, name, 1, READ_COMMITTED) == [(0, "kept")])


def test_transaction_version_is_lowered_and_raised_under_producers(
    fresh_broker: BrokerFactory, producers: Producers, java_tools: JavaTools, java_clients: JavaClients
) -> None:
    broker = fresh_broker()
    name = create_topic(broker.bootstrap, "topic", 1)

    def features(*arguments: str) -> str:
        return java_tools.run("kafka-features", "--bootstrap-server", broker.bootstrap, *arguments).stdout

    def level() -> str:
        (line,) = (each for each in features("describe").splitlines() if "transaction.version" in each)
        assert "SupportedMinVersion: 0" in line
        assert "SupportedMaxVersion: 2" in line
        return line.split("FinalizedVersionLevel: ")[1].split()[0]

    assert level() == "2"
    features("downgrade", "--feature", "transaction.version=0")
    assert level() == "0"
    early = [producers(broker, "early"), java_clients.producer(broker.bootstrap, "early-java")]
    early[1].initialize()
    expected: list[tuple[int, str]] = []
    for number, (kind, wanted) in enumerate((("upgrade", "1"), ("upgrade", "2"), ("downgrade", "1"))):
        features(kind, "--feature", f"transaction.version={wanted}")
        assert level() == wanted
        late = [
            producers(broker, f"late {number}"),
            java_clients.producer(broker.bootstrap, f"late-java-{number}"),
        ]
        late[1].initialize()
        for each in (*early, *late):
            for commits in (True, False, True):
                each.begin()
                text = f"{number}-{len(expected)}-{commits}"
                each.send(name, [(0, text)])
                if commits:
                    each.commit()
                    expected.append((0, text))
                else:
                    each.abort()
        late[1].close()
    eventually(lambda: read_with_confluent(broker.bootstrap, name, 1, READ_COMMITTED) == expected)
    early[1].close()


def test_the_log_of_transactional_ids_is_read_by_kafkas_tools(
    fresh_broker: BrokerFactory, producers: Producers, java_tools: JavaTools
) -> None:
    broker = fresh_broker({"transaction.state.log.num.partitions": "1"})
    name = create_topic(broker.bootstrap, "topic", 1)
    producer = producers(broker, "dumped")
    for commits in (True, False):
        producer.begin()
        producer.send(name, [(0, "a")])
        producer.commit() if commits else producer.abort()
    formatter = "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter"
    consumed = java_tools.run(
        *("kafka-console-consumer", "--bootstrap-server", broker.bootstrap, "--topic", STATE_TOPIC),
        *("--formatter", formatter, "--from-beginning", "--max-messages", "7", "--timeout-ms", "20000"),
    ).stdout
    assert set(re.findall(r'"transactionalId":"(\w+)"', consumed)) == {"dumped"}
    # Empty, then Ongoing, Prepare and Complete of each
    states = [int(each) for each in re.findall(r'"transactionStatus":(\d)', consumed)]
    assert states == [0, 1, 2, 4, 1, 3, 5], consumed
    broker.stop()
    (segment,) = broker.log_dir.glob(f"{STATE_TOPIC}-0/*.log")
    dumped = java_tools.run(
        "kafka-dump-log", "--transaction-log-decoder", "--deep-iteration", "--files", str(segment)
    ).stdout
    assert "isvalid: false" not in dumped
    payloads = [json.loads(line.split("payload: ")[1]) for line in dumped.splitlines() if "payload: " in line]
    assert {each["version"] for each in payloads} == {"1"}
    written = [each["data"] for each in payloads]
    assert [
        (each["transactionStatus"], each["transactionPartitions"], each["transactionStartTimestampMs"] > 0)
        for each in written
    ] == [
        (0, None, False),
        (1, [{"topic": name, "partitionIds": [0]}], True),
        (2, [{"topic": name, "partitionIds": [0]}], True),
        (4, [], True),
        (1, [{"topic": name, "partitionIds": [0]}], True),
        (3, [{"topic": name, "partitionIds": [0]}], True),
        (5, [], True),
    ]
    for each in written:
        assert each["previousProducerId"] == each["producerId"]
        assert (each["producerEpoch"], each["transactionTimeoutMs"]) == (0, 60_000)
