"""Kafka's own ProducerPerformance and ConsumerPerformance against each broker: 1 KB records, as users run them."""

from __future__ import annotations

from compat_tests.bench.workloads import Measures, topic_of
from compat_tests.harness.broker import Broker
from compat_tests.harness.java_tools import JavaTools
from compat_tests.harness.process_usage import cpu_seconds

_RECORD_SIZE = 1000


def perf_tools(broker: Broker, tools: JavaTools, scale: float) -> Measures:
    """MB/s that the tools report (converted from 2^20 to 10^6 bytes), and the broker's CPU per GB of values."""
    records = max(20_000, int(300_000 * scale))
    volume = records * _RECORD_SIZE
    with topic_of(broker) as topic:
        before = cpu_seconds(broker.pid)
        produced = tools.run(
            "kafka-producer-perf-test",
            *("--topic", topic, "--num-records", str(records), "--record-size", str(_RECORD_SIZE)),
            *("--throughput", "-1", "--producer-props", f"bootstrap.servers={broker.bootstrap}"),
            *("acks=1", "batch.size=65536", "linger.ms=5"),
        ).stdout
        between = cpu_seconds(broker.pid)
        consumed = tools.run(
            "kafka-consumer-perf-test",
            *("--topic", topic, "--bootstrap-server", broker.bootstrap, "--num-records", str(records)),
            "--hide-header",
        ).stdout
        after = cpu_seconds(broker.pid)
    produced_rate = float(produced.strip().splitlines()[-1].split("(")[1].split()[0])
    consumed_rate = float(consumed.strip().splitlines()[-1].split(", ")[3])
    return {
        "ProducerPerformance, MB/s": produced_rate * 1.048576,
        "ProducerPerformance, CPU-s/GB": (between - before) / volume * 1e9,
        "ConsumerPerformance, MB/s": consumed_rate * 1.048576,
        "ConsumerPerformance, CPU-s/GB": (after - between) / volume * 1e9,
    }
