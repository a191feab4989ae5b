"""A node, a nats-server and bindings that publish, beside the test that asks real clients what has come of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import nats

from barnabas.broker.extension import host_of
from barnabas.broker.partitions.partition import Partition
from barnabas.nats.binding.reader import read_binding
from barnabas.nats.client.client import NatsClient
from barnabas.nats.client.connection_settings import ConnectionSettings, parse_server
from barnabas.nats.cluster.positions import Position, Positions
from barnabas.nats.egress.topic_publisher import TopicPublisher
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from barnabas.wire.records import Record, build_batch
from compat_tests.harness.eventually import eventually
from compat_tests.harness.nats_server import NatsServer
from compat_tests.harness.threaded_node import ThreadedNode

T = TypeVar("T")
CREATE_TOPICS = 19
WITHIN_S = 60.0


class EgressBench:
    """Bindings are started and stopped by `publish` and `stop`, on the node's own loop."""

    def __init__(self, directory: Path, server: NatsServer) -> None:
        self.url = server.url  # for the bindings
        self.node = ThreadedNode(
            directory, {"offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}
        )
        self.host = host_of(self.node.node.services, MemoryDisk(), "/")
        self.bindings: list[TopicPublisher] = []
        self.positions = Positions(self.host)

    def close(self) -> None:
        for binding in self.bindings:
            self.stop(binding)
        self.node.stop()

    def on_loop(self, call: Callable[[], T]) -> T:
        """What `call` returns there."""
        found: list[T] = []
        done = threading.Event()

        def run() -> None:
            try:
                found.append(call())
            finally:
                done.set()

        self.node.runtime.loop.call_soon_threadsafe(run)
        assert done.wait(WITHIN_S), "the loop is busy"
        return found[0]

    # -- topics

    def create(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=topic,
                    num_partitions=partitions,
                    replication_factor=1,
                    configs=[
                        CreatableTopicConfig(name=name, value=value)
                        for name, value in (configs or {}).items()
                    ],
                )
            ],
            timeout_ms=10_000,
        )
        (answer,) = self.node.client().ask(CREATE_TOPICS, 7, request).topics
        assert not answer.error_code, answer

    def partition(self, topic: str, index: int = 0) -> Partition:
        found = self.host.partitions.get(topic, index)
        assert found is not None
        return found

    def append(self, topic: str, records: Iterable[Record], partition: int = 0, **options: Any) -> None:
        """Append one batch."""
        batch = build_batch(list(records), **options)
        self.on_loop(lambda: self.partition(topic, partition).append(batch))

    # -- bindings

    def publish(self, topic: str, configs: Mapping[str, str], partitions: int = 1) -> TopicPublisher:
        """Start what publishes the topic as these configs say."""
        binding = read_binding(topic, configs)
        assert binding is not None

        def start() -> TopicPublisher:
            settings = ConnectionSettings(servers=(parse_server(self.url),))
            client = NatsClient(self.node.runtime, settings, f"test-{topic}")
            client.start()
            publisher = TopicPublisher(binding, self.host, client, self.positions)
            publisher.start({index: self.partition(topic, index) for index in range(partitions)})
            return publisher

        publisher = self.on_loop(start)
        self.bindings.append(publisher)
        return publisher

    def stop(self, binding: TopicPublisher) -> None:
        def stop() -> None:
            binding.stop()
            binding.client.stop()

        self.on_loop(stop)

    def until(self, holds: Callable[[], object], within_s: float = WITHIN_S) -> None:
        """Wait until it holds on the loop."""
        eventually(
            lambda: self.on_loop(holds), within_s, message=lambda: [each.state for each in self.bindings]
        )

    def position(self, group: str, topic: str, partition: int = 0) -> Position | None:
        """The position of the group."""
        found: list[tuple[ErrorCode, dict[int, Position]]] = []
        topic_id = self.partition(topic, partition).topic_id
        self.on_loop(
            lambda: self.positions.fetch(
                group, topic_id, [partition], lambda error, positions: found.append((error, positions))
            )
        )
        self.until(lambda: found)
        error, positions = found[0]
        assert not error
        return positions.get(partition)

    def commit(self, group: str, topic: str, offset: int, partition: int = 0) -> ErrorCode:
        """Move the group, as an admin does."""
        found: list[ErrorCode] = []
        topic_id = self.partition(topic, partition).topic_id
        self.on_loop(
            lambda: self.positions.commit(group, topic_id, {partition: Position(offset)}, found.append)
        )
        self.until(lambda: found)
        return found[0]


class Subscriber:
    """A nats-py subscriber in a thread of its own; `messages` are (subject, payload, headers)."""

    def __init__(self, server: NatsServer, subject: str) -> None:
        self.messages: list[tuple[str, bytes, dict[str, str]]] = []
        self._ready = threading.Event()
        self._end = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(server.url, subject))
        self._thread.start()
        assert self._ready.wait(WITHIN_S)

    def _run(self, url: str, subject: str) -> None:
        async def run() -> None:
            client = await nats.connect(url)

            async def take(message: Any) -> None:
                self.messages.append((message.subject, message.data, dict(message.headers or {})))

            await client.subscribe(subject, cb=take)
            await client.flush()
            self._ready.set()
            await self._end.wait()
            await client.close()

        self._loop.run_until_complete(run())

    def wait_for(self, count: int, within_s: float = WITHIN_S) -> list[tuple[str, bytes, dict[str, str]]]:
        eventually(lambda: len(self.messages) >= count, within_s, message=lambda: len(self.messages))
        return self.messages

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()


def records(
    count: int, start: int = 0, *, key: Callable[[int], bytes | None] = lambda number: b"k%d" % number
) -> list[Record]:
    """Values v0, v1, ... at offsets relative to the batch."""
    return [
        Record(number, 1_700_000_000_000, key(start + number), b"v%d" % (start + number))
        for number in range(count)
    ]


def in_jetstream(server: NatsServer, work: Callable[[Any, Any], Any]) -> Any:
    """What `await work(client, jetstream)` gives, with nats-py."""

    async def run() -> Any:
        client = await nats.connect(server.url)
        try:
            return await work(client, client.jetstream())
        finally:
            await client.close()

    return asyncio.run(run())


def stored(server: NatsServer, stream: str) -> list[tuple[str, bytes, dict[str, str]]]:
    """All messages of a stream, in its order."""

    async def read(_client: Any, jetstream: Any) -> list[tuple[str, bytes, dict[str, str]]]:
        state = (await jetstream.stream_info(stream)).state
        if not state.messages:
            return []
        subscription = await jetstream.subscribe(">", stream=stream, ordered_consumer=True)
        found = []
        for _ in range(state.messages):
            message = await subscription.next_msg(timeout=WITHIN_S)
            found.append((message.subject, message.data, dict(message.headers or {})))
        return found

    result: list[tuple[str, bytes, dict[str, str]]] = in_jetstream(server, read)
    return result
