"""Kafka Streams' word count: internal topics, a changelog to restore from, records deleted; exactly once over a kill -9."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from compat_tests.company.read import read_all
from compat_tests.harness.broker import Broker
from compat_tests.harness.cluster_work import create_topic
from compat_tests.harness.confluent_admin import ConfigResource, OffsetSpec, ResourceType
from compat_tests.harness.fixture_types import ClusterFactory, TopicFactory, UniqueName
from compat_tests.harness.java_program import JavaProgram
from compat_tests.harness.java_tools import JavaTools

pytestmark = pytest.mark.jvm

SOURCE = Path(__file__).parent / "java" / "WordCount.java"
FIRST = ["the quick brown fox", "jumps over the lazy dog", "the end"] * 100
SECOND = ["the fox again", "and the dog"] * 100


@pytest.mark.long
def test_word_count_survives_the_loss_of_its_state(
    broker: Broker, topic: TopicFactory, unique: UniqueName, tmp_path: Path
) -> None:
    lines, counts, application = topic(2), topic(2), unique("word-count")
    state = tmp_path / "state"
    arguments = [broker.bootstrap, application, lines, counts, str(state), "at_least_once"]

    _say(broker.bootstrap, lines, FIRST)
    with JavaProgram(SOURCE, arguments, tmp_path) as program:
        program.wait_until(lambda: _counts(broker, counts) == _expected(FIRST))

    shutil.rmtree(state)  # so that the counts come back from the changelog topic
    _say(broker.bootstrap, lines, SECOND)
    with JavaProgram(SOURCE, arguments, tmp_path) as program:
        program.wait_until(lambda: _counts(broker, counts) == _expected(FIRST + SECOND))
        repartition = f"{application}-counts-repartition"
        program.wait_until(lambda: _purged(broker, repartition))

    configs = _configs(broker, f"{application}-counts-changelog")
    assert configs["cleanup.policy"] == "compact"


def test_exactly_once_over_a_kill(
    broker: Broker, topic: TopicFactory, unique: UniqueName, tmp_path: Path
) -> None:
    """Without a cache each word's counts go out one by one: 1, 2, 3 ..., and none twice for a read_committed reader."""
    lines, counts, application = topic(2), topic(2), unique("word-count")
    arguments = [broker.bootstrap, application, lines, counts, str(tmp_path / "state"), "exactly_once_v2"]

    _say(broker.bootstrap, lines, FIRST)
    with JavaProgram(SOURCE, arguments, tmp_path) as program:
        program.wait_until(lambda: _every_count(broker.bootstrap, counts) == _every_expected(FIRST))
        _say(broker.bootstrap, lines, SECOND)
        program.wait_until(lambda: _transaction_is_open(broker.bootstrap, counts))
        program.kill()

    with JavaProgram(SOURCE, arguments, tmp_path) as program:
        program.wait_until(lambda: _every_count(broker.bootstrap, counts) == _every_expected(FIRST + SECOND))

    aborted = len(read_all(broker.bootstrap, counts, committed=False)) - len(
        read_all(broker.bootstrap, counts)
    )
    assert aborted > 0


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_streams_group_over_a_kill(
    broker: Broker, topic: TopicFactory, unique: UniqueName, tmp_path: Path, java_tools: JavaTools
) -> None:
    """group.protocol=streams (KIP-1071): the broker creates the internal topics and assigns the tasks to two processes. One dies, and
    the other one takes over its tasks when its session ends."""
    lines, counts, application = topic(4), topic(2), unique("word-count")
    properties = tmp_path / "streams.properties"
    properties.write_text("group.protocol=streams\n")

    def instance(name: str) -> JavaProgram:
        arguments = [broker.bootstrap, application, lines, counts, str(tmp_path / f"{name}-state")]
        return JavaProgram(SOURCE, [*arguments, "exactly_once_v2", str(properties)], tmp_path / name)

    def tool(*arguments: str) -> str:
        return java_tools.run(
            "kafka-streams-groups", "--bootstrap-server", broker.bootstrap, *arguments
        ).stdout

    def describe(what: str) -> str:
        return tool("--describe", "--group", application, what)

    def is_shared_by(count: int) -> bool:
        members = [line for line in describe("--members").splitlines() if line.startswith(application)]
        return (
            "Stable" in describe("--state")
            and len(members) == count
            and all("0:" in line for line in members)
        )

    _say(broker.bootstrap, lines, FIRST)
    one, other = instance("one"), instance("other")
    try:
        one.wait_until(lambda: _counts(broker, counts) == _expected(FIRST), 120)
        one.wait_until(lambda: is_shared_by(2), 120)
        one.kill()
        _say(broker.bootstrap, lines, SECOND)
        other.wait_until(lambda: _counts(broker, counts) == _expected(FIRST + SECOND), 180)
        assert is_shared_by(1)
        assert application in tool("--list", "--state", "stable")
        assert f"{application}-counts-repartition" in tool("--describe", "--group", application)
        other.stop()
    finally:
        one.kill()
        other.kill()
    assert "Deletion of requested streams groups" in tool("--delete", "--group", application)
    assert application not in tool("--list")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_exactly_once_in_a_cluster(fresh_cluster: ClusterFactory, unique: UniqueName, tmp_path: Path) -> None:
    """Two instances share the tasks. In each turn one of them and one node are killed with a transaction open, so that tasks,
    their state and the coordinators move."""
    cluster = fresh_cluster(settings={"transaction.state.log.num.partitions": "5"})
    lines, counts = (
        create_topic(cluster, unique(name), 2, configs={"min.insync.replicas": "2"})
        for name in ("lines", "counts")
    )
    application = unique("word-count")

    def instance(name: str) -> JavaProgram:
        state = str(tmp_path / f"{name}-state")
        arguments = [cluster.bootstrap, application, lines, counts, state, "exactly_once_v2"]
        return JavaProgram(SOURCE, arguments, tmp_path / name)

    said: list[str] = []

    def every_line_is_counted() -> bool:
        return _every_count(cluster.bootstrap, counts) == _every_expected(said)

    programs = {name: instance(name) for name in ("one", "other")}
    try:
        for turn, node in enumerate(list(cluster.nodes)):
            name = "other" if turn % 2 else "one"
            said += FIRST
            _say(cluster.bootstrap, lines, FIRST)
            programs[name].wait_until(lambda: _transaction_is_open(cluster.bootstrap, counts), 120)
            programs[name].kill()
            cluster.kill(node)
            cluster.start(node)
            programs[name] = instance(name)
            programs[name].wait_until(every_line_is_counted, 180)
    finally:
        for program in programs.values():
            program.kill()


