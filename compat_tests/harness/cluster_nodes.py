"""One node of a cluster as a subprocess: this broker, or Apache Kafka from its jars.

The cluster (cluster.py) sets all properties of a node, under Kafka's names; the two kinds differ in the command line,
in formatting, and in the check that a node has started.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path

from compat_tests.harness.apache_broker import ApacheBroker
from compat_tests.harness.barnabas_broker import BarnabasBroker
from compat_tests.harness.java_tools import JavaTools
from compat_tests.harness.kafka_jars import archive_options


class BarnabasNode(BarnabasBroker):
    """This broker with `properties`; `launch` and `wait` are the halves of `start`."""

    def __init__(self, directory: Path, properties: Mapping[str, str], loop: str = "") -> None:
        super().__init__(directory, properties, loop=loop)
        self.launched_at = 0.0

    def command(self) -> list[str]:
        """`barnabas start server.properties`, the file written anew."""
        properties = self.directory / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in self.settings.items()))
        return [*self.command_prefix, sys.executable, "-m", "barnabas.cli", "start", str(properties)]

    def launch(self) -> None:
        """Start the process."""
        self.directory.mkdir(parents=True, exist_ok=True)
        environment = {"BARNABAS_LOOP": self.loop} if self.loop else {}
        self.launched_at = time.monotonic()
        self._spawn(self.command(), environment, self.preexec)

    def wait(self, timeout: float = 60) -> None:
        """Wait for the ready line."""
        ready = self._await_ready_line(timeout)
        self.start_seconds = time.monotonic() - self.launched_at
        self.cluster_id = ready["cluster"]

    def start(self, timeout: float = 60) -> None:
        """Start and wait for the ready line."""
        self.launch()
        self.wait(timeout)


class ApacheNode(ApacheBroker):
    """Apache Kafka with `properties` and a small heap."""

    jvm_options: tuple[str, ...] = (
        *("-Xmx320m", "-Xms96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *archive_options(),
    )
    # Longer than a JVM's pause on a busy machine, and shorter than Kafka's nine seconds.
    times: Mapping[str, str] = {
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "controller.quorum.fetch.timeout.ms": "1500",
        "controller.quorum.election.timeout.ms": "1000",
        "controller.quorum.election.backoff.max.ms": "500",
    }

    def __init__(
        self, directory: Path, properties: Mapping[str, str], cluster_id: str, tools: JavaTools | None
    ) -> None:
        super().__init__(directory, {**self.times, **properties}, tools)
        self.cluster_id = cluster_id
        self.launched_at = 0.0

    def effective_settings(self) -> dict[str, str]:
        """server.properties as a mapping."""
        return dict(self.settings)

    def launch(self) -> None:
        """Format unless the directory is formatted already, and start the process."""
        self.directory.mkdir(parents=True, exist_ok=True)
        properties = self.directory / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in self.settings.items()))
        if not (self.log_dir / "meta.properties").exists():
            self._format(properties)
        self.launched_at = time.monotonic()
        self._spawn(self.java_command(properties), {})

    def wait(self, timeout: float = 90) -> None:
        """Wait until every listener answers."""
        self.wait_until_accepting(timeout)
        self.start_seconds = time.monotonic() - self.launched_at

    def start(self, timeout: float = 90) -> None:
        """Start and wait until every listener answers."""
        self.launch()
        self.wait(timeout)

    def new_cluster_id(self) -> str:
        """The cluster's, which all nodes share."""
        return self.cluster_id


ClusterNode = BarnabasNode | ApacheNode


def properties_of(
    node_id: int,
    roles: str,
    log_dir: Path,
    listeners: Mapping[str, str],
    advertised: Mapping[str, str],
    voters: Mapping[int, str],
    inter_broker: str,
) -> dict[str, str]:
    """What a node of a three-node KRaft cluster has in its server.properties, as Kafka's documentation shows."""
    properties = {
        "process.roles": roles,
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(f"{node}@{address}" for node, address in voters.items()),
        "listeners": ",".join(f"{name}://{address}" for name, address in listeners.items()),
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(log_dir),
        "offsets.topic.num.partitions": "5",
        "offsets.topic.replication.factor": "3",
        "transaction.state.log.replication.factor": "3",
        "transaction.state.log.min.isr": "2",
        "share.coordinator.state.topic.replication.factor": "3",
        "share.coordinator.state.topic.min.isr": "2",
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "500",
    }
    if "broker" in roles:
        properties["advertised.listeners"] = ",".join(
            f"{name}://{address}" for name, address in advertised.items()
        )
        properties["inter.broker.listener.name"] = inter_broker
    return properties
