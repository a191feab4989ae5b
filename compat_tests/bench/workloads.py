"""The workloads of one round against one broker. Each has a topic of its own, deleted afterwards.

MB and GB are 10^6 and 10^9 bytes of record batches; CPU is that of the broker's process, all its threads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs leave NewTopic out
    AdminClient,
    NewTopic,
)

from compat_tests.bench import driver, latency, prepared, transactions
from compat_tests.bench.floor import Floor
from compat_tests.harness.broker import Broker
from compat_tests.harness.process_usage import cpu_seconds

Measures = dict[str, float]
System: TypeAlias = Broker | Floor
Workload = Callable[[System, float], Measures]

_ACKS = {1: "acks=1", -1: "acks=all"}
_LARGE = prepared.batch(1000, 1000)  # 1 MB
# name, records of 1 KB in a batch, batches of a full-scale run
_SIZES = (("1 MB", 1000, 400), ("64 KB", 64, 4000), ("16 KB", 16, 8000))
_KILOBYTE = prepared.batch(1, 1000)
_SMALL = prepared.batch(1, 100)
_topic_number = iter(range(1_000_000))


@functools.cache
def _admin(bootstrap: str) -> AdminClient:
    """One client for each broker, without a log, as it would report that a broker stops at the end."""
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})


@contextmanager
def topic_of(broker: System, partitions: int = 1) -> Iterator[str]:
    """A new topic, deleted soon afterwards.

    Its pages return to the system before the next round: on a virtual machine the first access to memory can cost
    several times as much as the broker's own work.
    """
    if isinstance(broker, Floor):
        yield broker.new_topic()
        return
    name = f"bench-{next(_topic_number)}"
    admin = _admin(broker.bootstrap)
    topic = NewTopic(name, partitions, 1, config={"file.delete.delay.ms": "100"})
    admin.create_topics([topic])[name].result(30)
    driver.wait_until_served(broker.bootstrap, name)
    yield name
    admin.delete_topics([name])[name].result(30)


def rates(name: str, volume: int, seconds: float, cpu: float) -> Measures:
    return {f"{name}, MB/s": volume / seconds / 1e6, f"{name}, CPU-s/GB": cpu / volume * 1e9}


def produce_and_fetch(broker: System, scale: float) -> Measures:
    """Produce batches of every size over 1 and 10 connections, acks=1 and all; then fetch them, one a request."""
    measures: Measures = {}
    for size, records, full in _SIZES:
        batch = prepared.batch(records, 1000)
        requests = max(50, int(full * scale)) // 10 * 10
        volume = requests * len(batch)
        for acks, promise in _ACKS.items():
            for connections in (1, 10):
                with topic_of(broker) as topic:
                    before = cpu_seconds(broker.pid)
                    seconds = driver.produce_many(
                        broker.bootstrap, topic, batch, records, requests, acks=acks, connections=connections
                    )
                    used = cpu_seconds(broker.pid) - before
                    many = "10 connections" if connections > 1 else "1 connection"
                    measures |= rates(f"produce {size}, {promise}, {many}", volume, seconds, used)
                    if acks == 1 and connections == 1 and size != "16 KB":
                        before = cpu_seconds(broker.pid)
                        seconds = driver.fetch_many(broker.bootstrap, topic, len(batch), records, requests, 5)
                        used = cpu_seconds(broker.pid) - before
                        measures |= rates(f"fetch {size} a request", volume, seconds, used)
    return measures


def tail(broker: System, scale: float) -> Measures:
    """1 MB batches to consumers that wait at the tail: MB delivered, and the CPU of producing and fetching them."""
    measures: Measures = {}
    for consumers in (1, 10):
        batches = max(20, int(300 * scale) // consumers)
        with topic_of(broker) as topic:
            before = cpu_seconds(broker.pid)
            seconds = driver.feed_tail(broker.bootstrap, topic, _LARGE, 1000, batches, consumers)
            used = cpu_seconds(broker.pid) - before
        many = "10 consumers" if consumers > 1 else "1 consumer"
        measures |= rates(f"{many} at the tail", batches * consumers * len(_LARGE), seconds, used)
    return measures


def small_requests(broker: System, scale: float) -> Measures:
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


def latencies(broker: System, scale: float) -> Measures:
    """One record of 1 KB at a time: to its acknowledgement, and to a waiting consumer."""
    samples = max(200, int(4000 * scale))
    measures: Measures = {}
    for acks, name in ((0, "acks=0, to the next answer"), (1, "acks=1"), (-1, "acks=all")):
        with topic_of(broker) as topic:
            found = latency.acknowledged(broker.bootstrap, topic, _KILOBYTE, samples, acks)
        measures |= _percentiles(f"produce 1 KB, {name}", found)
    with topic_of(broker) as topic:
        found = latency.arrived(broker.bootstrap, topic, _KILOBYTE, max(100, samples // 4))
    return measures | _percentiles("produce to fetch", found)


def transactional(broker: System, scale: float) -> Measures:
    """Transactions of 100 records of 1 KB, one after the other in each producer; then they are read."""
    measures: Measures = {}
    if isinstance(broker, Floor) or not transactions.are_served(broker.bootstrap):
        return measures
    for producers in (1, 10):
        for partitions in (1, 10):
            measures |= _transactions(broker, scale, producers, partitions)
    measures |= _transactions(broker, scale, 1, 1, bumps_epoch=False)
    return measures | _read_committed(broker, scale)


def _transactions(
    broker: Broker, scale: float, producers: int, partitions: int, *, bumps_epoch: bool = True
) -> Measures:
    number = max(20, int(500 * scale))  # of all producers together
    with topic_of(broker, partitions) as topic:
        made = [
            transactions.TransactionalProducer(broker.bootstrap, topic, partitions, bumps_epoch=bumps_epoch)
            for _ in range(producers)
        ]
        before = cpu_seconds(broker.pid)
        seconds = transactions.run({each: each.transactions(number // producers) for each in made})
        used = cpu_seconds(broker.pid) - before
        for each in made:
            each.connection.close()
    ended = [sample for each in made for sample in each.end_seconds]
    many = f"{producers} producer{'s' if producers > 1 else ''}, {partitions} partition{'s' if partitions > 1 else ''}"
    name = f"transactions, {many}{'' if bumps_epoch else ', transaction.version 1'}"
    return {
        f"{name}, MB/s": len(ended) * made[0].transaction_bytes / seconds / 1e6,
        f"{name}, CPU us each": used / len(ended) * 1e6,
        f"{name}, EndTxn p50 ms": latency.percentile(ended, 0.5) * 1e3,
        f"{name}, EndTxn p99 ms": latency.percentile(ended, 0.99) * 1e3,
    }


def _read_committed(broker: Broker, scale: float) -> Measures:
    """A tenth of the transactions are aborted: the answers name them, and have their records all the same."""
    number = max(50, int(1000 * scale)) // 10 * 10
    measures: Measures = {}
    with topic_of(broker) as topic:
        producer = transactions.TransactionalProducer(broker.bootstrap, topic, 1)
        transactions.run({producer: producer.transactions(number, aborted_every=transactions.ABORTED_EVERY)})
        producer.connection.close()
        volume = number * producer.transaction_bytes
        for isolation, name in ((0, "read_uncommitted"), (1, "read_committed")):
            before = cpu_seconds(broker.pid)
            seconds = transactions.fetch_transactions(
                broker.bootstrap, topic, number, producer.transaction_bytes, isolation
            )
            used = cpu_seconds(broker.pid) - before
            measures |= rates(f"fetch of ten transactions a request, {name}", volume, seconds, used)
    return measures


def _percentiles(name: str, samples: list[float]) -> Measures:
    return {
        f"{name}, {label} ms": latency.percentile(samples, fraction) * 1e3
        for label, fraction in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))
    }


ROUND: tuple[Workload, ...] = (
    produce_and_fetch,
    tail,
    small_requests,
    latencies,
    transactional,
)
