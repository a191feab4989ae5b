"""Clients that write continuously, record the acknowledged records, and continue after a kill of the broker.

Every load runs in a thread until `finish`. `acknowledged` only grows, in the order of the answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

import confluent_kafka
from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError

from compat_tests.harness.eventually import eventually

PARTITIONS = 2
KEYS = 20
CLOSE_S = 2.0  # for a client, with what is unanswered
# Requests to a suspended broker time out after seconds instead of librdkafka's minute.
SHORT_TIMEOUTS = {"socket.timeout.ms": 5_000, "request.timeout.ms": 5_000}


class Bootstrapped(Protocol):
    """A broker, or a cluster of them."""

    @property
    def bootstrap(self) -> str:
        """host:port, or several of them with commas between."""


Acknowledge = Callable[[int, object], None]  # (number, error or None)


class LoadClient(Protocol):
    """A client that writes. All calls but `abandon` come from the load's thread."""

    def send(self, number: int) -> None:
        """Send one; its answer goes to `Acknowledge`."""

    def flush(self) -> None:
        """Wait until all are answered."""

    def abandon(self) -> None:
        """Wait for no answer any more."""

    def close(self) -> None:
        """Drop what is unanswered, and end the client's threads and connections; also without a broker."""


Make = Callable[[Bootstrapped, str, Acknowledge], LoadClient]


class Load:
    """Numbers its records from 0 on; record n goes to partition n % PARTITIONS with the key n % KEYS."""

    def __init__(self, broker: Bootstrapped, topic: str, make: Make) -> None:
        self.topic = topic
        self.acknowledged: list[int] = []
        self.failed: list[str] = []
        self.sent = 0
        self._client = make(broker, topic, self._answered)
        self._stop = threading.Event()
        self._is_abandoned = False
        self._go_on = threading.Event()
        self._go_on.set()
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"load {topic}")
        self._thread.start()

    def _answered(self, number: int, error: object) -> None:
        if error is None:
            self.acknowledged.append(number)
        else:
            self.failed.append(str(error))

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._go_on.wait()
                for _ in range(5):
                    self.sent += 1
                    self._client.send(self.sent - 1)
                time.sleep(0.01)  # the rate: 500 a second at most
            if not self._is_abandoned:
                self._client.flush()
        finally:
            self._client.close()

    def pause(self) -> None:
        """Send no more records until `resume`; outstanding ones continue."""
        self._go_on.clear()

    def resume(self) -> None:
        self._go_on.set()

    def abandon(self) -> None:
        """Stop sending and drop what is unanswered, without waiting: for the end of a test that has failed."""
        self._is_abandoned = True
        self._stop.set()
        self.resume()
        self._client.abandon()

    def finish(self) -> None:
        """Stop sending and wait until the outstanding records are acknowledged or have failed."""
        self._stop.set()
        self.resume()
        self.join(60)
        assert not self._thread.is_alive(), f"{self.topic}: records are still unanswered"

    def join(self, timeout: float) -> None:
        """Wait until the client is closed, or for `timeout` seconds."""
        self._thread.join(timeout)


class Librdkafka:
    """A producer of confluent-kafka."""

    def __init__(self, producer: confluent_kafka.Producer, topic: str, answered: Acknowledge) -> None:
        self._producer = producer
        self._topic = topic
        self._answered = answered

    def send(self, number: int) -> None:
        self._producer.produce(
            self._topic,
            b"%d" % number,
            key=b"%d" % (number % KEYS),
            partition=number % PARTITIONS,
            on_delivery=lambda error, _: self._answered(number, error),
        )
        self._producer.poll(0)

    def flush(self) -> None:
        assert self._producer.flush(50) == 0

    def abandon(self) -> None:
        """`close` purges."""

    def close(self) -> None:
        self._producer.purge()
        self._producer.flush(CLOSE_S)
        del self._producer  # its close() would flush without a limit


def librdkafka(*, idempotent: bool, codec: str = "none") -> Make:
    """confluent-kafka, acks=all."""

    def make(broker: Bootstrapped, topic: str, answered: Acknowledge) -> LoadClient:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": idempotent,
                "acks": "all",
                "log_level": 0,
                "reconnect.backoff.max.ms": 300,
                "retry.backoff.max.ms": 300,
                "compression.type": codec,
                **SHORT_TIMEOUTS,
            }
        )
        return Librdkafka(producer, topic, answered)

    return make


