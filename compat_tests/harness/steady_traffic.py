"""A producer and a consumer of a group that work while a test changes the cluster beneath them.

Every record is a number; what was acknowledged to the producer must be read at the end.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer

from compat_tests.harness.eventually import eventually

PAUSE_S = 0.005  # between two records, and for a poll


class SteadyProducer:
    """Writes numbers, from `first` on, to `topic` until `stop`. Idempotent, acks=all."""

    def __init__(self, settings: Mapping[str, Any], topic: str, first: int = 0) -> None:
        self.acknowledged: set[int] = set()
        self.failed: list[KafkaError] = []
        self.reported: list[KafkaError] = []
        self._topic = topic
        self._next = first
        self._is_ending = threading.Event()
        self._producer = Producer(
            {**settings, "enable.idempotence": True, "error_cb": self.reported.append, "log_level": 0}
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_ending.is_set():
            number = self._next
            self._next += 1
            self._producer.produce(self._topic, b"%d" % number, on_delivery=self._note(number))
            self._producer.poll(PAUSE_S)
        self._producer.flush(120)

    def _note(self, number: int) -> Any:
        def told(error: KafkaError | None, _message: Message) -> None:
            if error is None:
                self.acknowledged.add(number)
            else:
                self.failed.append(error)

        return told

    def await_progress(self, count: int = 50) -> None:
        """Wait until so many more are acknowledged."""
        wanted = len(self.acknowledged) + count
        eventually(
            lambda: len(self.acknowledged) >= wanted or self.failed, 120, message=lambda: self.reported[-3:]
        )
        assert not self.failed, self.failed[:3]

    def stop(self) -> None:
        """No further records; all that were written have been answered."""
        self._is_ending.set()
        self._thread.join(150)
        assert not self._thread.is_alive()
        assert not self.failed, self.failed[:3]

    @property
    def next_number(self) -> int:
        return self._next


class SteadyConsumer:
    """Reads numbers in a group until `stop`."""

    def __init__(self, settings: Mapping[str, Any], topic: str, group: str) -> None:
        self.read: set[int] = set()
        self.reported: list[KafkaError] = []
        self._is_ending = threading.Event()
        self._consumer = Consumer(
            {
                **settings,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "error_cb": self.reported.append,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_ending.is_set():
            message = self._consumer.poll(PAUSE_S)
            if message is not None and message.error() is None:
                self.read.add(int(message.value() or b""))
        self._consumer.close()

    def await_progress(self, count: int = 50) -> None:
        """Wait until so many more are read."""
        wanted = len(self.read) + count
        eventually(lambda: len(self.read) >= wanted, 120, message=lambda: self.reported[-3:])

    def await_all(self, numbers: set[int]) -> None:
        """Wait until all these are read."""
        eventually(
            lambda: numbers <= self.read,
            120,
            message=lambda: f"missing: {sorted(numbers - self.read)[:10]}, {self.reported[-3:]}",
        )

    def stop(self) -> None:
        self._is_ending.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
