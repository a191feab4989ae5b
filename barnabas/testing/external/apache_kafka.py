"""Apache Kafka itself, from an unpacked distribution or a folder of its jars: the same tests against the original.

One combined KRaft node, or several, each a process with its files below one folder. Java is found as Kafka's own scripts find
it: JAVA_HOME, else `java` of the PATH.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from barnabas.testing.broker import BrokerFailed, default_properties
from barnabas.testing.external.node_process import (
    HOST,
    cluster_properties,
    properties_text,
    stop_processes,
)
from barnabas.testing.external.remote_kafka import METADATA, RemoteKafka
from barnabas.testing.ports import free_port
from barnabas.wire.messages.metadata import MetadataRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

START_SECONDS_MAX = 90.0
# Without such a file log4j prints errors alone, and the report of a failing test shows Kafka's log.
_LOG4J = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""
# small and quick to start
_JVM_OPTIONS = ("-Xmx512m", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def find_jars(home: Path) -> Path:
    """The folder of a distribution's jars. BrokerFailed where it is none."""
    for folder in (home / "libs", home / "lib", home):
        if any(folder.glob("kafka-clients-*.jar")):
            return folder
    raise BrokerFailed(f"{home} is no Apache Kafka: neither it nor its libs holds kafka-clients-*.jar")


def find_java() -> str:
    """BrokerFailed where there is none."""
    home = os.environ.get("JAVA_HOME")
    wanted = str(Path(home) / "bin" / "java") if home else "java"
    found = shutil.which(wanted)
    if found is None:
        raise BrokerFailed(f"there is no {wanted}: name a Java in JAVA_HOME, or have one in the PATH")
    return found


class ApacheKafka(RemoteKafka):
    """`with ApacheKafka(home, folder) as kafka:`. `home` holds libs/*.jar or *.jar. BrokerFailed where it does not start."""

    def __init__(
        self, home: Path, folder: Path, properties: Mapping[str, object] | None = None, *, nodes: int = 1
    ) -> None:
        super().__init__("")
        self._jars = find_jars(home)
        self._folder = folder
        self._properties = dict(properties or {})
        self._count = nodes
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def port(self) -> int:
        """Of the first node."""
        return int(self.bootstrap_servers.partition(",")[0].rpartition(":")[2])

    def start(self) -> ApacheKafka:
        """Format and run; returns when all nodes serve. No process stays where it fails."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self) -> None:
        ports = [free_port() for _ in range(2 * self._count)]
        cluster_id = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
        self.bootstrap_servers = ",".join(f"{HOST}:{port}" for port in ports[: self._count])
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "log4j2.properties").write_text(_LOG4J)
        files = [self._write_properties(node, ports) for node in range(1, self._count + 1)]
        for file in files:
            command = self._java(
                "kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "-c", file
            )
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise BrokerFailed(f"Apache Kafka can't format its folder:\n{done.stdout}{done.stderr}")
        for file in files:
            with Path(file).with_name("log").open("ab") as output:
                self._processes.append(
                    subprocess.Popen(
                        self._java("kafka.Kafka", file),
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
                )
        try:
            for address in self.bootstrap_servers.split(","):
                one = RemoteKafka(address)
                one.wait_until_it_serves(START_SECONDS_MAX)
                one.stop()
            self._wait(lambda: self._brokers() == self._count, "the nodes do not find each other")
        except TimeoutError as error:
            text = self.log_text()[-4000:]
            raise BrokerFailed(f"{error}; the end of its log:\n{text}") from None

    def log_text(self) -> str:
        """What all nodes have printed."""
        logs = sorted(self._folder.glob("node-*/log"))
        return "".join(path.read_text(errors="replace") for path in logs)

    def stop(self) -> None:
        """End all nodes."""
        super().stop()
        stop_processes(self._processes)
        self._processes.clear()

    def __enter__(self) -> ApacheKafka:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _brokers(self) -> int:
        return len(self._ask(*METADATA, MetadataRequest(topics=[])).brokers)

    def _java(self, *arguments: str) -> list[str]:
        log4j = f"-Dlog4j2.configurationFile={self._folder / 'log4j2.properties'}"
        return [find_java(), *_JVM_OPTIONS, log4j, "-cp", f"{self._jars}/*", *arguments]

    def _write_properties(self, node: int, ports: list[int]) -> str:
        folder = self._folder / f"node-{node}"
        folder.mkdir(parents=True)
        properties = {
            **default_properties(self._count),
            **cluster_properties(node, ports[: self._count], ports[self._count :], folder),
            **{name: str(value) for name, value in self._properties.items()},
        }
        path = folder / "server.properties"
        path.write_text(properties_text(properties))
        return str(path)