def _transaction_is_open(bootstrap: str, topic: str) -> bool:
    """Whether records lie behind what is committed."""
    committed = len(read_all(bootstrap, topic))
    return len(read_all(bootstrap, topic, committed=False)) > committed


def _every_count(bootstrap: str, topic: str) -> dict[str, list[int]]:
    """All committed counts of every word, in their order."""
    found: dict[str, list[int]] = {}
    for key, value in read_all(bootstrap, topic):
        found.setdefault(key.decode(), []).append(int(value or 0))
    return found


def _every_expected(lines: list[str]) -> dict[str, list[int]]:
    return {word: list(range(1, count + 1)) for word, count in _expected(lines).items()}


def _say(bootstrap: str, topic: str, lines: list[str]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number, line in enumerate(lines):
        producer.produce(topic, line.encode(), key=str(number).encode())
    producer.flush()


def _counts(broker: Broker, topic: str) -> dict[str, int]:
    """The last count of every word."""
    return {key.decode(): int(value or 0) for key, value in read_all(broker.bootstrap, topic)}


def _expected(lines: list[str]) -> dict[str, int]:
    return dict(Counter(word for line in lines for word in line.split()))


def _purged(broker: Broker, repartition_topic: str) -> bool:
    """Whether Streams has deleted what it has read (DeleteRecords) and nothing is left to read."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    partitions = [TopicPartition(repartition_topic, index) for index in range(2)]
    first = admin.list_offsets({one: OffsetSpec.earliest() for one in partitions})
    last = admin.list_offsets({one: OffsetSpec.latest() for one in partitions})
    return all(
        first[one].result(10).offset == last[one].result(10).offset > 0
        for one in partitions
        if last[one].result(10).offset
    )


def _configs(broker: Broker, topic: str) -> dict[str, str]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    return {
        name: entry.value for name, entry in admin.describe_configs([resource])[resource].result(10).items()
    }
