"""Kafka's own command-line tools: most inside one shared JVM, one pass of each as its own process."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import CLIENTS, CODECS, PLAIN, Read, Sample
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import TopicFactory, UniqueName
from compat_tests.harness.java_tools import JavaTools, run_as_process
from compat_tests.harness.raw import STARTED_MS

Lines = Callable[[str], bool]


def at_least(count: int) -> Lines:
    """Whether the text has that many whole lines."""
    return lambda text: text.count("\n") >= count


def _server(broker: Broker) -> tuple[str, str]:
    return ("--bootstrap-server", broker.bootstrap)


@pytest.mark.parametrize("codec", CODECS)
def test_console_producer_and_consumer(
    broker: Broker, topic: TopicFactory, java_tools: JavaTools, codec: str
) -> None:
    name = topic()
    lines = "".join(f"h1:one,h2:two\tkey{number}\tvalue {number}\n" for number in range(50))
    properties = ("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true")
    java_tools.run(
        "kafka-console-producer",
        *_server(broker),
        "--topic",
        name,
        "--compression-codec",
        codec,
        *properties,
        stdin=lines,
    )
    printed = ("print.key=true", "print.headers=true", "print.offset=true", "print.partition=true")
    result = java_tools.run(
        "kafka-console-consumer",
        *_server(broker),
        *("--topic", name, "--from-beginning", "--max-messages", "50", "--timeout-ms", "20000"),
        *(word for one in printed for word in ("--formatter-property", one)),
    )
    expected = [
        f"Partition:0\tOffset:{number}\th1:one,h2:two\tkey{number}\tvalue {number}" for number in range(50)
    ]
    assert result.stdout.splitlines() == expected
    found = CLIENTS[0].consume(broker.bootstrap, name, 50)
    assert found[49].sample.headers == (("h1", b"one"), ("h2", b"two"))


@pytest.mark.parametrize("codec", CODECS)
def test_java_reads_what_python_wrote(
    broker: Broker, topic: TopicFactory, java_tools: JavaTools, codec: str
) -> None:
    name = topic()
    samples = [Sample(None, b"no key"), Sample(b"tombstone", None), Sample(b"k", b"v", (("h", None),))]
    PLAIN.produce(broker.bootstrap, name, samples, codec)
    printed = ("print.key=true", "print.headers=true", "print.timestamp=true", "null.literal=NULL")
    result = java_tools.run(
        "kafka-console-consumer",
        *_server(broker),
        *("--topic", name, "--from-beginning", "--max-messages", "3", "--timeout-ms", "20000"),
        *(word for one in printed for word in ("--formatter-property", one)),
    )
    assert result.stdout.splitlines() == [
        f"CreateTime:{STARTED_MS}\tNO_HEADERS\tNULL\tno key",
        f"CreateTime:{STARTED_MS}\tNO_HEADERS\ttombstone\tNULL",
        f"CreateTime:{STARTED_MS}\th:NULL\tk\tv",
    ]


@pytest.mark.parametrize("strategy", ["RangeAssignor", "StickyAssignor", "CooperativeStickyAssignor"])
def test_java_group_members_join_and_leave(
    broker: Broker, topic: TopicFactory, java_tools: JavaTools, unique: UniqueName, strategy: str
) -> None:
    name, group = topic(partitions=4), unique("group")
    arguments = (
        *_server(broker),
        *("--topic", name, "--group-id", group, "--session-timeout", "6000", "--verbose"),
        *("--assignment-strategy", f"org.apache.kafka.clients.consumer.{strategy}"),
        *("--reset-policy", "earliest"),
    )

    def owned(text: str) -> set[int]:
        parts: set[int] = set()
        for line in text.splitlines():
            if not line.startswith("{"):
                continue
            event = json.loads(line)
            numbers = {one["partition"] for one in event.get("partitions", [])}
            if event["name"] == "partitions_assigned":
                parts |= numbers
            elif event["name"] == "partitions_revoked":
                parts -= numbers
        return parts

    first = java_tools.start("kafka-verifiable-consumer", *arguments)
    first.wait_for(lambda text: owned(text) == {0, 1, 2, 3})
    second = java_tools.start("kafka-verifiable-consumer", *arguments)
    eventually(
        lambda: (
            len(owned(first.stdout)) == 2
            and len(owned(second.stdout)) == 2
            and owned(first.stdout) | owned(second.stdout) == {0, 1, 2, 3}
        ),
        30,
    )
    java_tools.run("kafka-verifiable-producer", *_server(broker), "--topic", name, "--max-messages", "200")

    def consumed() -> int:
        text = first.stdout + second.stdout
        return sum(
            json.loads(line)["count"] for line in text.splitlines() if '"name":"records_consumed"' in line
        )

    eventually(lambda: consumed() == 200)
    second.stop()
    second.wait()
    eventually(lambda: owned(first.stdout) == {0, 1, 2, 3})
    first.stop()
    first.wait()
    listed = java_tools.run("kafka-consumer-groups", *_server(broker), "--describe", "--group", group)
    rows = [line.split() for line in listed.stdout.splitlines() if line.startswith(group)]
    assert sum(int(row[3]) for row in rows) == 200
    assert all(row[5] == "0" for row in rows), "no lag"


def test_java_static_member(
    broker: Broker, topic: TopicFactory, java_tools: JavaTools, unique: UniqueName
) -> None:
    name, group = topic(partitions=1), unique("group")
    arguments = (*_server(broker), "--topic", name, "--group-id", group, "--group-instance-id", "one")
    member = java_tools.start("kafka-verifiable-consumer", *arguments, "--session-timeout", "6000")
    member.wait_for(lambda text: "partitions_assigned" in text)
    described = java_tools.run(
        "kafka-consumer-groups", *_server(broker), "--describe", "--members", "--group", group
    )
    assert re.search(rf"{group}\s+one-\S+\s+one\s", described.stdout), described.stdout
    member.stop()
    member.wait()


def test_verifiable_producer_acknowledges_all(
    broker: Broker, topic: TopicFactory, java_tools: JavaTools
) -> None:
    name = topic(partitions=3)
    result = java_tools.run(
        "kafka-verifiable-producer",
        *_server(broker),
        "--topic",
        name,
        "--max-messages",
        "1000",
        "--acks",
        "-1",
    )
    events = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    acknowledged = [one for one in events if one["name"] == "producer_send_success"]
    assert len(acknowledged) == 1000
    summary = next(one for one in events if one["name"] == "tool_data")
    assert (summary["sent"], summary["acked"]) == (1000, 1000)


def test_kafka_topics(broker: Broker, java_tools: JavaTools, unique: UniqueName) -> None:
    name = unique("topic")
    run = partial(java_tools.run, "kafka-topics", *_server(broker))
    created = run("--create", "--topic", name, "--partitions", "2", "--config", "max.message.bytes=2000")
    assert f"Created topic {name}." in created.stdout
    assert name in run("--list").stdout.split()
    described = run("--describe", "--topic", name).stdout
    assert re.search(
        rf"Topic: {name}\s+TopicId: \S{{22}}\s+PartitionCount: 2\s+ReplicationFactor: 1", described
    )
    assert "max.message.bytes=2000" in described
    assert re.search(r"Partition: 1\s+Leader: \d+\s+Replicas: \d+\s+Isr: \d+", described)
    run("--alter", "--topic", name, "--partitions", "4")
    eventually(lambda: "PartitionCount: 4" in run("--describe", "--topic", name).stdout)
    again = run("--create", "--topic", name, status=1)
    assert "already exists" in again.output
    run("--create", "--topic", name, "--if-not-exists")
    bad = run("--create", "--topic", unique("topic"), "--replication-factor", "3", status=1)
    assert "INVALID_REPLICATION_FACTOR" in bad.output or "Unable to replicate" in bad.output
    run("--delete", "--topic", name)
    eventually(lambda: name not in run("--list").stdout.split())


def test_kafka_configs(broker: Broker, topic: TopicFactory, java_tools: JavaTools) -> None:
    name = topic()

    def run(*words: str, status: int = 0) -> str:
        entity = ("--entity-type", "topics", "--entity-name", name)
        return java_tools.run("kafka-configs", *_server(broker), *entity, *words, status=status).output

    assert "Completed updating config" in run(
        "--alter", "--add-config", "retention.ms=-1,segment.bytes=1048576"
    )
    eventually(lambda: "segment.bytes=1048576" in run("--describe"))
    run("--alter", "--delete-config", "segment.bytes")
    eventually(lambda: "segment.bytes=1048576" not in run("--describe"))
    assert "segment.bytes=1073741824" in run("--describe", "--all")
    assert "Invalid value abc for configuration retention.ms" in run(
        "--alter", "--add-config", "retention.ms=abc", status=1
    )
    brokers = java_tools.run(
        "kafka-configs",
        *_server(broker),
        "--entity-type",
        "brokers",
        "--entity-name",
        "1",
        "--describe",
        "--all",
    )
    assert "node.id=1" in brokers.stdout


def test_kafka_consumer_groups(
    broker: Broker, topic: TopicFactory, java_tools: JavaTools, unique: UniqueName
) -> None:
    name, group = topic(), unique("group")
    PLAIN.produce(broker.bootstrap, name, [Sample(None, b"%d" % n) for n in range(10)])
    java_tools.run(
        "kafka-console-consumer",
        *_server(broker),
        *("--topic", name, "--group", group, "--from-beginning", "--max-messages", "10"),
    )

    def run(*words: str, status: int = 0) -> str:
        return java_tools.run("kafka-consumer-groups", *_server(broker), *words, status=status).output

    assert group in run("--list").split()
    assert re.search(rf"{group}\s+{name}\s+0\s+10\s+10\s+0\s", run("--describe", "--group", group))
    assert "Empty" in run("--describe", "--group", group, "--state")
    reset = ("--reset-offsets", "--group", group, "--topic", name, "--execute")
    assert re.search(rf"{group}\s+{name}\s+0\s+3", run(*reset, "--to-offset", "3"))
    assert re.search(rf"{group}\s+{name}\s+0\s+3\s+10\s+7\s", run("--describe", "--group", group))
    run(*reset, "--to-earliest")
    run(*reset, "--shift-by", "2")
    assert re.search(rf"{group}\s+{name}\s+0\s+2\s+10\s+8\s", run("--describe", "--group", group))
    run("--delete-offsets", "--group", group, "--topic", name)
    assert not re.search(rf"{group}\s+{name}\s+0\s+2", run("--describe", "--group", group))
    run(*reset, "--to-latest")
    assert "successful" in run("--delete", "--group", group)
    assert group not in run("--list").split()


def test_kafka_get_offsets(broker: Broker, topic: TopicFactory, java_tools: JavaTools) -> None:
    name = topic(partitions=2)
    for stamp in (1000, 3000, 2000):
        PLAIN.produce(broker.bootstrap, name, [Sample(None, b"v", timestamp=stamp)])

    def ask(time: str) -> list[str]:
        result = java_tools.run("kafka-get-offsets", *_server(broker), "--topic", name, "--time", time)
        return result.stdout.split()

    assert ask("earliest") == [f"{name}:0:0", f"{name}:1:0"]
    assert ask("latest") == [f"{name}:0:3", f"{name}:1:0"]
    assert f"{name}:0:1" in ask("max-timestamp")
    assert f"{name}:0:1" in ask("1500")
    assert f"{name}:0:0" in ask("earliest-local")
    assert f"{name}:0:3" not in ask("latest-tiered")


def test_kafka_delete_records(
    broker: Broker, topic: TopicFactory, java_tools: JavaTools, tmp_path: Path
) -> None:
    name = topic()
    PLAIN.produce(broker.bootstrap, name, [Sample(None, b"%d" % n) for n in range(10)])
    wish = tmp_path / "offsets.json"
    wish.write_text(json.dumps({"partitions": [{"topic": name, "partition": 0, "offset": 6}], "version": 1}))
    result = java_tools.run("kafka-delete-records", *_server(broker), "--offset-json-file", str(wish))
    assert f"partition: {name}-0\tlow_watermark: 6" in result.stdout
    found = CLIENTS[0].consume(broker.bootstrap, name, 4, offset=6)
    assert found[0] == Read(6, Sample(None, b"6"))


def test_broker_api_versions(broker: Broker, java_tools: JavaTools) -> None:
    result = java_tools.run("kafka-broker-api-versions", *_server(broker))
    assert f"{broker.bootstrap} (id: 1 rack: null" in result.stdout
    assert "Produce(0): 0 to 13" in result.stdout
    assert "Fetch(1): 4 to 18" in result.stdout


def test_log_dirs(broker: Broker, topic: TopicFactory, java_tools: JavaTools) -> None:
    name = topic()
    PLAIN.produce(broker.bootstrap, name, [Sample(None, b"v" * 100)])
    result = java_tools.run("kafka-log-dirs", *_server(broker), "--describe", "--topic-list", name)
    described = json.loads(result.stdout.splitlines()[-1])
    [directory] = described["brokers"][0]["logDirs"]
    assert directory["error"] is None
    [partition] = directory["partitions"]
    assert (partition["partition"], partition["offsetLag"], partition["isFuture"]) == (f"{name}-0", 0, False)
    assert partition["size"] > 100


@pytest.mark.long
@pytest.mark.jvm
def test_each_tool_as_its_own_process(broker: Broker, unique: UniqueName, tmp_path: Path) -> None:
    """Every tool runs once in a process of its own, on one topic."""
    name, group = unique("topic"), unique("group")
    server = _server(broker)
    run_as_process("kafka-topics", [*server, "--create", "--topic", name])
    run_as_process("kafka-configs", [*server, "--alter", "--topic", name, "--add-config", "retention.ms=-1"])
    run_as_process("kafka-console-producer", [*server, "--topic", name], stdin="one\ntwo\n")
    run_as_process("kafka-verifiable-producer", [*server, "--topic", name, "--max-messages", "3"])
    consumer = ["--topic", name, "--group", group, "--from-beginning", "--max-messages", "5"]
    read = run_as_process("kafka-console-consumer", [*server, *consumer])
    assert read.stdout.splitlines() == ["one", "two", "0", "1", "2"]
    verified = [
        "--topic",
        name,
        "--group-id",
        unique("group"),
        "--max-messages",
        "5",
        "--reset-policy",
        "earliest",
    ]
    assert '"count":5' in run_as_process("kafka-verifiable-consumer", [*server, *verified]).stdout
    assert f"{name}:0:5" in run_as_process("kafka-get-offsets", [*server, "--topic", name]).stdout
    assert group in run_as_process("kafka-consumer-groups", [*server, "--list"]).stdout
    wish = tmp_path / "offsets.json"
    wish.write_text(json.dumps({"partitions": [{"topic": name, "partition": 0, "offset": 2}], "version": 1}))
    run_as_process("kafka-delete-records", [*server, "--offset-json-file", str(wish)])
    assert "Produce(0)" in run_as_process("kafka-broker-api-versions", [*server]).stdout
    assert name in run_as_process("kafka-log-dirs", [*server, "--describe", "--topic-list", name]).stdout
