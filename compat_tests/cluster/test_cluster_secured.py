"""Clusters without plaintext: every link is authenticated and encrypted; and a cluster that becomes one while it serves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from barnabas.testing.ports import free_port
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.confluent_admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import ClusterFactory
from compat_tests.harness.steady_traffic import SteadyConsumer, SteadyProducer
from compat_tests.harness.tls_files import TlsFiles

pytestmark = pytest.mark.barnabas_only

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule required"
BROKER = 'username="broker" password="broker-secret" user_broker="broker-secret"'
TOPIC = "orders"


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    (tmp_path / "secret").write_text("a secret of this cluster, which is long enough\n")
    (tmp_path / "secret").chmod(0o600)
    return TlsFiles(tmp_path)


def put_listeners(
    cluster: Cluster, number: int, listeners: Mapping[str, str], settings: Mapping[str, str]
) -> None:
    """Give a node listeners by name, and further settings; they count from its next start."""
    shown = ",".join(f"{name}://{address}" for name, address in listeners.items())
    node = cluster.nodes[number]
    node.settings.update(settings)
    node.settings["listeners"] = f"{shown},CONTROLLER://{cluster.controllers[number]}"
    node.settings["advertised.listeners"] = shown
    node.listeners = dict(listeners)


def scram_client(bootstrap: str, files: TlsFiles, user: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(files.anchors),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": f"{user}-secret",
    }


def put_users(admin: AdminClient, *users: str) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    wanted = [UserScramCredentialUpsertion(user, info, f"{user}-secret".encode()) for user in users]
    for altered in admin.alter_user_scram_credentials(wanted).values():
        altered.result(60)


def allow(admin: AdminClient, user: str, kind: ResourceType, name: str) -> None:
    acl = AclBinding(
        kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", AclOperation.ALL, AclPermissionType.ALLOW
    )  # fmt: skip
    for created in admin.create_acls([acl]).values():
        created.result(60)


def leader_of(admin: AdminClient) -> int:
    return int(admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions[0].leader)


def await_in_sync(admin: AdminClient) -> None:
    def are_in_sync() -> bool:
        topic = admin.list_topics(TOPIC, timeout=10).topics[TOPIC]
        return len(topic.partitions) == 3 and all(len(each.isrs) == 3 for each in topic.partitions.values())

    eventually(are_in_sync, 120, retry_on=(KafkaException,))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("between_brokers", ["SSL", "SASL_SSL"])
def test_no_acknowledged_record_is_lost_when_nodes_die(
    fresh_cluster: ClusterFactory, files: TlsFiles, between_brokers: str
) -> None:
    """Clients log in by SCRAM over TLS, brokers and controllers show each other certificates, and brokers log in, too."""
    cluster = fresh_cluster(start=False)
    clients: dict[int, str] = {}
    brokers: dict[int, str] = {}
    for number in cluster.nodes:
        clients[number], brokers[number] = (f"127.0.0.1:{free_port()}" for _ in range(2))
        settings = {
            **files.properties(),
            "listener.name.brokers.ssl.client.auth": "required",
            "listener.name.controller.ssl.client.auth": "required",
            "listener.security.protocol.map": f"CLIENTS:SASL_SSL,BROKERS:{between_brokers},CONTROLLER:SSL",
            "inter.broker.listener.name": "BROKERS",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.clients.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE};",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin;User:broker;User:CN=broker",
            "barnabas.controller.secret.file": str(files.directory / "secret"),
        }
        if between_brokers == "SASL_SSL":
            settings["sasl.mechanism.inter.broker.protocol"] = "PLAIN"
            settings["listener.name.brokers.sasl.enabled.mechanisms"] = "PLAIN"
            settings["listener.name.brokers.plain.sasl.jaas.config"] = f"{PLAIN_MODULE} {BROKER};"
        put_listeners(cluster, number, {"CLIENTS": clients[number], "BROKERS": brokers[number]}, settings)
    cluster.start(whole=False)
    as_broker: dict[str, Any] = {
        **files.confluent("broker"),
        "bootstrap.servers": ",".join(brokers.values()),
        "security.protocol": between_brokers,
    }
    if between_brokers == "SASL_SSL":
        as_broker |= {
            "sasl.mechanism": "PLAIN",
            "sasl.username": "broker",
            "sasl.password": "broker-secret",
        }
    put_users(AdminClient(as_broker), "admin", "alice", "bob")
    bootstrap = ",".join(clients.values())
    admin = AdminClient(scram_client(bootstrap, files, "admin"))
    admin.create_topics([NewTopic(TOPIC, 3, 3)])[TOPIC].result(60)
    allow(admin, "alice", ResourceType.TOPIC, TOPIC)
    allow(admin, "alice", ResourceType.GROUP, "shop")
    alice = scram_client(bootstrap, files, "alice")
    producer, consumer = SteadyProducer(alice, TOPIC), SteadyConsumer(alice, TOPIC, "shop")
    for _ in range(2):
        producer.await_progress()
        await_in_sync(admin)
        victim = leader_of(admin)
        cluster.kill(victim)
        producer.await_progress()
        consumer.await_progress()
        cluster.start(victim, whole=False)
    await_in_sync(admin)
    producer.stop()
    consumer.await_all(producer.acknowledged)
    consumer.stop()
    refused = AdminClient(scram_client(bootstrap, files, "bob")).list_topics(TOPIC, timeout=30).topics[TOPIC]
    assert "authorization" in str(refused.error).lower()
    for node in cluster.nodes.values():
        log = node.log_text()
        assert "Traceback" not in log
        assert "-secret" not in log


@pytest.mark.timeout(300)
def test_a_cluster_becomes_a_secured_one_while_it_serves(
    fresh_cluster: ClusterFactory, files: TlsFiles
) -> None:
    """Node by node: add listeners with TLS and SASL, have brokers use theirs, then remove the plaintext one. Clients change over
    in between."""
    cluster = fresh_cluster(start=False)
    clients: dict[int, str] = {}
    brokers: dict[int, str] = {}
    plaintext = dict(cluster.addresses)
    for number in cluster.nodes:
        clients[number], brokers[number] = (f"127.0.0.1:{free_port()}" for _ in range(2))
        secret = {"barnabas.controller.secret.file": str(files.directory / "secret")}
        put_listeners(cluster, number, {"PLAINTEXT": plaintext[number]}, secret)
    cluster.start()
    open_client: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap}
    admin = AdminClient(open_client)
    admin.create_topics([NewTopic(TOPIC, 3, 3)])[TOPIC].result(60)
    producer, consumer = SteadyProducer(open_client, TOPIC), SteadyConsumer(open_client, TOPIC, "shop")

    def roll(listeners: Mapping[int, Mapping[str, str]], settings: Mapping[str, str]) -> None:
        for number in cluster.nodes:
            producer.await_progress()
            put_listeners(cluster, number, listeners[number], settings)
            cluster.stop(number)
            cluster.start(number, whole=False)
            await_in_sync(admin)
        producer.await_progress()
        consumer.await_progress()

    secured = {number: {"CLIENTS": clients[number], "BROKERS": brokers[number]} for number in cluster.nodes}
    both = {number: {"PLAINTEXT": plaintext[number], **secured[number]} for number in cluster.nodes}
    roll(
        both,
        {
            **files.properties(),
            "listener.name.brokers.ssl.client.auth": "required",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_SSL,BROKERS:SSL,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.clients.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE};",
        },
    )
    roll(both, {"inter.broker.listener.name": "BROKERS"})
    put_users(admin, "alice")
    alice = scram_client(",".join(clients.values()), files, "alice")
    admin = AdminClient(alice)
    earlier = producer
    producer = SteadyProducer(alice, TOPIC, first=10_000_000)
    earlier.stop()
    consumer.await_all(earlier.acknowledged)
    consumer.stop()
    before = consumer.read
    consumer = SteadyConsumer(alice, TOPIC, "shop")
    roll(secured, {})
    producer.stop()
    consumer.await_all(producer.acknowledged - before)
    consumer.stop()
    assert len(earlier.acknowledged) > 300
    assert len(producer.acknowledged) > 150
    for number, node in cluster.nodes.items():
        assert "Traceback" not in node.log_text()
        with pytest.raises(KafkaException):
            AdminClient({"bootstrap.servers": plaintext[number], "log_level": 0}).list_topics(timeout=1)
