"""Latency of one record: to its acknowledgement, and to a waiting consumer."""

from __future__ import annotations

import time
from collections.abc import Sequence

from compat_tests.bench import prepared
from compat_tests.bench.driver import Connection


def acknowledged(address: str, topic: str, batch: bytes, samples: int, acks: int) -> list[float]:
    """Seconds from sending to the acknowledgement, one request in flight.

    With acks=0 there is none: the time is to the answer of a small request sent right after it, which the broker
    serves after the produce.
    """
    connection = Connection(address)
    request = prepared.produce(topic, batch, acks)
    if acks == 0:
        request += prepared.api_versions()
    latencies: list[float] = []
    for number in range(samples):
        started = time.perf_counter()
        response = connection.ask(request)
        latencies.append(time.perf_counter() - started)
        if acks:
            assert prepared.produced(topic, response) == (0, number)
    connection.close()
    return latencies


def arrived(address: str, topic: str, batch: bytes, samples: int) -> list[float]:
    """Seconds from sending a record to its arrival at a consumer on another connection, whose fetch waits."""
    producer, consumer = Connection(address), Connection(address)
    request = prepared.produce(topic, batch)
    latencies: list[float] = []
    for offset in range(samples):
        consumer.send(prepared.fetch(topic, offset, 1 << 20, max_wait_ms=10_000))
        time.sleep(0.0005)  # let the fetch arrive and wait
        started = time.perf_counter()
        producer.send(request)
        response = consumer.receive()
        latencies.append(time.perf_counter() - started)
        assert prepared.fetched_error(topic, response) == 0
        assert len(response) > len(batch), "the fetch came back empty"
        assert prepared.produced(topic, producer.receive()) == (0, offset)
    producer.close()
    consumer.close()
    return latencies


def percentile(samples: Sequence[float], fraction: float) -> float:
    """The sample below which that fraction of them lies."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))]
