"""Transactional producers and a reader of the Java client, in one JVM that runs java/TransactionalClients.java."""

from __future__ import annotations

import itertools
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from compat_tests.harness.java_tools import JAVA_FLAGS, janino_class_path
from compat_tests.harness.kafka_jars import ensure_jars, java_executable
from compat_tests.harness.transactional_clients import AlreadyEnded, Fenced, TransactionalProducer, Value

_SOURCE = Path(__file__).parent / "java" / "TransactionalClients.java"
_FENCED = ("ProducerFencedException", "InvalidProducerEpochException")


class JavaClientFailed(AssertionError):
    """The Java client threw an exception, which the message names, or its JVM has ended."""


class JavaClients:
    """The JVM; `close()` ends it with all its clients."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the JVM
        self._process = subprocess.Popen(
            [
                *(
                    java_executable(),
                    *JAVA_FLAGS,
                    "-cp",
                    ":".join([f"{ensure_jars()}/*", *janino_class_path()]),
                ),
                *("org.codehaus.janino.SimpleCompiler", str(_SOURCE), _SOURCE.stem),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._numbers = itertools.count(1)

    def ask(self, *words: object) -> str:
        """Run one command and return the rest of its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        kind, _, rest = line.strip().partition(" ")
        if kind == "ok":
            return rest
        if rest.startswith(_FENCED):
            raise Fenced(rest)
        if rest.startswith("InvalidTxnStateException"):
            raise AlreadyEnded(rest)
        self._errors.seek(0)
        raise JavaClientFailed(rest or self._errors.read().decode("utf-8", "replace")[-4000:])

    def producer(
        self, bootstrap: str, transactional_id: str, *, timeout_ms: int = 60_000
    ) -> TransactionalProducer:
        """A KafkaProducer with a transactional id."""
        return _JavaProducer(self, f"producer-{next(self._numbers)}", bootstrap, transactional_id, timeout_ms)

    def read(self, bootstrap: str, topic: str, partitions: int, isolation_level: str) -> list[Value]:
        """All that a KafkaConsumer reads of a topic, from its beginning to its end."""
        words = self.ask("read", bootstrap, topic, partitions, isolation_level).split()
        pairs = (word.partition(":") for word in words)
        return [(int(partition), value) for partition, _, value in pairs]

    def fence(self, bootstrap: str, transactional_id: str) -> None:
        """Admin.fenceProducers."""
        self.ask("fence", bootstrap, transactional_id)

    def close(self) -> None:
        """End the JVM."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            assert stream is not None
            stream.close()


class _JavaProducer(TransactionalProducer):
    def __init__(
        self, clients: JavaClients, name: str, bootstrap: str, transactional_id: str, timeout_ms: int
    ) -> None:
        self._clients = clients
        self._name = name
        clients.ask("open", name, bootstrap, transactional_id, timeout_ms)

    def initialize(self) -> None:
        self._clients.ask("init", self._name)

    def begin(self) -> None:
        self._clients.ask("begin", self._name)

    def send(self, topic: str, values: Sequence[Value]) -> None:
        for partition, value in values:
            self._clients.ask("send", self._name, topic, partition, value)

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        self._clients.ask("offsets", self._name, group, topic, partition, offset)

    def commit(self) -> None:
        self._clients.ask("commit", self._name)

    def abort(self) -> None:
        self._clients.ask("abort", self._name)

    def close(self) -> None:
        self._clients.ask("close", self._name)
