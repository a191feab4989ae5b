"""Several nodes under one supervisor (barnabas.cores): real processes, real clients."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from barnabas.testing.ports import free_port
from compat_tests.harness.broker import Broker
from compat_tests.harness.core_nodes import consecutive_ports, nodes_of, runs
from compat_tests.harness.eventually import eventually
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.tls_files import TlsFiles
from compat_tests.harness.topics import create_topic

pytestmark = [pytest.mark.barnabas_only, pytest.mark.sockets]

NODE_IDS = (1, 2)
PARTITIONS = 8


def settings(**more: str) -> dict[str, str]:
    """Of two nodes. `_` for `.` in names."""
    return {
        "barnabas.cores": "2",
        "listeners": f"PLAINTEXT://127.0.0.1:{consecutive_ports(len(NODE_IDS))}",
        "offsets.topic.num.partitions": "4",
        **{name.replace("_", "."): text for name, text in more.items()},
    }


def bootstrap(broker: Broker) -> list[str]:
    return [f"127.0.0.1:{broker.port + index}" for index in range(len(NODE_IDS))]


def leaders(broker: Broker, topic: str) -> Counter[int]:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap(broker))
    try:
        (description,) = admin.describe_topics([topic])
    finally:
        admin.close()
    return Counter(partition["leader_id"] for partition in description["partitions"])


def produce(broker: Broker, topic: str, values: range) -> None:
    """Acknowledged when it returns."""
    producer = KafkaProducer(bootstrap_servers=bootstrap(broker), acks="all")
    sent = [producer.send(topic, b"%d" % value, partition=value % PARTITIONS) for value in values]
    for future in sent:
        future.get(60)
    producer.close()


def consume(broker: Broker, topic: str, count: int) -> list[int]:
    """The values, sorted, when there are so many."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap(broker), auto_offset_reset="earliest", group_id=None)
    consumer.assign([TopicPartition(topic, partition) for partition in range(PARTITIONS)])
    found: list[int] = []

    def all_there() -> bool:
        for records in consumer.poll(100).values():
            found.extend(int(record.value) for record in records)
        return len(found) >= count

    eventually(all_there, message=lambda: f"{len(found)} of {count}")
    consumer.close()
    return sorted(found)


