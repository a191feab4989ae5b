"""Starts the two brokers of a comparison with the same settings."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from compat_tests.conform.session import Target
from compat_tests.harness.apache_broker import ApacheBroker
from compat_tests.harness.barnabas_broker import BarnabasBroker
from compat_tests.harness.broker import Broker

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "offsets.topic.num.partitions": "5",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "5",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}


@contextlib.contextmanager
def _started(kind: type[Broker], name: str) -> Iterator[Target]:
    with tempfile.TemporaryDirectory(prefix=f"conform-{name}-") as directory:
        broker = kind(Path(directory), SETTINGS)
        broker.start()
        try:
            yield Target(name, broker.host, broker.port)
        finally:
            broker.stop()


def start_barnabas() -> contextlib.AbstractContextManager[Target]:
    """This broker, as a process of its own on a free port."""
    return _started(BarnabasBroker, "barnabas")


def start_apache() -> contextlib.AbstractContextManager[Target]:
    """Apache Kafka 4.3.1, from its jars (fetched when missing)."""
    return _started(ApacheBroker, "apache")
