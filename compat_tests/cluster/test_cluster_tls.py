"""A cluster whose nodes speak TLS with each other on all listeners, and show each other certificates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from barnabas.testing.ports import free_port
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.cluster_nodes import ClusterNode
from compat_tests.harness.confluent_admin import NewTopic
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import ClusterFactory
from compat_tests.harness.tls_files import TlsFiles


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return TlsFiles(tmp_path)


@pytest.fixture
def cluster(fresh_cluster: ClusterFactory, files: TlsFiles) -> Iterator[Cluster]:
    made = fresh_cluster(start=False)
    for number, node in made.nodes.items():
        plaintext = made.addresses[number]  # for the harness itself
        listeners = (
            f"PLAINTEXT://{plaintext},SSL://127.0.0.1:{free_port()},INTERNAL://127.0.0.1:{free_port()}"
        )
        node.settings.update(
            {
                **files.properties("required"),
                "listeners": f"{listeners},CONTROLLER://{made.controllers[number]}",
                "advertised.listeners": listeners,
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,INTERNAL:SSL,CONTROLLER:SSL",
                "inter.broker.listener.name": "INTERNAL",
                "listener.name.ssl.ssl.client.auth": "none",
                "min.insync.replicas": "2",
            }
        )
    made.start()
    yield made
    for node in made.nodes.values():
        assert "Traceback" not in node.log_text()


def listeners_of(node: ClusterNode) -> dict[str, str]:
    return dict(each.split("://") for each in node.settings["advertised.listeners"].split(","))


@pytest.mark.barnabas_only
def test_replication_over_tls(cluster: Cluster, files: TlsFiles) -> None:
    addresses = [listeners_of(node)["SSL"] for node in cluster.nodes.values()]
    where: dict[str, Any] = {"bootstrap.servers": ",".join(addresses), **files.confluent()}
    admin = AdminClient(where)
    created = admin.create_topics([NewTopic("topic", 3, 3)])
    assert created["topic"].result(60) is None
    producer = Producer({**where, "enable.idempotence": True})
    for number in range(300):
        producer.produce("topic", b"%d" % number, partition=number % 3)
    assert producer.flush(60) == 0

    def replicas_in_sync() -> bool:
        partitions = admin.list_topics(timeout=10).topics["topic"].partitions.values()
        return all(len(each.isrs) == 3 for each in partitions)

    eventually(replicas_in_sync, 60)
    victim = admin.list_topics(timeout=10).topics["topic"].partitions[0].leader
    cluster.kill(victim)
    for number in range(300, 400):
        producer.produce("topic", b"%d" % number, partition=number % 3)
    assert producer.flush(90) == 0
    consumer = Consumer({**where, "group.id": "group", "auto.offset.reset": "earliest"})
    consumer.subscribe(["topic"])
    values: set[int] = set()
    while len(values) < 400:
        message = consumer.poll(60)
        assert message is not None
        if message.error() is None:
            values.add(int(message.value() or b""))
    consumer.close()
    assert values == set(range(400))