def probe(at: str, path: str) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(f"http://{at}{path}", timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_clients_use_both_nodes_and_both_are_measured(fresh_broker: BrokerFactory) -> None:
    at = f"127.0.0.1:{free_port()}"
    broker = fresh_broker(settings(barnabas_metrics_listener=at))
    create_topic(broker.bootstrap, "topic", PARTITIONS)
    eventually(lambda: leaders(broker, "topic") == {1: PARTITIONS // 2, 2: PARTITIONS // 2})
    produce(broker, "topic", range(1000))
    assert consume(broker, "topic", 1000) == [*range(1000)]
    with urllib.request.urlopen(f"http://{at}/metrics", timeout=30) as answer:
        families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
    states = {
        sample.labels["node"]: sample.value
        for sample in families["kafka_server_kafkaserver_brokerstate"].samples
    }
    assert states == {"1": 3, "2": 3}
    assert {sample.value for sample in families["barnabas_cores_node_up"].samples} == {1}
    assert probe(at, "/livez") == (200, {"status": "ok"})
    assert probe(at, "/readyz") == (200, {"status": "ok", "reasons": []})
    os.kill(nodes_of(broker.pid)[2], signal.SIGSTOP)
    try:
        code, answer_text = probe(at, "/readyz")
        assert (code, answer_text["reasons"]) == (503, ["node 2: it has not answered within 3 s"])
    finally:
        os.kill(nodes_of(broker.pid)[2], signal.SIGCONT)


def test_tls_for_clients_and_between_the_nodes(fresh_broker: BrokerFactory, tmp_path: Path) -> None:
    files = TlsFiles(tmp_path)
    given = settings(inter_broker_listener_name="SSL", min_insync_replicas="2")
    tls = consecutive_ports(len(NODE_IDS))
    given["listeners"] += f",SSL://127.0.0.1:{tls}"
    fresh_broker({**given, **files.properties()})
    where = {"bootstrap_servers": f"127.0.0.1:{tls}", **files.kafka_python()}
    with closing(KafkaAdminClient(**where)) as admin:
        admin.create_topics({"topic": {"num_partitions": PARTITIONS, "replication_factor": 2}})
    with closing(KafkaProducer(**where, acks="all")) as producer:
        sent = [producer.send("topic", b"%d" % number, partition=number % PARTITIONS) for number in range(80)]
        assert [future.get(60).offset for future in sent] == [number // PARTITIONS for number in range(80)]
    with closing(KafkaConsumer("topic", **where, auto_offset_reset="earliest")) as consumer:
        assert sorted(int(next(consumer).value) for _ in range(80)) == [*range(80)]


@pytest.mark.parametrize("killed", NODE_IDS)
def test_a_killed_node_is_started_again(fresh_broker: BrokerFactory, killed: int) -> None:
    broker = fresh_broker(settings())
    create_topic(broker.bootstrap, "topic", PARTITIONS)
    produce(broker, "topic", range(800))
    before = nodes_of(broker.pid)
    os.kill(before[killed], signal.SIGKILL)
    eventually(lambda: nodes_of(broker.pid).get(killed, before[killed]) != before[killed])
    produce(broker, "topic", range(800, 1600))
    assert consume(broker, "topic", 1600) == [*range(1600)]
    assert f"node {killed} was ended by SIGKILL; it is started again in 0.2 s" in broker.log_text()
    other = 3 - killed
    assert nodes_of(broker.pid)[other] == before[other]


def test_a_clean_stop_and_the_same_nodes_again(fresh_broker: BrokerFactory) -> None:
    broker = fresh_broker(settings(barnabas_log_format="json"))
    create_topic(broker.bootstrap, "topic", PARTITIONS)
    produce(broker, "topic", range(80))
    before = [*nodes_of(broker.pid).values()]
    assert broker.stop() == 0
    assert not any(map(runs, before))
    broker.start()
    assert consume(broker, "topic", 80) == [*range(80)]
    eventually(lambda: leaders(broker, "topic") == {1: PARTITIONS // 2, 2: PARTITIONS // 2})
    lines = [json.loads(line) for line in broker.log_text().splitlines()]
    assert {line.get("node") for line in lines} == {None, 1, 2}
    assert not any("not stopped cleanly" in line["message"] for line in lines)


@pytest.mark.parametrize("nodes", [0, 1, 2])
def test_a_stop_while_the_nodes_start_is_clean(tmp_path: Path, nodes: int) -> None:
    """Also where so many of them have a process, which the signal ends before they can handle it."""
    given = {**settings(), "log.dirs": str(tmp_path)}
    arguments = [part for name, value in given.items() for part in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "barnabas.cli", "start", *arguments]
    output = tmp_path / "log"
    with output.open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        eventually(lambda: "starting nodes" in output.read_text() and len(nodes_of(process.pid)) >= nodes)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert "ERROR" not in output.read_text()


def test_a_second_signal_stops_at_once(fresh_broker: BrokerFactory) -> None:
    broker = fresh_broker(settings())
    first, second = (nodes_of(broker.pid)[each] for each in NODE_IDS)
    assert broker.process is not None
    process = broker.process
    os.kill(second, signal.SIGSTOP)  # so that a controlled stop would wait
    process.send_signal(signal.SIGTERM)
    eventually(lambda: "INFO barnabas.cores: stopping" in broker.log_text())
    process.send_signal(signal.SIGINT)
    eventually(lambda: not runs(first))
    os.kill(second, signal.SIGCONT)
    assert process.wait(60) == 0


def test_the_nodes_end_with_a_killed_supervisor(fresh_broker: BrokerFactory) -> None:
    broker = fresh_broker(settings())
    nodes = [*nodes_of(broker.pid).values()]
    assert len(nodes) == len(NODE_IDS)
    broker.kill()
    eventually(lambda: not any(map(runs, nodes)))


def test_two_machines(fresh_broker: BrokerFactory) -> None:
    """As a larger cluster: the named voters are controllers, and replicas of one partition are never on one machine."""
    first, second = (settings(broker_rack=rack) for rack in "ab")
    ports = free_port(), free_port()
    voters = f"1@127.0.0.1:{ports[0]},11@127.0.0.1:{ports[1]}"
    brokers = []
    for node_id, port, given in ((1, ports[0], first), (11, ports[1], second)):
        given["node.id"], given["controller.quorum.voters"] = str(node_id), voters
        given["listeners"] += f",CONTROLLER://127.0.0.1:{port}"
        brokers.append(fresh_broker(given, start=False))
    with ThreadPoolExecutor() as threads:  # neither is ready before the other has started
        list(threads.map(lambda broker: broker.start(), brokers))
    admin = KafkaAdminClient(bootstrap_servers=bootstrap(brokers[0]))
    admin.create_topics({"topic": {"num_partitions": PARTITIONS, "replication_factor": 2}})
    # The broker that is asked may not know the topic yet.
    partitions = eventually(lambda: admin.describe_topics(["topic"])[0]["partitions"])
    admin.close()
    replicas = [{*partition["replica_nodes"]} for partition in partitions]
    assert all(len(each & {1, 2}) == len(each & {11, 12}) == 1 for each in replicas), replicas
    assert set().union(*replicas) == {1, 2, 11, 12}
    with ThreadPoolExecutor() as threads:
        assert list(threads.map(lambda broker: broker.stop(), brokers)) == [0, 0]


def refusal(directory: Path, **properties: str) -> str:
    """The line with which a start fails."""
    command = [sys.executable, "-m", "barnabas.cli", "start", "--set", f"log.dirs={directory}"]
    for name, text in properties.items():
        command += ["--set", f"{name.replace('_', '.')}={text}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    return line


def test_what_cannot_start_is_said_once(tmp_path: Path) -> None:
    assert "num.partitions" in refusal(tmp_path, barnabas_cores="2", num_partitions="many")
    port = consecutive_ports(len(NODE_IDS))
    with socket.create_server(("127.0.0.1", port + 1)):
        line = refusal(tmp_path, barnabas_cores="2", listeners=f"PLAINTEXT://127.0.0.1:{port}")
    assert f"node 2 cannot listen on 127.0.0.1:{port + 1} (PLAINTEXT): Address already in use" in line


def test_fewer_nodes_than_there_are_folders(fresh_broker: BrokerFactory) -> None:
    broker = fresh_broker(settings())
    directory = broker.directory / "data"
    assert broker.stop() == 0
    assert "has the data of nodes 1, 2, which barnabas.cores=1 (one node) does not start" in refusal(
        directory
    )


def test_a_node_that_cannot_start_ends_the_others(fresh_broker: BrokerFactory, tmp_path: Path) -> None:
    (tmp_path / "data/node-2").mkdir(parents=True)
    (tmp_path / "data/node-2/meta.properties").write_text("version=1\nnode.id=9\ncluster.id=other\n")
    broker = fresh_broker(settings(log_dirs=str(tmp_path / "data")), start=False)
    with pytest.raises(AssertionError, match=r"ended with 1 before it was ready[\s\S]*node=2 barnabas: "):
        broker.start()
