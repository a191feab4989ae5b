"""Starts the two brokers of a comparison with the same settings."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from compat_tests.conform.case import Setup
from compat_tests.conform.session import Target
from compat_tests.harness.apache_broker import ApacheBroker, local_tiered_storage
from compat_tests.harness.barnabas_broker import BarnabasBroker
from compat_tests.harness.broker import Broker

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "group.streams.assignment.interval.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
    "group.share.assignment.interval.ms": "0",
    "group.share.max.size": "5",
    "group.share.min.session.timeout.ms": "100",
    "group.share.min.heartbeat.interval.ms": "50",
    "offsets.topic.num.partitions": "5",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "5",
    "group.share.min.record.lock.duration.ms": "1000",
    "share.coordinator.state.topic.num.partitions": "5",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}


# Users with PLAIN on a listener of their own, whose passwords are their names. Who comes in on the other one may do all.
USERS = [f"u{number}" for number in range(400)]
WITH_AUTHORIZER = {
    **SETTINGS,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        + " ".join(f'user_{user}="{user}"' for user in USERS)
        + ";"
    ),
}


# Each has a store of its own below the broker's directory.
WITH_TIER = {
    **SETTINGS,
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "200",
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "200",
}
STORES: dict[type[Broker], Callable[[Path], dict[str, str]]] = {
    BarnabasBroker: lambda folder: {"rsm.config.url": f"file://{folder}"},
    ApacheBroker: local_tiered_storage,
}


def _settings(kind: type[Broker], setup: Setup, directory: Path) -> dict[str, str]:
    if setup is Setup.TIERED:
        return {**WITH_TIER, **STORES[kind](directory / "remote")}
    return WITH_AUTHORIZER if setup is Setup.AUTHORIZER else SETTINGS


@contextlib.contextmanager
def _started(kind: type[Broker], name: str, setup: Setup) -> Iterator[Target]:
    with tempfile.TemporaryDirectory(prefix=f"conform-{name}-") as directory:
        broker = kind(Path(directory), _settings(kind, setup, Path(directory)))
        broker.start()
        try:
            sasl = broker.listeners.get("SASL_PLAINTEXT", ":0")
            yield Target(name, broker.host, broker.port, int(sasl.rpartition(":")[2]))
        finally:
            broker.stop()


def start_barnabas(setup: Setup) -> contextlib.AbstractContextManager[Target]:
    """This broker, as a process of its own on a free port."""
    return _started(BarnabasBroker, "barnabas", setup)


def start_apache(setup: Setup) -> contextlib.AbstractContextManager[Target]:
    """Apache Kafka 4.3.1, from its jars (fetched when missing)."""
    return _started(ApacheBroker, "apache", setup)
