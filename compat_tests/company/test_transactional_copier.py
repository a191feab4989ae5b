"""Kafka's TransactionalMessageCopier, stopped and killed while it copies: each record is in the output once, in order.

It reads in a group, sends what it has read and commits its offsets in one transaction. The long form (`make
test-transactions`) also restarts and kills the brokers of a cluster.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from compat_tests.company.read import read_all
from compat_tests.harness.broker import Broker
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.cluster_work import create_topic
from compat_tests.harness.committed import committed
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import ClusterFactory, TopicFactory, UniqueName
from compat_tests.harness.java_program import JavaProgram

pytestmark = pytest.mark.jvm

COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
TRANSACTION_TIMEOUT_MS = 6_000  # what a killed copier leaves is in its successor's way for so long


class Copier:
    """The program, which continues where its last run has committed; one at a time."""

    def __init__(
        self,
        bootstrap: str,
        source: str,
        target: str,
        directory: Path,
        options: Sequence[str],
        partition: int = 0,
        size: int = 50,
    ) -> None:
        self._directory = directory
        self._arguments = [
            *("--broker-list", bootstrap, "--transactional-id", f"{target}-{partition}"),
            *("--input-topic", source, "--input-partition", str(partition), "--output-topic", target),
            *("--consumer-group", target, "--transaction-size", str(size)),
            *("--transaction-timeout", str(TRANSACTION_TIMEOUT_MS)),
            *options,
        ]
        self.start()

    def start(self) -> None:
        """Start it, anew."""
        self._program = JavaProgram(COPIER, self._arguments, self._directory)
        self._seen = len(self._program.output)

    def await_copied(self, count: int) -> None:
        """Wait until this run has committed at least `count` records, or has ended."""

        def reached() -> bool:
            return any(event["totalProcessed"] >= count for event in self._events())

        self._program.wait_until(reached)

    def bounce(self, *, hard: bool) -> None:
        """End the run, and start the next one at once."""
        if hard:
            self._program.kill()
        else:
            self._program.stop()
        self.start()

    def finish(self, timeout: float = 90) -> None:
        """Wait until all that was there when the run began is copied."""
        code = self._program.wait(timeout)
        last = self._events()[-1]
        assert (code, last["remaining"]) == (0, 0), self._program.tail()
        assert last["stage"] == "ShutdownComplete"

    def close(self) -> None:
        """Kill the run, if it goes on."""
        self._program.kill()

    def _events(self) -> list[dict[str, Any]]:
        lines = self._program.output[self._seen :].splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


@pytest.fixture
def copiers() -> Iterator[ExitStack]:
    """Ends copiers."""
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize(
    ("hard", "options"),
    [
        pytest.param(False, ["--enable-random-aborts"], id="clean", marks=pytest.mark.long),
        pytest.param(True, ["--use-group-metadata", "--enable-random-aborts"], id="hard"),
    ],
)
def test_copiers_that_are_bounced(
    broker: Broker,
    topic: TopicFactory,
    copiers: ExitStack,
    tmp_path: Path,
    hard: bool,
    options: list[str],
) -> None:
    source, target = topic(), topic()
    _fill(broker.bootstrap, source, 1, range(1500))

    copier = Copier(broker.bootstrap, source, target, tmp_path, options)
    copiers.callback(copier.close)
    copier.await_copied(300)
    copier.bounce(hard=hard)
    copier.finish()

    assert read_all(broker.bootstrap, target) == _expected(1, 1500)
    _check_offsets(broker.bootstrap, target, 1, 1500)


@pytest.mark.long
def test_a_group_takes_over_from_a_killed_copier(
    broker: Broker, topic: TopicFactory, copiers: ExitStack, tmp_path: Path
) -> None:
    """Partitions move to a copier with another transactional id, which must not read the group's offsets before the killed
    one's transaction has ended; KIP-447."""
    source, target = topic(2), topic(2)
    _fill(broker.bootstrap, source, 2, range(1500))
    options = ["--group-mode", "--use-group-metadata"]

    def copier(number: int) -> Copier:
        one = Copier(broker.bootstrap, source, target, tmp_path / str(number), options, number, size=10)
        copiers.callback(one.close)
        return one

    killed = copier(0)
    killed.await_copied(100)
    killed.close()
    for one in (copier(1), copier(2)):
        one.finish()

    assert read_all(broker.bootstrap, target) == _expected(2, 1500)
    _check_offsets(broker.bootstrap, target, 2, 1500)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("target_of_bounce", ["clients", "brokers"])
@pytest.mark.parametrize(
    ("hard", "options"),
    [
        pytest.param(False, ["--enable-random-aborts"], id="clean"),
        pytest.param(True, ["--use-group-metadata"], id="hard"),
    ],
)
def test_copiers_in_a_cluster(
    fresh_cluster: ClusterFactory,
    unique: UniqueName,
    copiers: ExitStack,
    tmp_path: Path,
    hard: bool,
    target_of_bounce: str,
    options: list[str],
) -> None:
    partitions, records = 2, 1_500
    cluster = fresh_cluster(settings={"transaction.state.log.num.partitions": "5"})
    source, target = (
        create_topic(cluster, unique(name), partitions, configs={"min.insync.replicas": "2"})
        for name in ("source", "target")
    )

    for turn, node in enumerate(list(cluster.nodes)):
        _fill(cluster.bootstrap, source, partitions, range(turn * records, (turn + 1) * records))
        running = [
            Copier(cluster.bootstrap, source, target, tmp_path / str(number), options, number, size=10)
            for number in range(partitions)
        ]
        for one in running:
            copiers.callback(one.close)
        for one in running:
            one.await_copied(100)
            if target_of_bounce == "clients":
                one.bounce(hard=hard)
        if target_of_bounce == "brokers":
            _bounce(cluster, node, hard=hard)
        for one in running:
            one.finish(240)

    assert read_all(cluster.bootstrap, target) == _expected(partitions, len(cluster.nodes) * records)
    _check_offsets(cluster.bootstrap, target, partitions, len(cluster.nodes) * records)


def _bounce(cluster: Cluster, node: int, *, hard: bool) -> None:
    if hard:
        cluster.kill(node)
    else:
        cluster.stop(node)
    cluster.start(node)
    cluster.wait_until_whole()


def _fill(bootstrap: str, topic: str, partitions: int, numbers: range) -> None:
    """The numbers, as records of each partition."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
    for partition in range(partitions):
        for number in numbers:
            producer.produce(topic, b"%d" % number, key=b"%d" % partition, partition=partition)
            producer.poll(0)
    assert producer.flush(60) == 0


def _expected(partitions: int, count: int) -> list[tuple[bytes, bytes | None]]:
    return [(b"%d" % partition, b"%d" % number) for partition in range(partitions) for number in range(count)]


def _check_offsets(bootstrap: str, group: str, partitions: int, end: int) -> None:
    """The offsets of the last transaction become visible with its markers, soon after its end was answered."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = dict.fromkeys(range(partitions), end)
    eventually(lambda: {one.partition: one.offset for one in committed(admin, group)} == wanted)
