"""Records that are not in memory: their readers wait for the disk, and no other client does.

The disk here reports all that is cold as not in memory, and blocks a read of it until
the test lets it go on. Were that the loop, the other client would never be answered.
"""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.storage.disk import page_cache
from barnabas.storage.disk.disk import File, RealDisk, RealFile
from barnabas.testing.external.raw_client import RawClient
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record, build_batch
from compat_tests.harness.eventually import eventually
from compat_tests.harness.threaded_node import ThreadedNode

pytestmark = pytest.mark.sockets

PRODUCE, FETCH, LIST_OFFSETS, CREATE_TOPICS = 0, 1, 2, 19
FIRST_TIMESTAMP = 1_700_000_000_000
TOPIC = "cold"
BATCH_BYTES = 180_000
BATCHES_IN_SEGMENT = 5
BATCHES = 20


class SlowDisk(RealDisk):
    """`cold(path)` says whether a file's content is not in memory; loading it takes until `released`."""

    def __init__(self) -> None:
        super().__init__()
        self.cold: Callable[[str], bool] = lambda path: False
        self.released = threading.Event()
        self.waiting = threading.Event()
        self.fails = False
        self.loop_waited = False
        self._warm: set[str] = set()

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> SlowFile:
        return SlowFile(self, path, super().open(path, create=create, writable=writable))

    def is_cold(self, path: str) -> bool:
        return path not in self._warm and self.cold(path)

    def read(self, path: str) -> None:
        """What a read does that has to wait."""
        if self.is_cold(path):
            if not threading.current_thread().name.startswith("barnabas-worker"):
                self.loop_waited = True
            self.waiting.set()
            assert self.released.wait(20)
            if self.fails:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            self._warm.add(path)

    def grow_cold(self, *suffixes: str) -> None:
        """From now on the first segment's files with these suffixes have to be read from the disk."""
        self._warm.clear()
        self.cold = lambda path: path.endswith(tuple(f"{TOPIC}-0/{0:020d}{suffix}" for suffix in suffixes))


class SlowFile(RealFile):
    __slots__ = ("_disk", "_path")

    def __init__(self, disk: SlowDisk, path: str, file: File) -> None:
        super().__init__(os.dup(file.fileno()))
        self._disk = disk
        self._path = path

    def pread(self, count: int, position: int) -> bytes:
        self._disk.read(self._path)
        return super().pread(count, position)

    def pread_now(self, count: int, position: int) -> bytes:
        if self._disk.is_cold(self._path):
            raise BlockingIOError
        return super().pread(count, position)

    def pread_into_now(self, buffer: memoryview, position: int) -> int:
        data = self.pread_now(len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def is_cached(self, position: int, count: int) -> bool:
        return not self._disk.is_cold(self._path)

    def load(self, position: int, count: int) -> None:
        self._disk.read(self._path)

    def send_to(self, socket_descriptor: int, position: int, count: int) -> int:
        self._disk.read(self._path)
        return super().send_to(socket_descriptor, position, count)


class Broker(ThreadedNode):
    def __init__(self, directory: Path) -> None:
        self.disk = SlowDisk()
        super().__init__(directory, {"log.segment.bytes": "1048576"}, self.disk)

    def stop(self) -> None:
        self.disk.released.set()
        super().stop()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    client = broker.client()
    topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
    client.ask(CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=5000))
    for number in range(BATCHES):
        assert produce(client, bytes([number]) * BATCH_BYTES) == number
    partition = broker.node.services.partitions.get(TOPIC, 0)
    assert partition is not None
    log = partition.log
    eventually(
        lambda: log.flusher.recovery_point >= BATCHES_IN_SEGMENT
    )  # from then on its index is on the disk alone
    yield broker
    broker.stop()
    assert not broker.disk.loop_waited


def batch_of(value: bytes) -> bytes:
    return build_batch([Record(offset=0, timestamp=FIRST_TIMESTAMP, key=None, value=value, headers=[])])


def produce_request(value: bytes) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=batch_of(value))
    return ProduceRequest(
        acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])]
    )


def produce(client: RawClient, value: bytes) -> int:
    answer = client.ask(PRODUCE, 9, produce_request(value))
    result = answer.responses[0].partition_responses[0]
    assert result.error_code == 0
    return int(result.base_offset)