class KafkaPython:
    """A producer of kafka-python."""

    def __init__(self, producer: KafkaProducer, topic: str, answered: Acknowledge) -> None:
        self._producer = producer
        self._topic = topic
        self._answered = answered

    def send(self, number: int) -> None:
        future = self._producer.send(
            self._topic, b"%d" % number, key=b"%d" % (number % KEYS), partition=number % PARTITIONS
        )
        future.add_callback(lambda _: self._answered(number, None))
        future.add_errback(lambda error: self._answered(number, error))

    def flush(self) -> None:
        self._producer.flush(50)

    def abandon(self) -> None:
        """`close` does not wait for long."""

    def close(self) -> None:
        try:
            self._producer.close(timeout=CLOSE_S)
        except KafkaTimeoutError:  # its close() gives up then, and its thread would go on
            self._producer._sender.force_close()


def kafka_python(broker: Bootstrapped, topic: str, answered: Acknowledge) -> LoadClient:
    """kafka-python, acks=all, idempotent."""
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap,
        acks="all",
        reconnect_backoff_max_ms=300,
        retry_backoff_ms=50,
        request_timeout_ms=5_000,
        # It asks only brokers that its metadata names, never the bootstrap servers again. Metadata of a moment in which one
        # broker was alive would keep it apart from the others once that one is killed.
        metadata_max_age_ms=1_000,
    )
    return KafkaPython(producer, topic, answered)


class _GroupCommits:
    """Commits offset n of partition n % PARTITIONS for a group, one after the other."""

    def __init__(self, broker: Bootstrapped, topic: str, answered: Acknowledge, *, group: str) -> None:
        self._topic = topic
        self._answered = answered
        self._answers: list[object] = []
        self._is_abandoned = False
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "log_level": 0,
                "on_commit": lambda error, _: self._answers.append(error),
                **SHORT_TIMEOUTS,
            }
        )

    def send(self, number: int) -> None:
        if self._is_abandoned:
            return
        self._answers.clear()
        where = confluent_kafka.TopicPartition(self._topic, number % PARTITIONS, number)
        self._consumer.commit(offsets=[where], asynchronous=True)
        while not self._answers:  # a synchronous one without a coordinator would never end
            if self._is_abandoned:
                return
            self._consumer.poll(0.05)
        if self._answers[0] is None:
            self._answered(number, None)
        else:
            time.sleep(0.05)  # the next number tries again

    def flush(self) -> None:
        """Each is answered when `send` returns."""

    def abandon(self) -> None:
        self._is_abandoned = True

    def close(self) -> None:
        if not self._is_abandoned:  # without a coordinator it waits for a minute
            self._consumer.close()
        del self._consumer


def group_commits(group: str) -> Make:
    """Commits of a group."""
    return partial(_GroupCommits, group=group)


class Reader:
    """Reads a topic across restarts: each `catch_up` reads the records since the last one."""

    def __init__(self, broker: Bootstrapped, topic: str) -> None:
        self.topic = topic
        self.values: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self._broker = broker
        self._positions = [0] * PARTITIONS

    def catch_up(self, timeout: float = 60) -> None:
        """Read every partition to its end; asserts that no partition has become shorter."""
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self._broker.bootstrap, "group.id": "unused", "log_level": 0}
        )
        deadline = time.monotonic() + timeout
        for partition in range(PARTITIONS):
            where = confluent_kafka.TopicPartition(self.topic, partition, self._positions[partition])
            # A leader may have changed since the client asked who it is; it does not ask again by itself.
            watermarks = partial(consumer.get_watermark_offsets, where, timeout=30)
            _, end = eventually(watermarks, retry_on=(confluent_kafka.KafkaException,))
            assert end >= self._positions[partition], f"{self.topic}-{partition} has become shorter"
            consumer.assign([where])
            while self._positions[partition] < end and time.monotonic() < deadline:
                for message in consumer.consume(min(10_000, end - self._positions[partition]), 0.2):
                    assert message.error() is None, message.error()
                    self.values[partition].append(int(message.value() or b"-1"))
                    self._positions[partition] = (message.offset() or 0) + 1
            assert self._positions[partition] >= end, f"{self.topic}-{partition} can't be read to its end"
        consumer.close()
