"""The size of a log: starts after a clean stop and after kill -9, and the first read, from its middle.

A large log is of zeros, whose blocks are given back to the file system while it grows: it has all its bytes, segments and indexes, and
takes little of the disk.
"""

from __future__ import annotations

import subprocess
import time
from typing import Final, NamedTuple

from compat_tests.bench import driver, prepared
from compat_tests.bench.growth.curves import Figures
from compat_tests.harness.broker import Broker
from compat_tests.harness.topics import create_topic

_LARGE_GB: Final = 20
_TOPIC = "growth-log"
_TIMEOUT_S = 600


class _Batch(NamedTuple):
    records: int
    data: bytes


def measure(broker: Broker, gigabytes: float) -> Figures:
    """One partition of this size. The broker runs."""
    is_large = gigabytes >= _LARGE_GB
    shape = (16, 64_000) if is_large else (1000, 1000)  # a record of 1 KB has no block of zeros
    batch = _Batch(shape[0], prepared.batch(*shape, zeros=is_large))  # 1 MB
    batches = int(gigabytes * 1e9 / len(batch.data))
    create_topic(broker.bootstrap, _TOPIC)
    for first in range(0, batches, 1000):
        _produce(broker, batch, first, min(1000, batches - first))
        if is_large:
            _release_zeros(broker)
    stopping = time.perf_counter()
    broker.stop(timeout=_TIMEOUT_S)
    stopped = time.perf_counter() - stopping
    clean = _start(broker)
    reading = time.perf_counter()
    _read(broker, batch, batches // 2)
    read = time.perf_counter() - reading
    memory = broker.resident_bytes()
    _produce(broker, batch, batches, 50)
    broker.kill()
    return {
        "clean stop, s": stopped,
        "start after a clean stop, s": clean,
        "the first record read, ms": read * 1e3,
        "memory after the start, MB": memory / 1e6,
        "start after kill -9, s": _start(broker),
    }


def _produce(broker: Broker, batch: _Batch, first: int, count: int) -> None:
    """`count` batches; `first` is how many there are."""
    first_offset = first * batch.records
    driver.produce_many(broker.bootstrap, _TOPIC, batch.data, batch.records, count, first_offset=first_offset)


def _release_zeros(broker: Broker) -> None:
    """In the last segments; the others have no blocks of zeros any more."""
    segments = sorted(broker.log_dir.glob(f"{_TOPIC}-0/*.log"))
    for segment in segments[-3:]:
        subprocess.run(["fallocate", "--dig-holes", segment], check=True)


def _read(broker: Broker, batch: _Batch, number: int) -> None:
    connection = driver.Connection(broker.bootstrap)
    response = connection.ask(prepared.fetch(_TOPIC, number * batch.records, len(batch.data)))
    assert prepared.fetched_error(_TOPIC, response) == 0
    assert len(response) > len(batch.data)
    connection.close()


def _start(broker: Broker) -> float:
    """Seconds from exec until the partition answers."""
    started = time.perf_counter()
    broker.start()
    driver.wait_until_served(broker.bootstrap, _TOPIC, _TIMEOUT_S)
    return time.perf_counter() - started
