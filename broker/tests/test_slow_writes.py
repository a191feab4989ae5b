"""A disk that takes its time to write: who writes much waits for it, and nobody else does.

The disk here is a real one whose writes take as long as the test says.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from barnabas.broker.asyncio_runtime import AsyncioRuntime
from barnabas.broker.config import BrokerConfig
from barnabas.broker.node import Node
from barnabas.storage.disk import File, RealDisk
from barnabas.wire.compression import Bytes
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.record_batch import Record, build_batch

from barnabas.testing.raw_client import RawClient

PRODUCE, CREATE_TOPICS = 0, 19
LARGE_BYTES = 140_000


class SlowDisk(RealDisk):
    """Large appends take `write_s`; all appends to segments are noted in `order`, by topic."""

    def __init__(self) -> None:
        super().__init__()
        self.write_s = 0.0
        self.order: list[str] = []

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> File:
        file = super().open(path, create=create, writable=writable)
        return SlowFile(self, path, file) if path.endswith(".log") else file


class SlowFile:
    def __init__(self, disk: SlowDisk, path: str, file: File) -> None:
        self._disk = disk
        self._topic = Path(path).parent.name.partition("-")[0]
        self._file = file

    def pwrite(self, data: Bytes, position: int) -> int:
        if len(data) >= LARGE_BYTES:
            time.sleep(self._disk.write_s)
        self._disk.order.append(self._topic)
        return self._file.pwrite(data, position)

    def pwritev(self, buffers: Sequence[Bytes], position: int) -> int:
        return self._file.pwritev(buffers, position)

    def pread(self, count: int, position: int) -> bytes:
        return self._file.pread(count, position)

    def pread_now(self, count: int, position: int) -> bytes:
        return self._file.pread_now(count, position)

    def is_cached(self, position: int, count: int) -> bool:
        return self._file.is_cached(position, count)

    def load(self, position: int, count: int) -> None:
        self._file.load(position, count)

    def send_to(self, socket_descriptor: int, position: int, count: int) -> int:
        return self._file.send_to(socket_descriptor, position, count)

    def fileno(self) -> int:
        return self._file.fileno()

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def sync(self) -> None:
        self._file.sync()


class Broker:
    def __init__(self, directory: Path) -> None:
        self.disk = SlowDisk()
        self.runtime = AsyncioRuntime()
        properties = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(directory),
            "socket.receive.buffer.bytes": "4000000",  # a bulk producer is always ahead
        }
        self.node = Node(BrokerConfig.from_properties(properties), self.runtime, self.disk)
        self.node.start()
        self._thread = threading.Thread(target=self.runtime.run)
        self._thread.start()
        self._clients: list[RawClient] = []

    def client(self) -> RawClient:
        self._clients.append(RawClient(self.node.endpoints[0].port))
        return self._clients[-1]

    def stop(self) -> None:
        for client in self._clients:
            client.socket.close()
        self.runtime.loop.call_soon_threadsafe(self.runtime.stop)
        self._thread.join()
        self.node.stop()
        self.runtime.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("bulk", "small")]
    broker.client().ask(CREATE_TOPICS, 5, CreateTopicsRequest(topics=topics, timeout_ms=5000))
    yield broker
    broker.stop()


def produce_request(topic: str, value: bytes, acks: int = 1) -> ProduceRequest:
    batch = build_batch([Record(offset=0, timestamp=1_700_000_000_000, key=None, value=value, headers=[])])
    data = PartitionProduceData(index=0, records=batch)
    return ProduceRequest(
        acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )


def produce(client: RawClient, topic: str, value: bytes) -> int:
    result = client.ask(PRODUCE, 9, produce_request(topic, value)).responses[0].partition_responses[0]
    assert result.error_code == 0
    return int(result.base_offset)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_others_are_served_between_the_requests_of_a_bulk_producer(broker: Broker) -> None:
    bulk, other = broker.client(), broker.client()
    produce(other, "small", b"first")
    broker.disk.write_s = 0.01  # so that the bulk producer's next request has always arrived
    request = bulk.frame(PRODUCE, 9, produce_request("bulk", bytes(LARGE_BYTES)))
    requests = 60

    def send() -> None:
        for _ in range(requests):
            bulk.socket.sendall(request)

    sender = threading.Thread(target=send)
    sender.start()
    wait_until(lambda: len(broker.disk.order) > 3)
    waited = []
    for number in range(10):
        before = len(broker.disk.order)
        produce(other, "small", b"%d" % number)
        waited.append(broker.disk.order.index("small", before) - before)
    sender.join()
    for _ in range(requests):
        bulk.receive(PRODUCE, 9)
    assert max(waited) <= 4
