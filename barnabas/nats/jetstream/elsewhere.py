"""A stream's messages for partitions that other brokers lead: gathered while they come, then produced to the leaders
(cluster/foreign.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from barnabas.nats.records.batch_builder import BatchBuilder, TooLarge
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.nats.cluster.foreign import ForeignProducer
    from barnabas.nats.jetstream.deliveries import Delivered

Ended = Callable[[list["Delivered"], ErrorCode], object]


class Elsewhere:
    """Of one binding. `ended(messages, error)`: NONE once they are committed. All calls on the loop's thread."""

    def __init__(self, producer: ForeignProducer, topic: str, ended: Ended) -> None:
        """`producer` is closed with it."""
        self.bytes = 0  # under way
        self._producer = producer
        self._topic = topic
        self._ended = ended
        self._gathered: dict[int, tuple[BatchBuilder, list[Delivered]]] = {}  # by partition
        self._batches: dict[int, int] = {}  # by partition: those under way

    def has_under_way(self, partition: int) -> bool:
        """Whether what comes now, if it went another way, might overtake something."""
        return partition in self._batches

    def take(self, partition: int, tail: bytes, timestamp_ms: int, delivered: Delivered) -> None:
        builder, messages = self._gathered.setdefault(partition, (BatchBuilder(), []))
        builder.add_at(tail, timestamp_ms)
        messages.append(delivered)

    def send(self, size_max: int) -> None:
        """What was gathered goes, in batches of at most so many bytes."""
        gathered, self._gathered = self._gathered, {}
        for index, (builder, messages) in sorted(gathered.items(), key=lambda each: each[0]):
            for batch in builder.finish(0, size_max):
                if isinstance(batch, TooLarge):
                    self._ended(messages[batch.first : batch.first + 1], ErrorCode.MESSAGE_TOO_LARGE)
                    continue
                mine = messages[batch.first : batch.first + batch.header.record_count]
                size = len(batch.records)
                self.bytes += size
                self._batches[index] = self._batches.get(index, 0) + 1
                done = partial(self._produced, index, mine, size)
                self._producer.produce(self._topic, index, batch.records, done)

    def close(self) -> None:
        """Nobody is told anything any more."""
        self._producer.close()

    def _produced(self, index: int, delivered: list[Delivered], size: int, error: ErrorCode) -> None:
        self.bytes -= size
        self._batches[index] -= 1
        if not self._batches[index]:
            del self._batches[index]
        self._ended(delivered, error)
