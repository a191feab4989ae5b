"""Transactional producers and a reader of the Java client, in one JVM that runs java/TransactionalClients.java."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from compat_tests.harness.java_commands import JavaCommands
from compat_tests.harness.transactional_clients import AlreadyEnded, Fenced, TransactionalProducer, Value

_FENCED = ("ProducerFencedException", "InvalidProducerEpochException")


class JavaClients(JavaCommands):
    """The JVM."""

    def __init__(self) -> None:
        super().__init__("TransactionalClients.java")
        self._numbers = itertools.count(1)

    def failure(self, text: str) -> Exception:
        """Fenced and AlreadyEnded for what the tests expect."""
        if text.startswith(_FENCED):
            return Fenced(text)
        if text.startswith("InvalidTxnStateException"):
            return AlreadyEnded(text)
        return super().failure(text)

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
