"""Apache Kafka as a subprocess: one combined KRaft node from the fetched jars.

Its settings equal this broker's defaults, so that one suite fits both: internal topics with replication factor 1
and no initial rebalance delay.
"""

from __future__ import annotations

import base64
import subprocess
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from barnabas.testing.ports import free_port
from compat_tests.harness.broker import Broker, BrokerFailed
from compat_tests.harness.java_tools import JavaTools, run_as_process
from compat_tests.harness.kafka_jars import archive_options, ensure_jars, java_executable

LOG_OPTION = f"-Dlog4j2.configurationFile={Path(__file__).parent / 'java' / 'log4j2-broker.properties'}"


def local_tiered_storage(folder: Path) -> dict[str, str]:
    """Settings of the remote storage that Kafka's own tests use: objects are files in `folder`. Of one broker alone."""
    return {
        "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
        "rsm.config.dir": str(folder),
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "rlmm.config.remote.log.metadata.topic.min.isr": "1",
    }


class ApacheBroker(Broker):
    """Apache Kafka; with `tools` it formats the storage in their JVM, which saves two seconds."""

    kind = "apache"
    can_restart = True
    # a small JVM that starts quickly, for tests; benchmarks replace these options
    jvm_options: tuple[str, ...] = (
        *("-Xmx768m", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *archive_options(),
    )

    format_arguments: tuple[str, ...] = ()  # the quorum of kafka-storage; empty: this node is its one voter
    release_version = ""  # such as 3.9-IV0: the metadata.version to format with

    def __init__(
        self, directory: Path, settings: Mapping[str, str] | None = None, tools: JavaTools | None = None
    ) -> None:
        super().__init__(directory, settings)
        self._tools = tools
        self._controller_port = 0

    def effective_settings(self) -> dict[str, str]:
        """server.properties as a mapping."""
        advertised = ",".join(f"{name}://{address}" for name, address in self.listeners.items())
        controller = f"127.0.0.1:{self._controller_port}"
        protocols = [f"{name}:PLAINTEXT" for name in (*self.listeners, "CONTROLLER")]
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": controller,
            "advertised.listeners": advertised,
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": next(iter(self.listeners)),
            "listener.security.protocol.map": ",".join(protocols),
            "log.dirs": str(self.directory / "data"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "5",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "num.partitions": "1",
            **self.settings,
        }
        if "controller.quorum.voters" in settings:  # a static quorum: its one voter is this node
            settings["controller.quorum.voters"] = f"1@{controller}"
            del settings["controller.quorum.bootstrap.servers"]
        # bound where they are advertised by default; a test's own advertised.listeners changes only the latter
        settings["listeners"] = f"{advertised},CONTROLLER://{controller}"
        return settings

    def start(self, timeout: float = 60) -> None:
        """Format unless the directory is formatted already, run, wait until it answers and can create topics."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if not self._controller_port:
            self._choose_ports()
        properties = self.directory / "server.properties"
        properties.write_text(
            "".join(f"{name}={value}\n" for name, value in self.effective_settings().items())
        )
        first_directory = self.effective_settings()["log.dirs"].split(",")[0]
        if not (Path(first_directory) / "meta.properties").exists():
            self._format(properties)
        started = time.monotonic()
        self._spawn(self.java_command(properties), {})
        self.wait_until_accepting(timeout)
        self.start_seconds = time.monotonic() - started

    def java_command(self, properties: Path) -> list[str]:
        """The command line that starts Kafka with a server.properties."""
        return [
            java_executable(),
            *self.jvm_options,
            LOG_OPTION,
            "-cp",
            f"{ensure_jars()}/*",
            "kafka.Kafka",
            str(properties),
        ]

    def new_cluster_id(self) -> str:
        """The id that a directory is formatted with."""
        return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")

    def _choose_ports(self) -> None:
        self._controller_port = free_port()
        wanted = self.settings.pop("listeners", "PLAINTEXT://127.0.0.1:0")
        for listener in wanted.split(","):
            name, address = listener.split("://", 1)
            host, port = address.rsplit(":", 1)
            self.listeners[name] = f"{host}:{int(port) or free_port()}"

    def _format(self, properties: Path) -> None:
        cluster_id = self.new_cluster_id()
        # with "=": an id may begin with a dash
        quorum = (
            () if "controller.quorum.voters" in self.settings else self.format_arguments or ("--standalone",)
        )
        arguments = ("format", *quorum, f"--cluster-id={cluster_id}", "-c", str(properties))
        if self.release_version:
            arguments += ("--release-version", self.release_version)
        if self._tools is not None:
            self._tools.run("kafka-storage", *arguments)
        else:
            try:
                run_as_process("kafka-storage", arguments)
            except subprocess.TimeoutExpired as error:
                raise BrokerFailed(f"formatting took too long: {error}") from error
