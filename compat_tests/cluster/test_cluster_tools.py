"""Kafka's command-line tools on a cluster, each as an operator uses it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.harness.clients import CLIENTS, PLAIN, Sample
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.cluster_files import compare_replicas
from compat_tests.harness.cluster_work import create_topic
from compat_tests.harness.dumped_logs import LogJudge
from compat_tests.harness.eventually import eventually
from compat_tests.harness.java_tools import JavaTools
from compat_tests.harness.transactional_clients import READ_COMMITTED, ConfluentProducer, read_with_confluent


@pytest.fixture(scope="module")
def cluster(
    broker_kind: str, tmp_path_factory: pytest.TempPathFactory, java_tools: JavaTools
) -> Iterator[Cluster]:
    """One cluster for all tests of this file."""
    if broker_kind not in ("barnabas", "apache"):
        pytest.skip("needs a cluster of its own")
    settings = {"auto.leader.rebalance.enable": "false"}
    made = Cluster(tmp_path_factory.mktemp("cluster"), broker_kind, settings=settings, tools=java_tools)
    made.start()
    yield made
    made.close()


def test_kafka_topics(cluster: Cluster, java_tools: JavaTools) -> None:
    where = ("--bootstrap-server", cluster.bootstrap)
    create = ("--create", "--topic", "tt", "--partitions", "6", "--replication-factor", "3")
    java_tools.run("kafka-topics", *where, *create)
    cluster.wait_until_whole()
    text = java_tools.run("kafka-topics", *where, "--describe", "--topic", "tt").stdout
    assert "PartitionCount: 6\tReplicationFactor: 3" in text
    lines = re.findall(r"Leader: (\d+)\tReplicas: (\S+)\tIsr: (\S+)", text)
    assert sorted(leader for leader, _, _ in lines) == ["1", "1", "2", "2", "3", "3"]
    for _, replicas, isr in lines:
        assert sorted(replicas.split(",")) == sorted(isr.split(",")) == ["1", "2", "3"]
    for question in (
        "--under-replicated-partitions",
        "--unavailable-partitions",
        "--under-min-isr-partitions",
    ):
        assert java_tools.run("kafka-topics", *where, "--describe", question).stdout.strip() == ""
    cluster.kill(3)
    try:
        under = eventually(
            lambda: (
                java_tools.run(
                    "kafka-topics", *where, "--describe", "--topic", "tt", "--under-replicated-partitions"
                ).stdout
            )
        )
        eventually(lambda: cluster.metadata().partitions["tt", 0].isr != (1, 2, 3))
        assert "Topic: tt" in under
    finally:
        cluster.start(3)
    cluster.wait_until_whole()
    too_many = ("--create", "--topic", "four", "--replication-factor", "4")
    refused = java_tools.run("kafka-topics", *where, *too_many, status=1)
    assert "InvalidReplicationFactorException" in refused.output
    java_tools.run("kafka-topics", *where, "--delete", "--topic", "tt")


def test_kafka_reassign_partitions(cluster: Cluster, java_tools: JavaTools, tmp_path: Path) -> None:
    """A plan that the tool makes, executed with a throttle and verified; then one that is cancelled."""
    create_topic(cluster, "moved", assignment=[[1, 2], [1, 2]])
    samples = [Sample(None, b"%d" % number * 500) for number in range(1000)]
    for partition in (0, 1):
        PLAIN.produce(cluster.bootstrap, "moved", samples, partition=partition)
    where = ("--bootstrap-server", cluster.bootstrap)
    topics, plan = tmp_path / "topics", tmp_path / "plan"
    topics.write_text('{"topics": [{"topic": "moved"}], "version": 1}')
    made = java_tools.run(
        "kafka-reassign-partitions", *where, "--topics-to-move-json-file", str(topics),
        *("--broker-list", "2,3", "--generate"),
    ).stdout  # fmt: skip
    plan.write_text(made.split("Proposed partition reassignment configuration\n", 1)[1])
    partitions = json.loads(plan.read_text())["partitions"]
    assert all(sorted(one["replicas"]) == [2, 3] for one in partitions)
    chosen = (*where, "--reassignment-json-file", str(plan))
    started = java_tools.run("kafka-reassign-partitions", *chosen, "--execute", "--throttle", "50000000")
    assert "Successfully started partition reassignments" in started.stdout
    limited = java_tools.run("kafka-configs", *where, "--describe", "--entity-type", "brokers").stdout
    assert limited.count("follower.replication.throttled.rate=50000000") >= 3
    assert limited.count("leader.replication.throttled.rate=50000000") >= 3

    def complete() -> bool:
        return "is still in progress" not in (
            java_tools.run("kafka-reassign-partitions", *chosen, "--verify", "--preserve-throttles").stdout
        )

    eventually(complete)
    verified = java_tools.run("kafka-reassign-partitions", *chosen, "--verify").stdout
    assert verified.count("is completed") == 2
    assert "Clearing broker-level throttles" in verified
    left = java_tools.run("kafka-configs", *where, "--describe", "--entity-type", "brokers").stdout
    assert "replication.throttled.rate" not in left
    cluster.wait_until_whole()
    assert {cluster.partition("moved", number).replicas for number in (0, 1)} <= {(2, 3), (3, 2)}
    assert compare_replicas(cluster, "moved") > 0
    eventually(lambda: not list(cluster.nodes[1].log_dir.glob("moved-[01]")))
    assert [one.sample for one in CLIENTS[2].consume(cluster.bootstrap, "moved", 1000)] == samples
    listed = java_tools.run("kafka-reassign-partitions", *where, "--list").stdout
    assert "No partition reassignments found." in listed


def test_a_reassignment_is_cancelled(cluster: Cluster, java_tools: JavaTools, tmp_path: Path) -> None:
    create_topic(cluster, "stays", assignment=[[1, 2]])
    samples = [Sample(None, bytes(1000)) for _ in range(2000)]
    PLAIN.produce(cluster.bootstrap, "stays", samples)
    plan = tmp_path / "plan"
    plan.write_text('{"version": 1, "partitions": [{"topic": "stays", "partition": 0, "replicas": [3, 2]}]}')
    chosen = ("--bootstrap-server", cluster.bootstrap, "--reassignment-json-file", str(plan))
    # 2 MB at 100 KB/s: long enough to be listed
    java_tools.run("kafka-reassign-partitions", *chosen, "--execute", "--throttle", "100000")
    listed = java_tools.run("kafka-reassign-partitions", *chosen[:2], "--list").stdout
    assert "stays-0: replicas: 3,2,1. adding: 3. removing: 1." in listed
    cancelled = java_tools.run("kafka-reassign-partitions", *chosen, "--cancel").stdout
    assert "Successfully cancelled partition reassignment for: stays-0" in cancelled
    eventually(lambda: cluster.partition("stays", 0).replicas in ((1, 2), (2, 1)))
    cluster.wait_until_whole()


def test_kafka_leader_election(cluster: Cluster, java_tools: JavaTools) -> None:
    create_topic(cluster, "preferred", assignment=[[2, 1, 3]])
    assert cluster.leader("preferred") == 2
    cluster.restart(2)
    cluster.wait_until_whole()
    assert cluster.leader("preferred") != 2
    chosen = (
        "--bootstrap-server", cluster.bootstrap, "--election-type", "preferred",
        "--topic", "preferred", "--partition", "0",
    )  # fmt: skip
    done = java_tools.run("kafka-leader-election", *chosen).stdout
    assert "Successfully completed leader election (PREFERRED) for partitions preferred-0" in done
    eventually(lambda: cluster.leader("preferred") == 2)
    again = java_tools.run("kafka-leader-election", *chosen).stdout
    assert "Valid replica already elected for partitions preferred-0" in again


def test_kafka_metadata_quorum(cluster: Cluster, java_tools: JavaTools) -> None:
    where = ("--bootstrap-server", cluster.bootstrap, "describe")
    status = java_tools.run("kafka-metadata-quorum", *where, "--status").stdout
    fields = dict(re.findall(r"^(\w+): +(.*)$", status, re.MULTILINE))
    assert fields["ClusterId"] == cluster.metadata().cluster_id
    assert int(fields["LeaderId"]) == cluster.active_controller()
    assert int(fields["LeaderEpoch"]) > 0
    assert int(fields["HighWatermark"]) > 0
    assert len(re.findall(r'"id": \d', fields["CurrentVoters"])) == 3 or fields["CurrentVoters"] == "[1,2,3]"
    assert fields["CurrentObservers"] == "[]"
    replication = java_tools.run("kafka-metadata-quorum", *where, "--replication").stdout
    rows = [line.split() for line in replication.strip().splitlines()[1:]]
    assert sorted(row[0] for row in rows) == ["1", "2", "3"]
    assert sorted(row[-1] for row in rows) == ["Follower", "Follower", "Leader"]


def test_kafka_features(cluster: Cluster, java_tools: JavaTools) -> None:
    where = ("--bootstrap-server", cluster.bootstrap)
    text = java_tools.run("kafka-features", *where, "describe").stdout
    assert "Feature: metadata.version" in text
    assert re.search(r"Feature: transaction.version.*FinalizedVersionLevel: 2", text)
    # the upgrade of an unknown feature fails
    finalized = re.search(r"Feature: metadata.version.*FinalizedVersionLevel: (\S+)", text)
    assert finalized is not None
    refused = java_tools.run("kafka-features", *where, "upgrade", "--feature", "no.such=1", status=1)
    assert "no.such" in refused.output


def test_kafka_transactions(cluster: Cluster, java_tools: JavaTools) -> None:
    """Ids that different brokers coordinate, and a partition whose replicas describe its producers each for itself."""

    def rows(*arguments: str) -> list[dict[str, str]]:
        where = ("--bootstrap-server", cluster.bootstrap)
        printed = java_tools.run("kafka-transactions", *where, *arguments).stdout
        columns, *lines = [line.split() for line in printed.strip().splitlines()]
        return [dict(zip(columns, line, strict=False)) for line in lines]

    create_topic(cluster, "transactional")
    cluster.wait_until_whole()
    names = [f"id-{number}" for number in range(12)]
    producers = [ConfluentProducer(cluster.bootstrap, name) for name in names]
    try:
        for producer in producers:
            producer.initialize()
            producer.begin()
            producer.send("transactional", [(0, "x")])
        listed = {row["TransactionalId"]: row for row in rows("list")}
        assert sorted(listed) == sorted(names)
        assert {row["TransactionState"] for row in listed.values()} == {"Ongoing"}
        assert {row["Coordinator"] for row in listed.values()} == {"1", "2", "3"}
        for name in names[:3]:
            (described,) = rows("describe", "--transactional-id", name)
            assert described["CoordinatorId"] == listed[name]["Coordinator"]
            assert described["TopicPartitions"] == "transactional-0"
        where = ("describe-producers", "--topic", "transactional", "--partition", "0")
        ids = {row["ProducerId"] for row in listed.values()}
        for replica in ((), *(("--broker-id", str(node)) for node in (1, 2, 3))):
            eventually(lambda replica=replica: {row["ProducerId"] for row in rows(*where, *replica)} == ids)
        java_tools.run(
            *("kafka-transactions", "--bootstrap-server", cluster.bootstrap),
            *("forceTerminateTransaction", "--transactionalId", names[0]),
        )
        for producer in producers[1:]:
            producer.commit()
        eventually(
            lambda: (
                [row["CurrentTransactionStartOffset"] for row in rows(*where, "--broker-id", "2")]
                == ["None"] * len(names)
            )
        )
        completed = dict.fromkeys(names, "CompleteCommit") | {names[0]: "Empty"}
        eventually(
            lambda: {row["TransactionalId"]: row["TransactionState"] for row in rows("list")} == completed
        )
        found = read_with_confluent(cluster.bootstrap, "transactional", 1, READ_COMMITTED)
        assert found == [(0, "x")] * (len(names) - 1)
    finally:
        for producer in producers:
            producer.close()


def test_kafka_cluster(cluster: Cluster, java_tools: JavaTools) -> None:
    where = ("--bootstrap-server", cluster.bootstrap)
    printed = java_tools.run("kafka-cluster", "cluster-id", *where).stdout
    assert printed.strip() == f"Cluster ID: {cluster.metadata().cluster_id}"
    listed = java_tools.run("kafka-cluster", "list-endpoints", *where).stdout
    rows = [line.split() for line in listed.strip().splitlines()[1:]]
    assert {int(row[0]): f"{row[1]}:{row[2]}" for row in rows} == cluster.addresses
    alive = java_tools.run("kafka-cluster", "unregister", *where, "--id", "9", status=None)
    assert "9" in alive.output


def test_kafka_log_dirs(cluster: Cluster, java_tools: JavaTools) -> None:
    create_topic(cluster, "everywhere", 3)
    text = java_tools.run("kafka-log-dirs", "--bootstrap-server", cluster.bootstrap, "--describe").stdout
    found = json.loads(next(line for line in text.splitlines() if line.startswith("{")))
    for one in found["brokers"]:
        names = {part["partition"] for folder in one["logDirs"] for part in folder["partitions"]}
        assert {"everywhere-0", "everywhere-1", "everywhere-2"} <= names


def test_kafka_dump_log_accepts_every_replica(
    cluster: Cluster, java_tools: JavaTools, tmp_path: Path
) -> None:
    """Runs last: stops the cluster, and runs kafka-dump-log on the partitions of all nodes."""
    create_topic(cluster, "judged", 2)
    for partition in (0, 1):
        samples = [Sample(b"%d" % number, b"v" * number) for number in range(500)]
        PLAIN.produce(cluster.bootstrap, "judged", samples, "zstd", partition)
    cluster.wait_until_whole()
    cluster.stop()
    for number, node in cluster.nodes.items():
        compacted = {"__consumer_offsets", "__cluster_metadata"}
        judge = LogJudge(java_tools, node.log_dir, tmp_path / str(number), compacted)
        copied = [file for file in judge.copy() if "__cluster_metadata" not in str(file)]
        judge.judge(copied)
        assert judge.judged >= 2
