"""A stock nats-py client for synchronous tests, and checks of a topic against a stream."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterable
from concurrent.futures import Future
from itertools import pairwise
from types import TracebackType
from typing import Any, TypeVar

import nats
from confluent_kafka import Consumer, TopicPartition

from compat_tests.harness.broker import Broker
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.eventually import eventually
from compat_tests.harness.nats_server import NatsServer

T = TypeVar("T")
Record = tuple[int, str, int, bytes]  # partition, subject, sequence, value


class Streams:
    """`with Streams(server) as streams:` connects; its event loop runs in its own thread."""

    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Streams:
        self._thread.start()
        self.client = self.run(nats.connect(self._server.url))
        self.jetstream = self.client.jetstream(timeout=30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self.client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts a coroutine in the background."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def add(self, name: str, *subjects: str, **options: Any) -> None:
        """Adds a stream with file storage."""
        self.run(self.jetstream.add_stream(name=name, subjects=list(subjects), **options))

    def publish(self, messages: Iterable[tuple[str, bytes]], headers: dict[str, str] | None = None) -> None:
        """Publishes messages in order; the stream has stored all of them when it returns."""

        async def run() -> None:
            waiting = []
            for subject, payload in messages:
                waiting.append(
                    await self.jetstream.publish_async(subject, payload, headers=headers, wait_stall=30)
                )
            for acknowledged in waiting:
                await acknowledged

        self.run(run())

    def stored_times(self, stream: str, sequences: Iterable[int]) -> list[int]:
        """Times of the stream's messages, in nanoseconds since the epoch."""
        consumer = self.run(self._ordered(stream))
        times = {}
        for message in consumer:
            times[message.metadata.sequence.stream] = message.reply.split(".")[7]
        return [int(times[sequence]) for sequence in sequences]

    def contents(self, stream: str) -> list[tuple[str, bytes]]:
        """All messages; the first one has sequence 1."""
        return [(message.subject, message.data) for message in self.run(self._ordered(stream))]

    async def _ordered(self, stream: str) -> list[Any]:
        count = (await self.jetstream.stream_info(stream)).state.messages
        subscription = await self.jetstream.subscribe("", stream=stream, ordered_consumer=True)
        found = [await subscription.next_msg(timeout=30) for _ in range(count)]
        await subscription.unsubscribe()
        return found

    def acknowledged(self, stream: str, consumer: str, seconds: float = 60) -> Any:
        """Waits until a consumer has nothing pending; returns the server's information about it."""

        def idle() -> Any:
            info = self.run(self.jetstream.consumer_info(stream, consumer))
            return None if info.num_pending or info.num_ack_pending else info

        return eventually(idle, seconds)


def read_all(
    broker: Broker | Cluster, topic: str, count: int, seconds: float = 60, *, distinct: bool = False
) -> list[Any]:
    """All records of the topic, at least `count` (of different messages with `distinct`), and any more that arrive
    within a moment."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, index, 0) for index in sorted(partitions)])
    found: list[Any] = []
    deadline = time.monotonic() + seconds
    try:
        while _count(found, distinct) < count and time.monotonic() < deadline:
            found += consumer.consume(10_000, 0.2)
        found += consumer.consume(10_000, 0.3)
    finally:
        consumer.close()
    return found


def _count(found: list[Any], distinct: bool) -> int:
    return len({dict(message.headers())["nats.seq"] for message in found}) if distinct else len(found)


def records(found: list[Any]) -> list[Record]:
    """Sorted by partition, each partition in log order."""
    listed = []
    for message in found:
        headers = dict(message.headers())
        listed.append(
            (message.partition(), headers["nats.subject"].decode(), int(headers["nats.seq"]), message.value())
        )
    return sorted(listed, key=lambda record: record[0])


def check_exactly(found: list[Any], published: list[tuple[str, bytes]]) -> None:
    """Asserts that each message is there once, with its sequence, and each partition is in stream order."""
    listed = records(found)
    by_sequence = {sequence: (subject, value) for _, subject, sequence, value in listed}
    assert len(by_sequence) == len(listed), "a message is in the topic twice"
    assert [by_sequence.get(number + 1) for number in range(len(published))] == published
    for partition in {record[0] for record in listed}:
        sequences = [record[2] for record in listed if record[0] == partition]
        assert sequences == sorted(sequences)


def numbered(first: int, count: int, subjects: int = 20) -> list[tuple[str, bytes]]:
    return [(f"orders.{number % subjects}", b"%d" % number) for number in range(first, first + count)]


def check_at_least_once(found: list[Any], published: list[tuple[str, bytes]]) -> None:
    """Asserts that each message is there, and that the first copies are in stream order."""
    first: dict[int, tuple[int, str, bytes]] = {}
    for partition, subject, sequence, value in records(found):
        first.setdefault(sequence, (partition, subject, value))
    missing = [number + 1 for number in range(len(published)) if number + 1 not in first]
    assert not missing, f"{len(missing)} of {len(published)} are missing, from {missing[0]} to {missing[-1]}"
    assert [first[number + 1][1:] for number in range(len(published))] == published
    for partition in {record[0] for record in first.values()}:
        sequences = [sequence for sequence, record in first.items() if record[0] == partition]
        late = [(after, before) for before, after in pairwise(sequences) if after < before]
        assert not late, f"partition {partition}: messages stored behind later ones: {late[:5]}"
