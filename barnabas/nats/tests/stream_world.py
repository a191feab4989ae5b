"""A real nats-server with a stream, our client, and partitions in memory that a carrier fills; all in one loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

import nats

from barnabas.broker.partitions.partition import Partition
from barnabas.broker.tests.partition_managers import make_partition_manager
from barnabas.controller.metadata.image import MetadataDelta, MetadataImage, PartitionState, partition_record
from barnabas.nats.binding.binding import Binding
from barnabas.nats.binding.reader import read_binding
from barnabas.nats.client.client import NatsClient
from barnabas.nats.client.connection_settings import ConnectionSettings, parse_server
from barnabas.nats.jetstream.appender import StreamAppender
from barnabas.nats.jetstream.consumer import StreamConsumer
from barnabas.nats.jetstream.exactly_once import ExactlyOnce
from barnabas.runtime.asyncio_runtime import AsyncioRuntime
from barnabas.storage.log.log_config import LogConfig
from barnabas.storage.manager.manager import LogManager
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.messages.metadata_records import TopicRecord
from barnabas.wire.records import Record, iterate_records
from compat_tests.harness.eventually import eventually_async, stays_async
from compat_tests.harness.nats_server import NatsServer
from compat_tests.virtual.runtime import VirtualRuntime

T = TypeVar("T")
TOPIC_ID = b"t".ljust(16)
EXACT = {"nats.subjects": "a.>", "nats.mode": "jetstream"}


def binding(**configs: str) -> Binding:
    """`nats_start="new"` is nats.start."""
    found = read_binding("t", {**EXACT, **{name.replace("_", "."): value for name, value in configs.items()}})
    assert found is not None
    return found


class Partitions:
    """Node 1 and the partitions of a topic that it hosts, on a disk in memory, with today's clock. What the metadata
    says is scripted."""

    def __init__(self, replicas: list[int], count: int, properties: dict[str, str]) -> None:
        runtime = VirtualRuntime(start_ms=round(time.time() * 1000))
        self.manager = LogManager(
            MemoryDisk(), ["/logs"], runtime, config=LogConfig.from_properties(properties)
        )
        self.manager.open()
        self.partitions = make_partition_manager(self.manager, VirtualRuntime(), properties)
        self.image = MetadataImage()
        self.image.replay(TopicRecord(name="t", topic_id=TOPIC_ID), MetadataDelta())
        self.count = count
        self.states = [
            PartitionState(replicas=replicas, isr=replicas, leader=1, leader_epoch=0, partition_epoch=0)
            for _ in range(count)
        ]
        for index in range(count):
            self.change(index)

    def change(self, index: int, **fields: Any) -> None:
        old = self.states[index]
        values = {name: fields.get(name, getattr(old, name)) for name in ("replicas", "isr", "leader")}
        self.states[index] = PartitionState(
            **values,
            leader_epoch=old.leader_epoch + ("leader" in fields),
            partition_epoch=old.partition_epoch + 1,
        )
        self.image.replay(partition_record(TOPIC_ID, index, self.states[index]), MetadataDelta())
        self.partitions.metadata_changed(self.image, {TOPIC_ID: {index}}, set())

    def partition(self, index: int = 0) -> Partition:
        found = self.partitions.get("t", index)
        assert found is not None
        return found

    def records(self, index: int = 0) -> list[Record]:
        log = self.partition(index).log
        found: list[Record] = []
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            (region,) = log.read(offset, 1 << 20).regions
            data = region.read()
            header_end = 12 + int.from_bytes(data[8:12], "big")
            batch = list(iterate_records(data[:header_end], 1 << 20))
            found += batch
            offset = batch[-1].offset + 1
        return found


class StreamWorld:
    """`replicas` as the metadata has them; broker 1 leads, and others do not exist."""

    def __init__(
        self,
        server: NatsServer,
        partitions: int = 2,
        replicas: Iterable[int] = (1,),
        properties: dict[str, str] | None = None,
        **options: Any,
    ) -> None:
        self.server = server
        self.runtime = AsyncioRuntime()
        self.world = Partitions(list(replicas), partitions, properties or {})
        settings = ConnectionSettings(servers=(parse_server(server.url),), **options)
        self.client = NatsClient(self.runtime, settings, "streams", self._close)
        self.closers: list[Callable[[], object]] = []
        self.client.start()
        self.carriers: list[StreamConsumer] = []
        self.peer: Any = self.run(nats.connect(server.url))
        self.jetstream: Any = self.peer.jetstream(timeout=30)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runtime.loop.run_until_complete(asyncio.wait_for(work, 120))

    def _close(self) -> None:
        for closer in self.closers:
            closer()

    @property
    def leading(self) -> dict[int, Partition]:
        found = self.world.partitions.of_topic("t")
        return {index: partition for index, partition in sorted(found.items()) if partition.is_leader}

    def carrier(self, bound: Binding | None = None, **options: Any) -> ExactlyOnce:
        """One that is started."""
        bound = bound or binding()
        carrier = ExactlyOnce(self.runtime, self, bound, self.appender(bound), **options)
        self.carriers.append(carrier)
        carrier.start(self.leading)
        return carrier

    def appender(self, bound: Binding) -> StreamAppender:
        return StreamAppender(bound, "cluster", lambda: self.world.count)

    def add(self, name: str = "S", *subjects: str, **options: Any) -> None:
        self.run(self.jetstream.add_stream(name=name, subjects=list(subjects or ("a.>",)), **options))

    def publish(self, first: int, count: int, subject: str = "a.") -> None:
        async def run() -> None:
            for number in range(first, first + count):
                await self.jetstream.publish(f"{subject}{number % 7}", b"%d" % number)

        self.run(run())

    def until(self, reached: Callable[[], object], timeout_s: float = 60) -> None:
        """Wait for it, while the loop goes on."""
        self.run(
            eventually_async(reached, timeout_s, message=lambda: [carrier.state for carrier in self.carriers])
        )

    def stays(self, check: Callable[[], object], seconds: float = 0.1) -> None:
        """It is so now and for a while, in which the loop goes on."""
        self.run(stays_async(check, seconds))

    def records(self, index: int) -> list[Record]:
        return self.world.records(index)

    def count(self) -> int:
        return sum(self.world.partition(index).log.log_end_offset for index in range(self.world.count))

    def values(self) -> list[int]:
        """Of all records that were messages, sorted. Each partition is found to be in the stream's order."""
        values: list[int] = []
        for index in range(self.world.count):
            own = [int(record.value or b"") for record in self.records(index) if record.headers]
            assert own == sorted(own)
            values += own
        return sorted(values)

    def close(self) -> None:
        for carrier in self.carriers:
            carrier.stop()
        self.client.stop()
        self.run(self.peer.close())
        self.run(asyncio.sleep(0.01))  # transports that are closed go in the turns that follow
        self.runtime.close()
