"""A slow disk: producers of much wait for it, other clients do not.

The disk here is a real one whose writes take as long as the test says, and which writes nothing back before the
test lets it. Were it the loop that waits for that, the other client would never be answered.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.storage.disk import write_pressure
from barnabas.storage.disk.disk import File, RealDisk, RealFile
from barnabas.testing.external.raw_client import RawClient
from barnabas.wire.compression import Bytes
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record, build_batch
from compat_tests.harness.eventually import eventually
from compat_tests.harness.threaded_node import ThreadedNode

pytestmark = pytest.mark.sockets

PRODUCE, FETCH, CREATE_TOPICS, DELETE_TOPICS = 0, 1, 19, 20
LARGE_BYTES = 140_000


class SlowDisk(RealDisk):
    """Large appends take `write_s`; all appends to segments are noted in `order`, by topic. What is written back
    waits for `released`; `waiting` is set while a thread does. Only its own sleeps count as waits: on a busy machine every
    write may be slow."""

    def __init__(self) -> None:
        super().__init__()
        self.write_s = 0.0
        self.sleeps = 0
        self.order: list[str] = []
        self.released = threading.Event()
        self.waiting = threading.Event()
        self.loop_waited = False

    def waits(self) -> int:
        return self.sleeps

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> File:
        file = super().open(path, create=create, writable=writable)
        return SlowFile(self, path, file) if path.endswith(".log") else file


class SlowFile(RealFile):
    __slots__ = ("_disk", "_topic")

    def __init__(self, disk: SlowDisk, path: str, file: File) -> None:
        super().__init__(os.dup(file.fileno()))
        self._disk = disk
        self._topic = Path(path).parent.name.partition("-")[0]

    def pwrite(self, data: Bytes, position: int) -> int:
        if len(data) >= LARGE_BYTES and self._disk.write_s:
            time.sleep(self._disk.write_s)  # the slow disk
            self._disk.sleeps += 1
        self._disk.order.append(self._topic)
        return super().pwrite(data, position)

    def write_back(self, position: int, count: int) -> None:
        assert position >= 0
        assert count > 0
        if not threading.current_thread().name.startswith("barnabas-worker"):
            self._disk.loop_waited = True
        self._disk.waiting.set()
        assert self._disk.released.wait(20)
        super().write_back(position, count)


class Broker(ThreadedNode):
    def __init__(self, directory: Path) -> None:
        self.disk = SlowDisk()
        super().__init__(
            directory, {"socket.receive.buffer.bytes": "4000000"}, self.disk
        )  # a bulk producer is always ahead

    def stop(self) -> None:
        self.disk.released.set()
        super().stop()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("bulk", "small")]
    broker.client().ask(CREATE_TOPICS, 5, CreateTopicsRequest(topics=topics, timeout_ms=5000))
    yield broker
    broker.stop()
    assert not broker.disk.loop_waited


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


def test_others_are_served_between_the_requests_of_a_bulk_producer(broker: Broker) -> None:
    bulk, other = broker.client(), broker.client()
    produce(other, "small", b"first")
    broker.disk.released.set()
    broker.disk.write_s = 0.005  # so that the bulk producer's next request has always arrived
    request = bulk.frame(PRODUCE, 9, produce_request("bulk", bytes(LARGE_BYTES)))
    requests = 60

    def send() -> None:
        for _ in range(requests):
            bulk.socket.sendall(request)

    sender = threading.Thread(target=send)
    sender.start()
    eventually(lambda: len(broker.disk.order) > 3)
    waited = []
    for number in range(10):
        before = len(broker.disk.order)
        produce(other, "small", b"%d" % number)
        waited.append(broker.disk.order.index("small", before) - before)
    sender.join()
    for _ in range(requests):
        bulk.receive(PRODUCE, 9)
    assert max(waited) <= 4


# -- a disk that is behind


def fetch(client: RawClient, topic: str, offset: int) -> bytes:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 21)
    topics = [FetchTopic(topic=topic, partitions=[wanted])]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 24, topics=topics)
    result = client.ask(FETCH, 12, request).responses[0].partitions[0]
    assert result.error_code == 0
    assert result.high_watermark > offset
    return bytes(result.records)


def is_answered(client: RawClient) -> bool:
    return bool(select.select([client.socket], [], [], 0)[0])


def produce_until_held_back(broker: Broker, bulk: RawClient, acks: int = 1) -> int:
    """Produce megabytes to a slow disk; the offset of the one that is not acknowledged."""
    broker.disk.write_s = write_pressure.SLOW_WRITE_S * 1.2
    for offset in range(100):
        request = produce_request("bulk", bytes([offset]) * 1_000_000, acks)
        if acks:
            bulk.socket.sendall(bulk.frame(PRODUCE, 9, request))
        else:
            bulk.socket.sendall(bulk.frame(PRODUCE, 9, request) + bulk.frame(PRODUCE, 9, SMALL))
        eventually(lambda: is_answered(bulk) or broker.disk.waiting.is_set())
        if broker.disk.waiting.is_set():
            return offset
        bulk.receive(PRODUCE, 9)
    raise AssertionError("never held back")


SMALL = produce_request("small", b"behind")


def check_that_others_are_served(broker: Broker, other: RawClient) -> None:
    for number in range(20):
        offset = produce(other, "small", b"hot %d" % number)
        assert b"hot %d" % number in fetch(other, "small", offset)
        produce(other, "bulk", b"few bytes")  # for the same log
    assert not broker.disk.released.is_set()


def test_a_bulk_producer_waits_for_the_disk_and_the_others_do_not(broker: Broker) -> None:
    bulk, other = broker.client(), broker.client()
    held = produce_until_held_back(broker, bulk)
    assert 8 <= held < 20
    check_that_others_are_served(broker, other)
    assert bytes([held]) * 1_000_000 in fetch(other, "bulk", held)
    assert not is_answered(bulk)
    broker.disk.released.set()
    result = bulk.receive(PRODUCE, 9)[1].responses[0].partition_responses[0]
    assert (result.error_code, result.base_offset) == (0, held)


def test_acks_0_holds_the_connection(broker: Broker) -> None:
    bulk, other = broker.client(), broker.client()
    produce_until_held_back(broker, bulk, acks=0)
    check_that_others_are_served(broker, other)
    assert not is_answered(bulk)
    broker.disk.released.set()
    result = bulk.receive(PRODUCE, 9)[1].responses[0]
    assert (result.name, result.partition_responses[0].error_code) == ("small", 0)


def test_producers_wait_no_more_once_the_disk_is_fast_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_pressure, "_PRESSURE_S", 0.2)
    bulk = broker.client()
    produce_until_held_back(broker, bulk)
    broker.disk.released.set()
    broker.disk.write_s = 0.0
    bulk.receive(PRODUCE, 9)
    time.sleep(0.3)  # longer than _PRESSURE_S: that time passes is the input
    for _ in range(20):  # until the backlog is written
        produce(bulk, "bulk", bytes(1_000_000))
    broker.disk.released.clear()
    for _ in range(20):
        produce(bulk, "bulk", bytes(1_000_000))


def test_a_producer_that_leaves_while_it_is_held_back(broker: Broker) -> None:
    bulk, other, again = broker.client(), broker.client(), broker.client()
    held = produce_until_held_back(broker, bulk)
    bulk.socket.close()
    check_that_others_are_served(broker, other)
    again.socket.sendall(again.frame(PRODUCE, 9, produce_request("bulk", bytes(1_000_000))))
    broker.disk.released.set()
    assert again.receive(PRODUCE, 9)[1].responses[0].partition_responses[0].error_code == 0
    assert bytes([held]) * 1_000_000 in fetch(other, "bulk", held)


def test_a_topic_that_is_deleted_while_its_producer_is_held_back(broker: Broker) -> None:
    bulk, other = broker.client(), broker.client()
    held = produce_until_held_back(broker, bulk)
    deleted = other.ask(DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["bulk"], timeout_ms=5000))
    assert deleted.responses[0].error_code == 0
    produce(other, "small", b"goes on")
    broker.disk.released.set()
    result = bulk.receive(PRODUCE, 9)[1].responses[0].partition_responses[0]
    assert (result.error_code, result.base_offset) == (0, held)
