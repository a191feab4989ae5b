"""What is measured, in one round against one broker. Each workload gets a topic of its own, deleted afterwards.

MB and GB are 10^6 and 10^9 bytes of record batches; CPU is what the broker's process used, all its threads.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs leave NewTopic out
    AdminClient,
    NewTopic,
)

from compat_tests.bench import driver, prepared
from compat_tests.harness.broker import Broker

Measures = dict[str, float]

_LARGE = prepared.batch(1000, 1000)  # 1 MB
_MEDIUM = prepared.batch(16, 1000)  # 16 KB
_KILOBYTE = prepared.batch(1, 1000)
_SMALL = prepared.batch(1, 100)
_TICKS = os.sysconf("SC_CLK_TCK")
_topic_number = iter(range(1_000_000))


def cpu_seconds(pid: int) -> float:
    """User and system time of the process, of all its threads, living and ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@functools.cache
def _admin(bootstrap: str) -> AdminClient:
    """One client for each broker, and a quiet one: that a broker stops in the end is no news."""
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})


@contextmanager
def topic_of(broker: Broker) -> Iterator[str]:
    """A new topic with one partition, gone again soon afterwards.

    Its pages go back to the system before the next round: on a virtual machine, memory that is touched for
    the first time can cost several times what the broker does, and would hide it.
    """
    name = f"bench-{next(_topic_number)}"
    admin = _admin(broker.bootstrap)
    topic = NewTopic(name, 1, 1, config={"file.delete.delay.ms": "100", "retention.ms": "-1"})
    admin.create_topics([topic])[name].result(30)
    driver.wait_until_served(broker.bootstrap, name)
    yield name
    admin.delete_topics([name])[name].result(30)


def large_batches(broker: Broker, scale: float) -> Measures:
    """1 MB batches in, acks=1, 5 in flight; then out again, one a request."""
    requests = max(50, int(1500 * scale))
    volume = requests * len(_LARGE)
    with topic_of(broker) as topic:
        before = cpu_seconds(broker.pid)
        produced = driver.produce_many(broker.bootstrap, topic, _LARGE, 1000, requests, 5)
        between = cpu_seconds(broker.pid)
        fetched = driver.fetch_many(broker.bootstrap, topic, len(_LARGE), 1000, requests, 5)
        after = cpu_seconds(broker.pid)
    return {
        "produce 1 MB batches, MB/s": volume / produced / 1e6,
        "produce 1 MB batches, CPU-s/GB": (between - before) / volume * 1e9,
        "fetch 1 MB a request, MB/s": volume / fetched / 1e6,
        "fetch 1 MB a request, CPU-s/GB": (after - between) / volume * 1e9,
    }


def medium_batches(broker: Broker, scale: float) -> Measures:
    """16 KB batches, acks=1, 5 in flight."""
    requests = max(500, int(20_000 * scale))
    volume = requests * len(_MEDIUM)
    with topic_of(broker) as topic:
        before = cpu_seconds(broker.pid)
        seconds = driver.produce_many(broker.bootstrap, topic, _MEDIUM, 16, requests, 5)
        used = cpu_seconds(broker.pid) - before
    return {
        "produce 16 KB batches, MB/s": volume / seconds / 1e6,
        "produce 16 KB batches, CPU-s/GB": used / volume * 1e9,
    }


def small_requests(broker: Broker, scale: float) -> Measures:
    """One record of 100 B a request, 10 connections with 5 in flight each."""
    requests = max(2000, int(60_000 * scale))
    with topic_of(broker) as topic:
        before = cpu_seconds(broker.pid)
        seconds = driver.produce_small(broker.bootstrap, topic, _SMALL, requests, 10, 5)
        used = cpu_seconds(broker.pid) - before
    return {
        "produce 100 B, 10 connections, requests/s": requests / seconds,
        "produce 100 B, 10 connections, CPU us each": used / requests * 1e6,
    }


def latencies(broker: Broker, scale: float) -> Measures:
    """One record of 1 KB at a time: to its acknowledgement, and to a waiting consumer."""
    with topic_of(broker) as topic:
        acknowledged = driver.produce_latencies(
            broker.bootstrap, topic, _KILOBYTE, max(200, int(4000 * scale))
        )
    with topic_of(broker) as topic:
        arrived = driver.produce_to_fetch_latencies(
            broker.bootstrap, topic, _KILOBYTE, max(100, int(1000 * scale))
        )
    return {
        "produce 1 KB, one in flight, p50 ms": driver.percentile(acknowledged, 0.5) * 1e3,
        "produce 1 KB, one in flight, p99 ms": driver.percentile(acknowledged, 0.99) * 1e3,
        "produce to fetch, p50 ms": driver.percentile(arrived, 0.5) * 1e3,
        "produce to fetch, p99 ms": driver.percentile(arrived, 0.99) * 1e3,
    }


ROUND: tuple[Callable[[Broker, float], Measures], ...] = (
    large_batches,
    medium_batches,
    small_requests,
    latencies,
)
