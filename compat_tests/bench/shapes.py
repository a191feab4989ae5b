"""Shapes of load: from 1 to 1,000 records a send, from 1 to 20 producers, fetches of 1 KB to 1 MB, five consumers to a producer.

Records are of 1 KB. One producer has five sends in flight, several have one each.
"""

from __future__ import annotations

from compat_tests.bench import driver, prepared
from compat_tests.bench.workloads import Measures, System, Workload, rates, topic_of
from compat_tests.harness.process_usage import cpu_seconds

# Records in a send, and the size of a fetch; how many at full scale.
_SENDS = ((1, "1 KB", 20_000), (10, "10 KB", 10_000), (100, "100 KB", 2_000), (1000, "1 MB", 300))
_PRODUCERS = (1, 5, 20)
_CONSUMERS = 5


def sends_and_fetches(broker: System, scale: float) -> Measures:
    """Sends of every size by every number of producers; what one producer has sent is fetched, one send a request."""
    measures: Measures = {}
    for records, size, full in _SENDS:
        batch = prepared.batch(records, 1000)
        sends = max(40, int(full * scale)) // 20 * 20
        for producers in _PRODUCERS:
            name = f"{records:,} record{'s' if records > 1 else ''} a send, {producers} producer{'s' if producers > 1 else ''}"
            with topic_of(broker) as topic:
                before = cpu_seconds(broker.pid)
                seconds = driver.produce_many(
                    broker.bootstrap, topic, batch, records, sends, connections=producers
                )
                measures |= _of_sends(name, len(batch), sends, seconds, cpu_seconds(broker.pid) - before)
                if producers == 1:
                    before = cpu_seconds(broker.pid)
                    seconds = driver.fetch_many(broker.bootstrap, topic, len(batch), records, sends, 5)
                    used = cpu_seconds(broker.pid) - before
                    measures |= _of_sends(f"fetch of {size}", len(batch), sends, seconds, used)
    return measures


def five_consumers(broker: System, scale: float) -> Measures:
    """A producer and five consumers that wait at the tail: MB delivered, and the CPU of producing and fetching them."""
    measures: Measures = {}
    for records, _, full in _SENDS:
        batch = prepared.batch(records, 1000)
        sends = max(40, int(full * scale) // 4)
        with topic_of(broker) as topic:
            before = cpu_seconds(broker.pid)
            seconds = driver.feed_tail(broker.bootstrap, topic, batch, records, sends, _CONSUMERS)
            used = cpu_seconds(broker.pid) - before
        name = f"{_CONSUMERS} consumers of 1 producer, {records:,} record{'s' if records > 1 else ''} a send"
        measures |= rates(name, sends * _CONSUMERS * len(batch), seconds, used)
    return measures


def _of_sends(name: str, size: int, sends: int, seconds: float, cpu: float) -> Measures:
    return {f"{name}, MB/s": size * sends / seconds / 1e6, f"{name}, CPU us each": cpu / sends * 1e6}


ROUND: tuple[Workload, ...] = (sends_and_fetches, five_consumers)
