"""A controlled rolling restart: no client with its library's defaults sees an error, and groups keep their members.

A retry is no error; with BARNABAS_CHAOS_ROUNDS set the number of retries is printed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping

import confluent_kafka
import pytest
from kafka import KafkaProducer

from compat_tests.harness.cluster_work import QUIET, Work, Writer, create_topic
from compat_tests.harness.fixture_types import ClusterFactory
from compat_tests.harness.java_tools import JavaTools
from compat_tests.harness.loads import (
    Acknowledge,
    Bootstrapped,
    KafkaPython,
    Librdkafka,
    LoadClient,
)

LONG = "BARNABAS_CHAOS_ROUNDS" in os.environ
_retries: dict[str, int] = {}


def _librdkafka(cluster: Bootstrapped, topic: str, answered: Acknowledge) -> LoadClient:
    """confluent-kafka with its defaults, and a count of its retries."""

    def note(text: str) -> None:
        brokers = json.loads(text)["brokers"].values()
        _retries[topic] = sum(one["txretries"] for one in brokers)

    settings = {"bootstrap.servers": cluster.bootstrap, "statistics.interval.ms": 500, "stats_cb": note}
    producer = confluent_kafka.Producer({**settings, **QUIET, "enable.idempotence": "idempotent" in topic})
    return Librdkafka(producer, topic, answered)


def _kafka_python(cluster: Bootstrapped, topic: str, answered: Acknowledge) -> LoadClient:
    """kafka-python with its defaults."""
    return KafkaPython(KafkaProducer(bootstrap_servers=cluster.bootstrap), topic, answered)


WRITERS: Mapping[str, Writer] = {
    "defaults-idempotent": Writer(_librdkafka, True),
    "defaults-plain": Writer(_librdkafka, False),
    "defaults-kafka-python": Writer(_kafka_python, True),
}


def _events(text: str) -> list[dict[str, object]]:
    """The events that a verifiable tool has printed; its last line may be incomplete."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]


def _more_than(count: int) -> Callable[[str], bool]:
    return lambda text: text.count("producer_send_success") > count


def _restart_one_after_another(cluster_work: Work) -> None:
    cluster = cluster_work.cluster
    for node in cluster.nodes:
        cluster.stop(node)
        cluster.start(node)
        cluster.wait_until_whole()
        cluster_work.await_progress()


@pytest.mark.timeout(300)
def test_rolling_restart_without_an_error(
    fresh_cluster: ClusterFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = fresh_cluster()
    work = Work(cluster, WRITERS)
    work.await_progress()
    for member in work.members:
        member.await_values(bool)
    before = {member.library: member.rebalances for member in work.members}
    started = time.monotonic()
    _restart_one_after_another(work)
    seconds = time.monotonic() - started
    total = work.verify()
    for load in work.loads.values():
        assert not load.failed, load.failed[:3]
    for member in work.members:
        # a coordinator moves with its groups: members do not rejoin, except after a lost connection
        assert member.rebalances - before[member.library] <= 2 * len(cluster.nodes)
    if LONG:
        with capsys.disabled():
            print(f"\n{total} records in {seconds:.1f} s, retried by librdkafka: {_retries}", end="")


@pytest.mark.timeout(300)
def test_rolling_restart_under_javas_clients(fresh_cluster: ClusterFactory, java_tools: JavaTools) -> None:
    """Java's verifiable producer and two verifiable consumers of one group, with the clients' defaults."""
    cluster = fresh_cluster()
    create_topic(cluster, "java", 2)
    folder = cluster.directory / "clients"
    folder.mkdir()
    # the tool disables retries; these are the producer's defaults
    (folder / "producer").write_text("retries=2147483647\nenable.idempotence=true\n")
    bootstrap = ("--bootstrap-server", cluster.bootstrap, "--topic", "java")
    group = (*bootstrap, "--group-id", "group", "--session-timeout", "6000", "--verbose")
    consumers = [java_tools.start("kafka-verifiable-consumer", *group) for _ in range(2)]
    producer = java_tools.start(
        "kafka-verifiable-producer", *bootstrap, "--producer.config", str(folder / "producer"),
        *("--acks", "-1", "--throughput", "200"),
    )  # fmt: skip
    producer.wait_for(lambda text: text.count("producer_send_success") > 50)
    for node in cluster.nodes:
        cluster.restart(node)
        cluster.wait_until_whole()
        seen = producer.stdout.count("producer_send_success")
        producer.wait_for(_more_than(seen + 50))
    producer.stop()
    sent = _events(producer.wait().stdout)
    assert not [one for one in sent if one["name"] == "producer_send_error"]
    values = {one["value"] for one in sent if one["name"] == "producer_send_success"}

    def consumed() -> list[dict[str, object]]:
        return [one for each in consumers for one in _events(each.stdout)]

    def all_seen(_text: str) -> bool:
        return values <= {one.get("value") for one in consumed() if one["name"] == "record_data"}

    consumers[0].wait_for(all_seen)
    for consumer in consumers:
        consumer.stop()
        consumer.wait()
    rebalances = sum(one["name"] == "partitions_assigned" for one in consumed())
    assert rebalances <= 2 * (len(cluster.nodes) + 2), "the group rebalanced too often"
