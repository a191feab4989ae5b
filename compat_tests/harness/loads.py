"""Clients that write continuously, record the acknowledged records, and continue after a kill of the broker.

Every load runs in a thread until `finish`. `acknowledged` only grows, in the order of the answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

import confluent_kafka
from kafka import KafkaProducer

PARTITIONS = 2
KEYS = 20
# Requests to a suspended broker time out after seconds instead of librdkafka's minute.
SHORT_TIMEOUTS = {"socket.timeout.ms": 5_000, "request.timeout.ms": 5_000}


class Bootstrapped(Protocol):
    """A broker, or a cluster of them."""

    @property
    def bootstrap(self) -> str:
        """host:port, or several of them with commas between."""


Acknowledge = Callable[[int, object], None]  # (number, error or None)
Send = Callable[[int], None]  # a number, or -1: wait until all is answered
Make = Callable[[Bootstrapped, str, Acknowledge], Send]


class Load:
    """Numbers its records from 0 on; record n goes to partition n % PARTITIONS with the key n % KEYS."""

    def __init__(self, broker: Bootstrapped, topic: str, make: Make) -> None:
        self.topic = topic
        self.acknowledged: list[int] = []
        self.failed: list[str] = []
        self.sent = 0
        self._send = make(broker, topic, self._answered)
        self._stop = threading.Event()
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
        while not self._stop.is_set():
            self._go_on.wait()
            for _ in range(5):
                self.sent += 1
                self._send(self.sent - 1)
            time.sleep(0.01)  # the rate: 500 a second at most
        self._send(-1)

    def pause(self) -> None:
        """Send no more records until `resume`; outstanding ones continue."""
        self._go_on.clear()

    def resume(self) -> None:
        self._go_on.set()

    def abandon(self) -> None:
        """Stop sending, without waiting: for the end of a test that has failed."""
        self._stop.set()
        self.resume()

    def finish(self) -> None:
        """Stop sending and wait until the outstanding records are acknowledged or have failed."""
        self.abandon()
        self._thread.join(60)
        assert not self._thread.is_alive(), f"{self.topic}: records are still unanswered"


def librdkafka(*, idempotent: bool, codec: str = "none") -> Make:
    """confluent-kafka, acks=all."""

    def make(broker: Bootstrapped, topic: str, answered: Acknowledge) -> Send:
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

        def send(number: int) -> None:
            if number < 0:
                assert producer.flush(50) == 0
                return
            producer.produce(
                topic,
                b"%d" % number,
                key=b"%d" % (number % KEYS),
                partition=number % PARTITIONS,
                on_delivery=lambda error, _: answered(number, error),
            )
            producer.poll(0)

        return send

    return make


def kafka_python(broker: Bootstrapped, topic: str, answered: Acknowledge) -> Send:
    """kafka-python, acks=all, idempotent."""
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap,
        acks="all",
        reconnect_backoff_max_ms=300,
        retry_backoff_ms=50,
        request_timeout_ms=5_000,
    )

    def send(number: int) -> None:
        if number < 0:
            producer.flush(50)
            producer.close()
            return
        future = producer.send(
            topic, b"%d" % number, key=b"%d" % (number % KEYS), partition=number % PARTITIONS
        )
        future.add_callback(lambda _: answered(number, None))
        future.add_errback(lambda error: answered(number, error))

    return send


def group_commits(group: str) -> Make:
    """Commits offset n of partition n % PARTITIONS for a group, one after the other."""

    def make(broker: Bootstrapped, topic: str, answered: Acknowledge) -> Send:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": group, "log_level": 0, **SHORT_TIMEOUTS}
        )

        def send(number: int) -> None:
            if number < 0:
                consumer.close()
                return
            where = confluent_kafka.TopicPartition(topic, number % PARTITIONS, number)
            try:
                consumer.commit(offsets=[where], asynchronous=False)
            except confluent_kafka.KafkaException:
                time.sleep(0.05)  # the next number tries again
            else:
                answered(number, None)

        return send

    return make


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
            _, end = consumer.get_watermark_offsets(where, timeout=30)
            assert end >= self._positions[partition], f"{self.topic}-{partition} has become shorter"
            consumer.assign([where])
            while self._positions[partition] < end and time.monotonic() < deadline:
                for message in consumer.consume(10_000, 0.2):
                    assert message.error() is None, message.error()
                    self.values[partition].append(int(message.value() or b"-1"))
                    self._positions[partition] = (message.offset() or 0) + 1
            assert self._positions[partition] >= end, f"{self.topic}-{partition} can't be read to its end"
        consumer.close()
