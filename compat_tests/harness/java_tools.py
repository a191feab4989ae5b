"""Kafka's own command-line tools, run in one long-lived JVM or each as its own process.

`JavaTools.run(...)` waits for a tool and returns its output; `JavaTools.start(...)` returns a handle to a running
tool (a consumer). The JVM runs java/ToolServer.java, compiled in memory by the Janino jar inside pyspark, so a Java
runtime is enough. One reader thread distributes the tools' output.
"""

from __future__ import annotations

import base64
import importlib.util
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compat_tests.harness.kafka_jars import archive_options, ensure_jars, java_executable

_SOURCE = Path(__file__).parent / "java" / "ToolServer.java"
JAVA_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xmx512m",
    f"-Dlog4j2.configurationFile={_SOURCE.with_name('log4j2.properties')}",
    *archive_options(),
)

# short name -> main class, as Kafka's bin/*.sh start them
TOOLS = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "kafka-verifiable-share-consumer": "org.apache.kafka.tools.VerifiableShareConsumer",
    "kafka-streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "kafka-client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "kafka-storage": "kafka.tools.StorageTool",
}


class ToolFailed(AssertionError):
    """A tool ended with another exit status than the test expects; the message contains its output."""


@dataclass(frozen=True)
class ToolResult:
    """Result of a tool: exit status and the two streams as text."""

    status: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """Both streams, standard output first."""
        return self.stdout + self.stderr


@dataclass
class RunningTool:
    """A tool inside the shared JVM."""

    name: str
    _stop: Callable[[], None]
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _stdout: bytearray = field(default_factory=bytearray)
    _stderr: bytearray = field(default_factory=bytearray)
    _status: int | None = None

    @property
    def stdout(self) -> str:
        """Everything on standard output so far."""
        return self._stdout.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Everything on standard error so far."""
        return self._stderr.decode("utf-8", "replace")

    def stop(self) -> None:
        """Stop the tool as SIGTERM would: its shutdown hooks run."""
        self._stop()

    def wait(self, timeout: float = 60) -> ToolResult:
        """Wait for the end; seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._status is not None, timeout):
                raise ToolFailed(f"{self.name} still runs after {timeout} s\n{self.stdout}\n{self.stderr}")
        status = self._status
        assert status is not None
        return ToolResult(status, self.stdout, self.stderr)

    def wait_for(self, enough: Callable[[str], bool], timeout: float = 60) -> str:
        """Wait until standard output satisfies `enough`; the text so far, or ToolFailed."""

        def done() -> bool:
            return self._status is not None or enough(self.stdout)

        with self._changed:
            self._changed.wait_for(done, timeout)
        if not enough(self.stdout):
            raise ToolFailed(f"{self.name} did not print what was awaited\n{self.stdout}\n{self.stderr}")
        return self.stdout

    def _receive(self, kind: str, payload: str) -> None:
        with self._changed:
            if kind == "out":
                self._stdout += base64.b64decode(payload)
            elif kind == "err":
                self._stderr += base64.b64decode(payload)
            else:
                self._status = int(payload)
            self._changed.notify_all()


def janino_class_path() -> list[str]:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    jars = Path(spec.origin).parent / "jars"
    return [str(next(jars.glob(f"{name}-*.jar"))) for name in ("janino", "commons-compiler")]


class JavaTools:
    """One JVM that runs tools on request; `close()` ends it."""

    def __init__(self) -> None:
        jars = ensure_jars()
        tools_jar = next(jars.glob("kafka-tools-[0-9]*.jar"))
        # the tools' own jar is loaded anew for each run (ToolServer says why)
        class_path = janino_class_path() + [
            str(jar) for jar in sorted(jars.glob("*.jar")) if jar != tools_jar
        ]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the JVM
        self._process = subprocess.Popen(
            [
                java_executable(),
                *JAVA_FLAGS,
                "--add-opens=java.base/java.lang=ALL-UNNAMED",
                "-cp",
                ":".join(class_path),
                "org.codehaus.janino.SimpleCompiler",
                str(_SOURCE),
                "ToolServer",
                str(tools_jar),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._lock = threading.Lock()
        self._next_id = 0
        self._running: dict[str, RunningTool] = {}
        self._ready = threading.Event()
        threading.Thread(target=self._read, daemon=True, name="java-tools").start()
        if not self._ready.wait(60) or self._process.poll() is not None:
            raise ToolFailed(f"the tools' JVM did not start:\n{self._error_text()}")

    def start(self, tool: str, *arguments: str, stdin: str | bytes = b"") -> RunningTool:
        """Start a tool (a key of TOOLS) with its arguments; standard input ends after `stdin`."""
        with self._lock:
            self._next_id += 1
            job = str(self._next_id)
            running = RunningTool(f"{tool} {' '.join(arguments)}", lambda: self._send(f"stop {job}"))
            self._running[job] = running
        data = stdin.encode() if isinstance(stdin, str) else stdin
        words = [_word(TOOLS[tool].encode()), _word(data), *(_word(one.encode()) for one in arguments)]
        self._send(f"run {job} {' '.join(words)}")
        return running

    def run(
        self,
        tool: str,
        *arguments: str,
        stdin: str | bytes = b"",
        timeout: float = 60,
        status: int | None = 0,
    ) -> ToolResult:
        """Run a tool to its end and check its exit status (None: any)."""
        result = self.start(tool, *arguments, stdin=stdin).wait(timeout)
        if status is not None and result.status != status:
            raise ToolFailed(
                f"{tool} {' '.join(arguments)} exited {result.status}, not {status}\n{result.output}"
            )
        return result

    def close(self) -> None:
        """End the JVM and every tool inside it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(30)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(line.encode("ascii") + b"\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            words = raw.decode("ascii", "replace").split()
            if words == ["ready"]:
                self._ready.set()
            elif len(words) == 3 and words[1] in self._running:
                self._running[words[1]]._receive(words[0], words[2])
        self._ready.set()  # the JVM died: __init__ looks at its exit code

    def _error_text(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode("utf-8", "replace")


def _word(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii") or "-"


def run_as_process(
    tool: str, arguments: Sequence[str], *, stdin: str | bytes = b"", timeout: float = 60, status: int = 0
) -> ToolResult:
    """Run one tool in a JVM of its own, as a user's shell does."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    command = [java_executable(), *JAVA_FLAGS, "-cp", f"{ensure_jars()}/*", TOOLS[tool], *arguments]
    started = time.monotonic()
    done = subprocess.run(command, input=data, capture_output=True, timeout=timeout, check=False)
    result = ToolResult(
        done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    )
    if result.status != status:
        seconds = time.monotonic() - started
        raise ToolFailed(
            f"{tool} {' '.join(arguments)} exited {result.status} after {seconds:.1f} s\n{result.output}"
        )
    return result
