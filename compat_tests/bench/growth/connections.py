"""Connections to one broker: opening them, their memory, and requests over all of them."""

from __future__ import annotations

import time

from compat_tests.bench import driver, latency, prepared
from compat_tests.bench.growth.curves import Figures
from compat_tests.bench.hostile import wait_for_rest
from compat_tests.bench.workloads import topic_of
from compat_tests.harness.broker import Broker
from compat_tests.harness.process_usage import cpu_seconds

_SMALL_BUFFER = 1 << 12
_SAMPLES = 2000
_REQUESTS = 40_000


def measure(broker: Broker, connections: int) -> Figures:
    """Of a broker that has just started. A hundred connections before those that count use memory that it keeps anyway."""
    hello = prepared.api_versions()
    batch = prepared.batch(1, 100)
    for _ in range(100):
        first = driver.Connection(broker.bootstrap, receive_buffer=_SMALL_BUFFER)
        first.ask(hello)
        first.close()
    wait_for_rest([broker])
    before, cpu = broker.resident_bytes(), cpu_seconds(broker.pid)
    started = time.perf_counter()
    opened = []
    for _ in range(connections):
        opened.append(driver.Connection(broker.bootstrap, receive_buffer=_SMALL_BUFFER))
        opened[-1].ask(hello)
    figures = {
        "opened and answered, ms each": (time.perf_counter() - started) / connections * 1e3,
        "CPU of opening, us each": (cpu_seconds(broker.pid) - cpu) / connections * 1e6,
        "memory of a connection, KB": (broker.resident_bytes() - before) / connections / 1e3,
    }
    with topic_of(broker) as topic:
        found = latency.acknowledged(broker.bootstrap, topic, prepared.batch(1, 1000), _SAMPLES, 1)
    figures["one producer beside them, p50 ms"] = latency.percentile(found, 0.5) * 1e3
    figures["one producer beside them, p99 ms"] = latency.percentile(found, 0.99) * 1e3
    for each in opened:
        each.close()
    requests = max(_REQUESTS, 2 * connections)
    with topic_of(broker) as topic:
        cpu = cpu_seconds(broker.pid)
        seconds = driver.produce_small(
            broker.bootstrap, topic, batch, requests, connections, 1, receive_buffer=_SMALL_BUFFER
        )
        used = cpu_seconds(broker.pid) - cpu
    figures["produce 100 B on all of them, requests/s"] = requests / seconds
    figures["produce 100 B on all of them, CPU us each"] = used / requests * 1e6
    return figures
