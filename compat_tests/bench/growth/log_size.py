"""The size of a log: starts after a clean stop and after kill -9, and the first read, from its middle."""

from __future__ import annotations

import time

from compat_tests.bench import driver, prepared
from compat_tests.bench.growth.curves import Figures
from compat_tests.harness.broker import Broker
from compat_tests.harness.topics import create_topic

_RECORDS = 1000
_BATCH = prepared.batch(_RECORDS, 1000)  # 1 MB
_TOPIC = "growth-log"
_TIMEOUT_S = 600


def measure(broker: Broker, gigabytes: float) -> Figures:
    """One partition of this size. The broker runs."""
    batches = int(gigabytes * 1e9 / len(_BATCH))
    create_topic(broker.bootstrap, _TOPIC)
    driver.produce_many(broker.bootstrap, _TOPIC, _BATCH, _RECORDS, batches)
    stopping = time.perf_counter()
    broker.stop(timeout=_TIMEOUT_S)
    stopped = time.perf_counter() - stopping
    clean = _start(broker)
    reading = time.perf_counter()
    _read(broker, batches // 2 * _RECORDS)
    read = time.perf_counter() - reading
    memory = broker.resident_bytes()
    driver.produce_many(broker.bootstrap, _TOPIC, _BATCH, _RECORDS, 50, first_offset=batches * _RECORDS)
    broker.kill()
    return {
        "clean stop, s": stopped,
        "start after a clean stop, s": clean,
        "the first record read, ms": read * 1e3,
        "memory after the start, MB": memory / 1e6,
        "start after kill -9, s": _start(broker),
    }


def _read(broker: Broker, offset: int) -> None:
    connection = driver.Connection(broker.bootstrap)
    response = connection.ask(prepared.fetch(_TOPIC, offset, len(_BATCH)))
    assert prepared.fetched_error(_TOPIC, response) == 0
    assert len(response) > len(_BATCH)
    connection.close()


def _start(broker: Broker) -> float:
    """Seconds from exec until the partition answers."""
    started = time.perf_counter()
    broker.start()
    driver.wait_until_served(broker.bootstrap, _TOPIC, _TIMEOUT_S)
    return time.perf_counter() - started
