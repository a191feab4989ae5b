"""From a NATS request to its acknowledgement, in a cluster of three: a topic of one partition with three replicas."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from compat_tests.bench.latency import percentile
from compat_tests.bench.nats_publisher import payload
from compat_tests.bench.nats_system import Prober, new_prefix
from compat_tests.bench.workloads import Measures
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.nats_server import NatsServer
from compat_tests.nats.bound_topics import bind

_REPLICAS = 3
_SAMPLES = 4000


@dataclass
class ReplicatedSystem:
    """Three brokers and one nats-server."""

    cluster: Cluster
    server: NatsServer


@contextmanager
def started(folder: Path) -> Iterator[ReplicatedSystem]:
    """All of them."""
    with NatsServer(folder / "nats") as server:
        settings = {"nats.servers": server.url, "offsets.topic.num.partitions": "1"}
        cluster = Cluster(folder / "cluster", "barnabas", settings=settings)
        try:
            cluster.start()
            cluster.wait_until_whole()
            yield ReplicatedSystem(cluster, server)
        finally:
            cluster.close()


def _acknowledged(policy: str, system: ReplicatedSystem, scale: float) -> Measures:
    """One message at a time. `none` has no acknowledgement: the time is to nats-server's PONG behind the message."""
    prefix = new_prefix()
    bind(
        system.cluster,
        f"topic-{prefix}",
        {"nats.subjects": f"{prefix}.>", "min.insync.replicas": "2"},
        replicas=_REPLICAS,
    )
    system.cluster.wait_until_whole()
    headers = f"NATS/1.0\r\nKafka-Ack: {policy}\r\n\r\n".encode()
    subject = f"{prefix}.one".encode()
    samples = []
    with Prober(system.server) as prober:
        prober.wait_until_bound(prefix)
        first = _sequence(prober, subject)
        for number in range(max(200, int(_SAMPLES * scale))):
            data = payload(number)
            sent_at = time.perf_counter()
            if policy == "none":
                prober.publish(subject, data, headers=headers)
            else:
                answer = prober.ask(subject, data, headers=headers)
                assert b'"seq"' in answer, answer
            samples.append(time.perf_counter() - sent_at)
        stored = _sequence(prober, subject) - first - 1
    assert stored == len(samples), f"{stored} of {len(samples)} messages are stored"
    return {
        label: percentile(samples, fraction) * 1e3 for label, fraction in (("p50 ms", 0.5), ("p99 ms", 0.99))
    }


def _sequence(prober: Prober, subject: bytes) -> int:
    """That of a message that is stored now."""
    answer = prober.ask(subject, payload(0))
    return int(json.loads(answer[answer.index(b"{") :])["seq"])


LATENCIES: dict[str, Callable[[ReplicatedSystem, float], Measures]] = {
    f"core, 3 replicas, Kafka-Ack: {policy}": partial(_acknowledged, policy)
    for policy in ("none", "leader", "all")
}