def fetch_request(offset: int) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 21)
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 24,
        topics=[FetchTopic(topic=TOPIC, partitions=[wanted])],
    )


def one_partition(answer: Any) -> Any:
    return answer.responses[0].partitions[0]


def is_answered(client: RawClient) -> bool:
    return bool(select.select([client.socket], [], [], 0)[0])


def check_that_others_are_served(broker: Broker, other: RawClient) -> None:
    """While another client waits for the disk."""
    assert broker.disk.waiting.wait(10)
    for number in range(20):
        offset = produce(other, b"hot %d" % number)
        hot = one_partition(other.ask(FETCH, 12, fetch_request(offset)))
        assert b"hot %d" % number in bytes(hot.records)
    assert not broker.disk.released.is_set()


def starts_with_batch(answer: Any, number: int) -> bool:
    return bytes([number]) * BATCH_BYTES in bytes(one_partition(answer).records)[: BATCH_BYTES + 100]


@pytest.mark.parametrize("suffixes", [(".index",), (".log",), (".index", ".log")])
def test_who_reads_cold_records_waits_and_the_others_do_not(
    broker: Broker, suffixes: tuple[str, ...]
) -> None:
    reader, other = broker.client(), broker.client()
    broker.disk.grow_cold(*suffixes)
    reader.socket.sendall(
        reader.frame(FETCH, 12, fetch_request(2)) + reader.frame(PRODUCE, 9, produce_request(b"behind"))
    )
    check_that_others_are_served(broker, other)
    assert not is_answered(reader)
    broker.disk.released.set()
    correlation_id, answer = reader.receive(FETCH, 12)
    assert correlation_id == 1
    assert starts_with_batch(answer, 2)
    assert reader.receive(PRODUCE, 9)[0] == 2


def test_records_that_grow_cold_while_a_slow_reader_takes_them(broker: Broker) -> None:
    reader, other = broker.client(), broker.client()
    size = BATCHES_IN_SEGMENT * BATCH_BYTES
    for _ in range(12):  # more than the sockets hold: the rest waits in the broker
        reader.socket.sendall(reader.frame(FETCH, 12, fetch_request(0)))
    assert one_partition(other.ask(FETCH, 12, fetch_request(BATCHES))).error_code == 0
    broker.disk.grow_cold(".log", ".index")
    received = bytearray(reader.receive_bytes(4))
    while not broker.disk.waiting.is_set():
        if is_answered(reader):
            received += reader.socket.recv(1 << 16)
    check_that_others_are_served(broker, other)
    broker.disk.released.set()
    frame_bytes = 4 + int.from_bytes(received[:4], "big")
    assert frame_bytes > size
    received += reader.receive_bytes(12 * frame_bytes - len(received))
    records = received[frame_bytes - size : frame_bytes]
    for end in range(frame_bytes, len(received) + 1, frame_bytes):
        assert received[end - size : end] == records


def test_a_cold_region_that_can_not_be_read_costs_its_reader_the_connection(broker: Broker) -> None:
    reader, other = broker.client(), broker.client()
    broker.disk.fails = True
    broker.disk.grow_cold(".log")
    reader.socket.sendall(reader.frame(FETCH, 12, fetch_request(0)))
    check_that_others_are_served(broker, other)
    broker.disk.released.set()
    with pytest.raises((EOFError, ConnectionResetError)):
        reader.receive(FETCH, 12)
    assert produce(other, b"goes on") == BATCHES + 20


def test_a_client_that_leaves_while_a_thread_reads_for_it(broker: Broker) -> None:
    reader, other = broker.client(), broker.client()
    broker.disk.grow_cold(".log", ".index")
    reader.socket.sendall(reader.frame(FETCH, 12, fetch_request(2)))
    assert broker.disk.waiting.wait(10)
    reader.socket.close()
    check_that_others_are_served(broker, other)
    broker.disk.released.set()
    assert starts_with_batch(other.ask(FETCH, 12, fetch_request(2)), 2)


