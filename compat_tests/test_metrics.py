"""Metrics of a single broker and of a cluster, read as Prometheus reads them."""

from __future__ import annotations

import re

import pytest
from confluent_kafka import Producer

from barnabas.testing.ports import free_port
from compat_tests.harness.broker import BrokerFailed
from compat_tests.harness.cluster_work import create_topic as create_replicated
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import BrokerFactory, ClusterFactory
from compat_tests.harness.metrics import LISTENER, metrics
from compat_tests.harness.raw import RawConnection
from compat_tests.harness.topics import create_topic
from compat_tests.test_sasl import SETTINGS, authenticate, handshake, plain

pytestmark = pytest.mark.barnabas_only

MANAGER = "kafka_server_replicamanager"


def test_a_broker(fresh_broker: BrokerFactory) -> None:
    broker = fresh_broker({LISTENER: "127.0.0.1:0"})
    create_topic(broker.bootstrap, "topic", 2)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for _ in range(7):
        producer.produce("topic", b"x" * 100, partition=1)
    assert producer.flush(30) == 0
    found = metrics(broker)
    assert found["kafka_log_log_logendoffset", "topic-0"] == 0
    assert found["kafka_log_log_logendoffset", "topic-1"] == 7
    assert found["kafka_log_log_size", "topic-1"] > 700
    assert found[f"{MANAGER}_partitioncount", ""] == found[f"{MANAGER}_leadercount", ""] == 2
    assert found[f"{MANAGER}_underreplicatedpartitions", ""] == 0
    assert (
        found[f"{MANAGER}_produceridcount", ""]
        == found[f"{MANAGER}_partitionswithlatetransactionscount", ""]
        == 0
    )
    assert found["kafka_controller_kafkacontroller_activecontrollercount", ""] == 1
    assert metrics(broker)["process_cpu_seconds_total", ""] >= found["process_cpu_seconds_total", ""] > 0
    assert found["barnabas_wall_clock_trusted", ""] == 1
    assert found["barnabas_wall_clock_ahead_seconds", ""] == 0
    assert found["barnabas_event_loop_stalls_total", ""] >= 0
    for name in ("barnabas_event_loop_longest_stall_seconds", "barnabas_event_loop_longest_busy_seconds"):
        eventually(lambda name=name: metrics(broker)[name, ""] > 0)  # set with the first tick
    assert found["process_open_fds", ""] > 5
    assert found["kafka_server_transaction_coordinator_metrics_partition_load_time_max", ""] == 0
    channel = "kafka_coordinator_transaction_transactionmarkerchannelmanager"
    assert found[f"{channel}_unknowndestinationqueuesize", ""] == 0
    assert found[f"{channel}_logappendretryqueuesize", ""] == 0
    transactional = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "id"})
    transactional.init_transactions(30)
    for kind in ("max", "avg"):
        name = f"kafka_server_transaction_coordinator_metrics_partition_load_time_{kind}"
        assert metrics(broker)[name, ""] > 0
    assert metrics(broker)["kafka_server_group_coordinator_metrics_partition_load_time_max", ""] == 0
    assert not [name for name, _ in found if "nats" in name]


def test_metrics_are_off_by_default_and_errors_name_the_listener(fresh_broker: BrokerFactory) -> None:
    broker = fresh_broker()
    assert "metrics" not in broker.log_text()
    taken = fresh_broker(start=False)
    taken.settings[LISTENER] = f"127.0.0.1:{broker.port}"
    with pytest.raises(BrokerFailed, match=rf"cannot listen on .*: .*in use.* {re.escape(LISTENER)}"):
        taken.start()
    taken.settings[LISTENER] = "9404"
    with pytest.raises(BrokerFailed, match=rf"{re.escape(LISTENER)}: it must look like HOST:PORT"):
        taken.start()
    taken.settings[LISTENER] = f"127.0.0.1:{free_port()}"
    taken.start()
    assert metrics(taken)


def test_a_cluster(fresh_cluster: ClusterFactory) -> None:
    cluster = fresh_cluster(settings={LISTENER: "127.0.0.1:0"})
    create_replicated(cluster, "topic", 3, configs={"min.insync.replicas": "3"})
    cluster.wait_until_whole()

    def total(name: str) -> float:
        return sum(metrics(cluster.nodes[node])[name, ""] for node in cluster.live)

    eventually(lambda: total("kafka_controller_kafkacontroller_activecontrollercount") == 1)
    eventually(lambda: total(f"{MANAGER}_leadercount") == 3)
    eventually(lambda: total(f"{MANAGER}_partitioncount") == 9)
    eventually(lambda: total(f"{MANAGER}_underreplicatedpartitions") == 0)
    eventually(lambda: total("barnabas_wall_clock_trusted") == 3)
    for name in ("incoming_byte", "outgoing_byte", "request", "response"):
        assert total(f"kafka_server_raftchannelmetrics_{name}_total") > 0
    cluster.kill(cluster.leader("topic", 0))
    eventually(lambda: total(f"{MANAGER}_leadercount") == 3)
    eventually(lambda: total(f"{MANAGER}_underminisrpartitioncount") == 3)
    eventually(lambda: total(f"{MANAGER}_underreplicatedpartitions") == 3)
    eventually(lambda: total("kafka_controller_kafkacontroller_activecontrollercount") == 1)


def test_logins_and_decisions(fresh_broker: BrokerFactory) -> None:
    broker = fresh_broker(
        {
            **SETTINGS,
            LISTENER: "127.0.0.1:0",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin",
        }
    )
    for password in ("alice-secret", "wrong", "wrong"):
        with RawConnection(broker.bootstrap) as connection:
            connection.ask(handshake("PLAIN"))
            connection.ask(authenticate(plain(password=password)))
    found = metrics(broker)
    for name, value in (("successful", 1), ("failed", 2)):
        metric = f"kafka_server_socket_server_metrics_{name}_authentication_total"
        assert found[metric, "SASL_PLAINTEXT"] == value
    assert found["kafka_server_plugins_acls_total_count", ""] == 0
    assert found["kafka_server_plugins_authorization_request_total", ""] >= 0
