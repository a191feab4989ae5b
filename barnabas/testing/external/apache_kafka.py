"""Apache Kafka itself, from an unpacked distribution or a folder of its jars: the same tests against the original.

One combined KRaft node, or several, each a process with its files below one folder. Java is found as Kafka's own scripts find
it: JAVA_HOME, else `java` of the PATH.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from barnabas.testing.broker import BrokerFailed, default_properties
from barnabas.testing.external.remote_kafka import RemoteKafka
from barnabas.testing.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

HOST = "127.0.0.1"
START_SECONDS_MAX = 90.0
STOP_SECONDS_MAX = 30.0
# of Kafka's log, that it comes with the report of a failing test: without a file of its kind log4j prints errors alone
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
        """SIGTERM to all, SIGKILL to who does not listen."""
        super().stop()
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def __enter__(self) -> ApacheKafka:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _brokers(self) -> int:
        from barnabas.testing.external.remote_kafka import METADATA
        from barnabas.wire.messages.metadata import MetadataRequest

        return len(self._ask(METADATA, 8, MetadataRequest(topics=[])).brokers)

    def _java(self, *arguments: str) -> list[str]:
        log4j = f"-Dlog4j2.configurationFile={self._folder / 'log4j2.properties'}"
        return [find_java(), *_JVM_OPTIONS, log4j, "-cp", f"{self._jars}/*", *arguments]

    def _write_properties(self, node: int, ports: list[int]) -> str:
        folder = self._folder / f"node-{node}"
        folder.mkdir(parents=True)
        voters = ",".join(f"{number}@{HOST}:{port}" for number, port in enumerate(ports[self._count :], 1))
        clients = f"PLAINTEXT://{HOST}:{ports[node - 1]}"
        properties = {
            **default_properties(self._count),
            "process.roles": "broker,controller",
            "node.id": str(node),
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "listeners": f"{clients},CONTROLLER://{HOST}:{ports[self._count + node - 1]}",
            "advertised.listeners": clients,
            "log.dirs": str(folder / "data"),
            **{name: str(value) for name, value in self._properties.items()},
        }
        path = folder / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        return str(path)