def test_looking_for_a_time_in_cold_segments(broker: Broker) -> None:
    reader, other = broker.client(), broker.client()
    broker.disk.grow_cold(".log", ".index", ".timeindex")
    wanted = ListOffsetsPartition(partition_index=0, timestamp=0)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=TOPIC, partitions=[wanted])])
    reader.socket.sendall(reader.frame(LIST_OFFSETS, 5, request))
    check_that_others_are_served(broker, other)
    assert not is_answered(reader)
    broker.disk.released.set()
    found = reader.receive(LIST_OFFSETS, 5)[1].topics[0].partitions[0]
    assert (found.error_code, found.offset, found.timestamp) == (0, 0, FIRST_TIMESTAMP)


def test_a_fetch_over_many_cold_partitions(broker: Broker) -> None:
    reader, other = broker.client(), broker.client()
    count = 40
    topic = CreatableTopic(name="many", num_partitions=count, replication_factor=1)
    other.ask(CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=5000))
    data = [PartitionProduceData(index=index, records=batch_of(b"many")) for index in range(count)]
    topics = [TopicProduceData(name="many", partition_data=data)]
    for _ in range(2):
        other.ask(PRODUCE, 9, ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics))
    rolled = threading.Event()
    broker.runtime.call_soon_threadsafe(lambda: roll_all(broker, "many", rolled))
    assert rolled.wait(10)
    broker.disk.cold = lambda path: "/many-" in path and path.endswith(f"{0:020d}.log")
    wanted = [
        FetchPartition(partition=index, fetch_offset=1, partition_max_bytes=1000) for index in range(count)
    ]
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=1 << 24, topics=[FetchTopic(topic="many", partitions=wanted)]
    )
    reader.socket.sendall(reader.frame(FETCH, 12, request))
    check_that_others_are_served(broker, other)
    assert not is_answered(reader)
    broker.disk.released.set()
    answered = reader.receive(FETCH, 12)[1].responses[0].partitions
    assert [b"many" in bytes(one.records) for one in answered] == [True] * count


def roll_all(broker: Broker, topic: str, done: threading.Event) -> None:
    for partition in broker.node.services.partitions.all():
        if partition.topic == topic:
            partition.log.roll()
    done.set()


# -- the page cache itself


@pytest.fixture
def cached_file(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20))
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    yield descriptor
    os.close(descriptor)


def test_what_was_written_is_in_memory(cached_file: int) -> None:
    assert page_cache.is_cached(cached_file, 0, 1 << 20)
    assert page_cache.is_cached(cached_file, 12345, 1)
    assert page_cache.read_now(cached_file, 100, 50) == os.pread(cached_file, 100, 50)
    assert page_cache.read_now(cached_file, 100, (1 << 20) - 10) == os.pread(cached_file, 10, (1 << 20) - 10)


@pytest.mark.parametrize("with_cachestat", [True, False])
def test_what_the_kernel_dropped_is_not_until_it_is_loaded(
    cached_file: int, with_cachestat: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_cachestat:
        monkeypatch.setattr(page_cache, "_cached_pages", page_cache._unknown_pages)
    # A look that finds a page cold may have the kernel load it: with RANDOM that page alone, without read-ahead. So each
    # page is looked at once after it was dropped. The kernel keeps a page that it is busy with: then it is dropped again.
    os.posix_fadvise(cached_file, 0, 0, os.POSIX_FADV_RANDOM)

    def drop() -> None:
        os.posix_fadvise(cached_file, 0, 0, os.POSIX_FADV_DONTNEED)

    def is_refused(position: int) -> bool:
        drop()
        try:
            page_cache.read_now(cached_file, 100, position)
        except BlockingIOError:
            return True
        return False

    def is_cold(position: int, count: int) -> bool:
        drop()
        return not page_cache.is_cached(cached_file, position, count)

    if not is_cold(0, 1 << 20):
        pytest.skip("this file system keeps its pages, or does not say")
    eventually(lambda: is_cold(512 * 1024, 4096))
    eventually(lambda: is_refused(900_000))
    page_cache.load(cached_file, 0, 1 << 20)
    assert page_cache.is_cached(cached_file, 0, 1 << 20)
    assert len(page_cache.read_now(cached_file, 100, 900_000)) == 100
