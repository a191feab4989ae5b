"""A cluster whose brokers log in to each other, and whose clients are users of SCRAM from the first start on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from barnabas.testing.ports import free_port
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.confluent_admin import NewTopic
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import ClusterFactory
from compat_tests.harness.sasl_clients import Login

MECHANISM = "SCRAM-SHA-256"
ALICE = Login(MECHANISM, "alice", "alice-secret")
BROKER = Login(MECHANISM, "broker", "broker-secret")
JAAS = f"{MECHANISM.lower()}.sasl.jaas.config"


@pytest.fixture
def cluster(fresh_cluster: ClusterFactory) -> Iterator[Cluster]:
    made = fresh_cluster(start=False)
    for number, node in made.nodes.items():
        plaintext = made.addresses[number]  # for the harness itself
        listeners = (
            f"PLAINTEXT://{plaintext},CLIENTS://127.0.0.1:{free_port()},INTERNAL://127.0.0.1:{free_port()}"
        )
        node.settings.update(
            {
                "listeners": f"{listeners},CONTROLLER://{made.controllers[number]}",
                "advertised.listeners": listeners,
                "listener.security.protocol.map": (
                    "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT,INTERNAL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
                ),
                "inter.broker.listener.name": "INTERNAL",
                "sasl.enabled.mechanisms": MECHANISM,
                "sasl.mechanism.inter.broker.protocol": MECHANISM,
                f"listener.name.clients.{JAAS}": BROKER.jaas(),
                f"listener.name.internal.{JAAS}": BROKER.jaas(),
                "listener.name.internal.connections.max.reauth.ms": "2000",
                "min.insync.replicas": "2",
                "replica.lag.time.max.ms": "5000",
            }
        )
    first = made.nodes[1]
    first.directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "barnabas.cli", "format"]
    for name, value in first.settings.items():
        command += ["--set", f"{name}={value}"]
    for login in (ALICE, BROKER):
        command += ["--add-scram", f"{MECHANISM}=[name={login.user},password={login.password}]"]
    subprocess.run(command, check=True, timeout=60, cwd=first.directory)
    made.start()
    yield made
    for node in made.nodes.values():
        assert "Traceback" not in node.log_text()
        assert "-secret" not in node.log_text()


@pytest.mark.barnabas_only
def test_brokers_log_in_to_each_other(cluster: Cluster) -> None:
    listeners = [
        dict(each.split("://") for each in node.settings["advertised.listeners"].split(","))
        for node in cluster.nodes.values()
    ]
    where: dict[str, Any] = {
        "bootstrap.servers": ",".join(each["CLIENTS"] for each in listeners),
        **ALICE.librdkafka(),
    }
    admin = AdminClient(where)
    assert admin.create_topics([NewTopic("topic", 3, 3)])["topic"].result(60) is None
    producer = Producer({**where, "transactional.id": "id"})
    producer.init_transactions(60)
    values = iter(range(1000))
    producer.begin_transaction()
    for number in range(300):
        producer.produce("topic", b"%d" % next(values), partition=number % 3)
    producer.commit_transaction(60)

    def replicas_in_sync() -> bool:
        partitions = admin.list_topics(timeout=10).topics["topic"].partitions.values()
        return all(len(each.isrs) == 3 for each in partitions)

    eventually(replicas_in_sync, 60)
    cluster.kill(2)
    cluster.start(2)
    eventually(replicas_in_sync, 60)
    producer.begin_transaction()
    for number in range(100):
        producer.produce("topic", b"%d" % next(values), partition=number % 3)
    producer.commit_transaction(60)
    consumer = Consumer({**where, "group.id": "group", "auto.offset.reset": "earliest"})
    consumer.subscribe(["topic"])
    read: set[int] = set()
    while len(read) < 400:
        message = consumer.poll(60)
        assert message is not None
        if message.error() is None:
            read.add(int(message.value() or b""))
    consumer.close()
    assert read == set(range(400))


@pytest.mark.barnabas_only
def test_a_broker_with_a_wrong_password_replicates_nothing(cluster: Cluster) -> None:
    outsider = cluster.nodes[3]
    cluster.kill(3)
    outsider.settings[f"listener.name.internal.{JAAS}"] = BROKER._replace(password="wrong").jaas()
    cluster.start(3, whole=False)
    admin = AdminClient({"bootstrap.servers": cluster.addresses[1]})
    assert admin.create_topics([NewTopic("topic", 3, 3)])["topic"].result(60) is None
    eventually(lambda: "the login by SASL has failed: Authentication failed" in outsider.log_text(), 60)

    def is_without_it() -> bool:
        partitions = admin.list_topics(timeout=10).topics["topic"].partitions.values()
        return any(sorted(each.isrs) == [1, 2] for each in partitions)

    eventually(is_without_it, 90)
