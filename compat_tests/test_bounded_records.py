"""Batches whose records cost more than their bytes, on a broker that serves another client at the same time.

The tests assert work, not time: the CPU and memory that the broker used, and how often the other client was answered.
"""

from __future__ import annotations

import functools
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import zstandard

from compat_tests.harness import raw
from compat_tests.harness.broker import Broker
from compat_tests.harness.fixture_types import BrokerFactory
from compat_tests.harness.process_usage import cpu_seconds
from compat_tests.harness.raw import RawConnection, array, batch, good_batch, record, request, string, zigzag
from compat_tests.harness.topics import create_topic

pytestmark = pytest.mark.barnabas_only  # Kafka has threads and other limits

MB = 1 << 20
ZSTD = 4
NONE, INVALID_TIMESTAMP = 0, 32
LIST_OFFSETS = 2
PLAIN, COMPACTED, CONVERTED = "plain", "compacted", "converted"
NOW = int(time.time() * 1000)


@pytest.fixture
def broker(fresh_broker: BrokerFactory) -> Broker:
    broker = fresh_broker()
    create_topic(broker.bootstrap, PLAIN, 3)
    create_topic(broker.bootstrap, COMPACTED, 3, {"cleanup.policy": "compact"})
    create_topic(broker.bootstrap, CONVERTED, 1, {"compression.type": "gzip"})
    return broker


@functools.cache
def small_records(count: int) -> bytes:
    """A zstd batch of `count` records with a key, of ten bytes each."""
    return packed(
        b"".join(
            zigzag(len(body)) + body
            for body in (b"\0\0" + zigzag(delta) + b"\2k\2v\0" for delta in range(count))
        ),
        count,
    )


def packed(records: bytes, count: int, timestamp: int = NOW) -> bytes:
    """A compressed batch whose frame does not contain the uncompressed size."""
    stream = zstandard.ZstdCompressor().compressobj()
    frame = stream.compress(records) + stream.flush()
    return batch(frame, count, attributes=ZSTD, timestamp=timestamp)


class Beside:
    """Sends ApiVersions requests while other clients work, and records the broker's memory."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.answers = 0
        self.resident_bytes_max = 0

    def until(self, clients: Iterator[threading.Thread]) -> None:
        """Send requests until the threads of `clients` end."""
        threads = list(clients)
        for thread in threads:
            thread.start()
        with RawConnection(self._broker.bootstrap) as connection:
            while any(thread.is_alive() for thread in threads):
                assert raw.api_versions_v0(connection) == NONE
                self.answers += 1
                self.resident_bytes_max = max(self.resident_bytes_max, self._broker.resident_bytes())
        for thread in threads:
            thread.join()


def each(count: int, ask: Callable[[RawConnection, int], object], address: str) -> Iterator[threading.Thread]:
    """A client for each number, which asks once."""

    def run(number: int) -> None:
        with RawConnection(address, timeout=300) as connection:
            ask(connection, number)

    for number in range(count):
        yield threading.Thread(target=run, args=(number,))


def test_a_batch_too_far_ahead_is_refused_by_its_header(broker: Broker) -> None:
    """A request of 2.4 MB with three million records, which take seconds to decode."""
    far_ahead = packed(b"".join(record(b"", delta) for delta in range(1_000_000)), 1_000_000, NOW + 10**8)
    before = cpu_seconds(broker.pid)
    with RawConnection(broker.bootstrap) as connection:
        answers = raw.produce_many(connection, PLAIN, dict.fromkeys(range(3), far_ahead))
        assert answers == dict.fromkeys(range(3), (INVALID_TIMESTAMP, -1))
    assert cpu_seconds(broker.pid) - before < 1


@pytest.mark.parametrize("topic", [COMPACTED, CONVERTED])
def test_others_are_answered_while_records_are_read(broker: Broker, topic: str) -> None:
    many = small_records(500_000)
    results: list[tuple[int, int]] = []
    beside = Beside(broker)
    beside.until(
        each(3, lambda connection, _: results.append(raw.produce(connection, topic, many)), broker.bootstrap)
    )
    assert sorted(results) == [(NONE, 0), (NONE, 500_000), (NONE, 1_000_000)]
    assert beside.answers > 50


def test_timestamp_lookups_in_a_compression_bomb_use_bounded_memory(broker: Broker) -> None:
    """10 KB that unpack to 300 MB; a lookup in an unreadable batch answers with the batch's first offset."""
    bomb = packed(record(bytes(300 * MB)), 1)
    assert len(bomb) < 20_000
    with RawConnection(broker.bootstrap) as connection:
        assert raw.produce(connection, PLAIN, good_batch(b"before")) == (NONE, 0)
        assert raw.produce(connection, PLAIN, bomb) == (NONE, 1)
    results: list[tuple[int, int, int]] = []
    before = cpu_seconds(broker.pid), broker.resident_bytes()
    beside = Beside(broker)
    beside.until(each(8, lambda connection, _: results.append(look_up(connection, NOW)), broker.bootstrap))
    assert results == [(NONE, NOW, 1)] * 8
    assert beside.resident_bytes_max - before[1] < 2 * 64 * MB + 96 * MB
    assert cpu_seconds(broker.pid) - before[0] < 8


def look_up(connection: RawConnection, timestamp: int) -> tuple[int, int, int]:
    """ListOffsets v2: (error code, time, offset)."""
    partition = struct.pack(">iq", 0, timestamp)
    body = struct.pack(">ib", -1, 0) + array([string(PLAIN) + array([partition])])
    answer = connection.ask(request(LIST_OFFSETS, 2, body))
    error, found, offset = struct.unpack_from(">hqq", answer, 4 + 4 + 2 + len(PLAIN) + 4 + 4)
    return error, found, offset


def test_a_produce_of_many_partitions_lets_other_clients_in(broker: Broker) -> None:
    """The request names the same partition many times; each is answered, and other clients are answered meanwhile."""
    count = 19_000  # of at most 20,000
    data = good_batch(b"x")
    partition = struct.pack(">ii", 0, len(data)) + data
    body = string(None) + struct.pack(">hi", -1, 10_000) + array([string(PLAIN) + array([partition] * count)])
    sizes: list[int] = []
    beside = Beside(broker)
    beside.until(
        each(
            1, lambda connection, _: sizes.append(len(connection.ask(request(0, 7, body)))), broker.bootstrap
        )
    )
    assert sizes == [4 + 2 + len(PLAIN) + 4 + count * 30 + 4]
    assert beside.answers > 3  # one at most if the request were served without a break
    with RawConnection(broker.bootstrap) as connection:
        assert raw.fetch(connection, PLAIN, count)[:2] == (NONE, count)
