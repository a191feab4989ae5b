"""The image as tools start it: the commands and variables of Testcontainers' modules, under chroot in place of a container.

The ports are free ones of this machine, in place of a container's own. `make test-image` makes the root file system.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient

from barnabas.testing.ports import free_port
from compat_tests.harness.eventually import eventually
from compat_tests.image.root import IMAGE, USER

pytestmark = [pytest.mark.long, pytest.mark.barnabas_only]

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
CHROOT = shutil.which("chroot") or "chroot"
PATH = "/usr/local/bin:/usr/bin:/bin"


class Container:
    """A process tree under chroot, with its own copy of what an image's user may change."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.port, self.internal, self.controller = free_port(), free_port(), free_port()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, command: list[str], environment: Mapping[str, str]) -> None:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [CHROOT, f"--userspec={USER}", str(IMAGE), *command],
                env={"PATH": PATH, "HOME": "/var/lib/kafka", "PWD": "/", **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """As `docker exec`."""
        return subprocess.run(
            [CHROOT, f"--userspec={USER}", str(IMAGE), *command],
            env={"PATH": PATH, "HOME": "/var/lib/kafka"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def log(self) -> str:
        return self._log.read_text()

    def wait_for(self, line: str) -> None:
        process = self._process
        assert process is not None

        def said() -> bool:
            assert process.poll() is None, self.log()
            return line in self.log()

        eventually(said, message=self.log)

    def stop(self) -> None:
        """As `docker stop`: SIGTERM to the first process."""
        process, self._process = self._process, None
        assert process is not None
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, self.log()

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    if not IMAGE.exists():
        pytest.fail("make test-image makes the root file system first")
    for folder in ("var/lib/kafka/data", "tmp"):
        subprocess.run(["find", str(IMAGE / folder), "-mindepth", "1", "-delete"], check=True)
    made = Container(tmp_path / "log")
    yield made
    made.kill()


def write_and_read(bootstrap: str) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    producer.send("t", b"x").get(30)
    producer.close()
    consumer = KafkaConsumer("t", bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    assert next(iter(consumer)).value == b"x"
    consumer.close()


def cluster_id(bootstrap: str) -> str:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        return str(admin.describe_cluster()["cluster_id"])
    finally:
        admin.close()


def of_java(container: Container) -> dict[str, str]:
    """The variables of the modules for Java, .NET and Rust."""
    return {
        "CLUSTER_ID": CLUSTER_ID,
        "KAFKA_LISTENERS": f"PLAINTEXT://0.0.0.0:{container.port},BROKER://0.0.0.0:{container.internal},"
        f"CONTROLLER://0.0.0.0:{container.controller}",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_NODE_ID": "1",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": f"1@localhost:{container.controller}",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_LOG_FLUSH_INTERVAL_MESSAGES": str(2**63 - 1),
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    }


def put_script(text: str, name: str) -> None:
    """Into the container that runs, as the modules do; it appears whole."""
    script = IMAGE / "tmp" / name
    made = script.with_suffix(".new")
    made.write_text(text)
    made.chmod(0o777)
    made.rename(script)


def waiting(script: str, run: str) -> list[str]:
    return ["sh", "-c", f"while [ ! -f {script} ]; do sleep 0.1; done; {run}{script}"]


def advertised(container: Container) -> str:
    return (
        f"PLAINTEXT://{container.bootstrap},BROKER://{socket.gethostbyname('localhost')}:{container.internal}"
    )


@pytest.mark.parametrize(
    "line", ["Transitioning from RECOVERY to RUNNING", "Kafka Server started"], ids=["java", "rust"]
)
def test_testcontainers_for_java_and_rust(container: Container, line: str) -> None:
    container.start(waiting("/tmp/testcontainers_start.sh", ""), of_java(container))
    put_script(
        f"#!/bin/bash\nexport KAFKA_ADVERTISED_LISTENERS={advertised(container)}\n/etc/kafka/docker/run \n",
        "testcontainers_start.sh",
    )
    container.wait_for(line)
    write_and_read(container.bootstrap)
    assert cluster_id(container.bootstrap) == CLUSTER_ID


@pytest.mark.parametrize("is_kraft", [True, False], ids=["kraft", "zookeeper"])
def test_testcontainers_for_python(container: Container, is_kraft: bool) -> None:
    environment = {
        "KAFKA_LISTENERS": f"PLAINTEXT://0.0.0.0:{container.port},BROKER://0.0.0.0:{container.internal}",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
        "KAFKA_BROKER_ID": "1",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
        "KAFKA_LOG_FLUSH_INTERVAL_MESSAGES": "10000000",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    }
    configure = IMAGE / "etc/confluent/docker/configure"
    before = configure.read_text()
    if is_kraft:
        environment |= {
            "CLUSTER_ID": CLUSTER_ID,
            "KAFKA_NODE_ID": "1",
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "KAFKA_LISTENERS": f"{environment['KAFKA_LISTENERS']},CONTROLLER://0.0.0.0:{container.controller}",
            "KAFKA_PROCESS_ROLES": "broker,controller",
            "KAFKA_CONTROLLER_QUORUM_VOTERS": f"1@localhost:{container.controller}",
            "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        }
        boot = (
            "sed -i '/KAFKA_ZOOKEEPER_CONNECT/d' /etc/confluent/docker/configure\n"
            f"echo 'kafka-storage format --ignore-formatted -t {CLUSTER_ID} -c /etc/kafka/kafka.properties' "
            ">> /etc/confluent/docker/configure\n"
        )
    else:
        boot = (
            "cd /tmp\necho 'clientPort=2181' > zookeeper.properties\n"
            "zookeeper-server-start zookeeper.properties &\nexport KAFKA_ZOOKEEPER_CONNECT='localhost:2181'\n"
        )
    try:
        container.start(waiting("/tmp/tc-start.sh", "sh "), environment)
        put_script(
            f"#!/bin/bash\n{boot}export KAFKA_ADVERTISED_LISTENERS={advertised(container)}\n"
            ". /etc/confluent/docker/bash-config\n/etc/confluent/docker/configure\n/etc/confluent/docker/launch\n",
            "tc-start.sh",
        )
        container.wait_for("Kafka Server started" if is_kraft else "[KafkaServer id=1] started")
        write_and_read(container.bootstrap)
        if is_kraft:
            assert cluster_id(container.bootstrap) == CLUSTER_ID
    finally:
        configure.write_text(before)


def test_testcontainers_for_go_and_node(container: Container) -> None:
    configure, ensure = (IMAGE / "etc/confluent/docker" / name for name in ("configure", "ensure"))
    before = configure.read_text(), ensure.read_text()
    try:
        container.start(waiting("/tmp/testcontainers_start.sh", "bash "), of_java(container))
        put_script(
            "#!/bin/bash\nsource /etc/confluent/docker/bash-config\n"
            f"export KAFKA_ADVERTISED_LISTENERS={advertised(container)}\n"
            "sed -i '/KAFKA_ZOOKEEPER_CONNECT/d' /etc/confluent/docker/configure\n"
            'echo \'kafka-storage format --ignore-formatted -t "$(kafka-storage random-uuid)" '
            "-c /etc/kafka/kafka.properties' >> /etc/confluent/docker/configure\n"
            "echo '' > /etc/confluent/docker/ensure\n/etc/confluent/docker/run\n",
            "testcontainers_start.sh",
        )
        container.wait_for("Transitioning from RECOVERY to RUNNING")
        write_and_read(container.bootstrap)
    finally:
        configure.write_text(before[0])
        ensure.write_text(before[1])


def test_a_compose_file(container: Container) -> None:
    """The image's own command; health checks and set-up steps as they stand in compose files; `docker stop`."""
    at = f"localhost:{container.port}"
    container.start(
        ["/etc/kafka/docker/run"],
        {
            "KAFKA_LISTENERS": f"PLAINTEXT://0.0.0.0:{container.port}",
            "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://{at}",
            "KAFKA_NUM_PARTITIONS": "3",
        },
    )
    container.wait_for("ready PLAINTEXT://")
    assert container.run("barnabas", "health", "--bootstrap-server", at).returncode == 0
    topics = ("/opt/kafka/bin/kafka-topics.sh", "--bootstrap-server", at)
    assert container.run(*topics, "--list").returncode == 0
    create = (*topics, "--create", "--if-not-exists", "--topic", "orders")
    for _ in range(2):
        created = container.run(*create, "--partitions", "2", "--replication-factor", "1")
        assert created.returncode == 0, created.stderr
    assert container.run("kafka-topics", "--bootstrap-server", at, "--list").stdout.split() == ["orders"]
    write_and_read(container.bootstrap)
    container.stop()
    assert (IMAGE / "var/lib/kafka/data/t-0").exists()
