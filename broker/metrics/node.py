"""The metrics of a node: partitions and controller under the names of Kafka's own metrics as JMX exporters write them, the
process under those of Prometheus's client libraries.

There is no counter of messages: the end offsets of the logs have their number.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Final

from barnabas.broker.metrics.families import COUNTER, GAUGE, Family, written_labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.coordinator.shards import LoadTimes
    from barnabas.broker.groups.coordinator import GroupCoordinator
    from barnabas.broker.metrics.event_loop_lag import EventLoopLag
    from barnabas.broker.network.authentication_counts import AuthenticationCounts
    from barnabas.broker.partitions.partition_manager import PartitionManager
    from barnabas.broker.quotas.client_quotas import ClientQuotas
    from barnabas.broker.quotas.connection_rates import ConnectionRates
    from barnabas.broker.security.authorizer import Authorizer
    from barnabas.broker.telemetry.client_metrics import ClientMetrics
    from barnabas.broker.transactions.coordinator import TransactionCoordinator
    from barnabas.broker.transactions.verification import AddPartitionsToTxnManager
    from barnabas.controller.metadata.controller import Controller
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.wall_clock import WallClock

PARTITIONS_AT_ONCE: Final = 100
QUANTILES: Final = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)  # of histograms, as JMX exporters write them
# Metric, kind, attribute of AuthenticationCounts, text
_AUTHENTICATIONS: Final = (
    (
        "successful_authentication_total",
        COUNTER,
        "successful",
        "Connections whose clients authenticated themselves",
    ),
    (
        "successful_authentication_no_reauth_total",
        COUNTER,
        "successful_no_reauth",
        "Of those, how many cannot re-authenticate",
    ),
    (
        "failed_authentication_total",
        COUNTER,
        "failed",
        "Connections whose clients failed to authenticate themselves",
    ),
    ("successful_reauthentication_total", COUNTER, "successful_reauthentications", "Re-authentications"),
    ("failed_reauthentication_total", COUNTER, "failed_reauthentications", "Re-authentications that failed"),
    (
        "expired_connections_killed_count",
        GAUGE,
        "expired_connections_killed",
        "Connections closed by a request after the end of their sessions",
    ),
)
_STATM: Final = Path("/proc/self/statm")
_DESCRIPTORS: Final = Path("/proc/self/fd")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def node_metrics(
    runtime: Runtime,
    config: BrokerConfig,
    controller: Controller,
    wall_clock: WallClock,
    partitions: PartitionManager,
    groups: GroupCoordinator,
    transactions: TransactionCoordinator,
    verifications: AddPartitionsToTxnManager,
    lag: EventLoopLag | None = None,
) -> Iterable[Family | None]:
    """The metrics of a broker, a controller, or both."""
    if config.is_broker:
        yield from _partitions(partitions, runtime.time_ms(), config.transaction_max_timeout_ms)
        yield from _load_times("group", groups.shards.load_times)
        yield from _load_times("transaction", transactions.shards.load_times)
        yield from _marker_queues(transactions)
        yield from _verifications(verifications)
    yield _one(
        "kafka_controller_kafkacontroller_activecontrollercount",
        config.is_controller and controller.is_active,
        "1 where this node is the active controller",
    )
    yield _one(
        "barnabas_wall_clock_trusted",
        wall_clock.is_trusted,
        "0 while nothing is deleted by its age, as the wall clock differs from most other nodes' or none has been heard",
    )
    yield _one(
        "barnabas_wall_clock_ahead_seconds",
        wall_clock.ahead_ms / 1000,
        "How far the wall clock is ahead of the median of all nodes'",
    )
    if lag is not None:
        yield from _event_loop(lag)
    yield from _process()


def quota_metrics(quotas: tuple[ClientQuotas, ConnectionRates] | None) -> Iterable[Family | None]:
    """Those of client quotas; None: there has been none."""
    if quotas is not None:
        of_clients, of_addresses = quotas
        for name, value, help_text in (
            ("requests", of_clients.throttled_requests, "Requests whose clients were throttled by a quota"),
            ("request_seconds", of_clients.throttled_s, "For how long they were"),
            (
                "connections",
                of_addresses.throttled_connections,
                "Connections closed by a quota of their address",
            ),
        ):
            yield _one(f"barnabas_throttled_{name}_total", value, help_text, COUNTER)


def client_metrics(source: ClientMetrics) -> Iterable[Family | None]:
    """What clients have pushed (KIP-714), by name, behind Kafka's metrics about that."""
    if source.receiver is None:
        return
    for name, value, help_text in (
        ("instance_count", len(source.instances), "Clients that have asked what to push"),
        (
            "unknown_subscription_request_count",
            source.unknown_subscriptions,
            "Pushes for an old subscription",
        ),
        ("throttle_count", source.throttled, "Requests before the push interval was over"),
        ("plugin_export_count", source.received, "Pushes taken"),
        ("plugin_error_count", source.invalid, "Pushes that could not be read"),
    ):
        family = Family(f"kafka_server_client_metrics_{name}", GAUGE, help_text)
        family.add(value)
        yield family
    left_out = Family(
        "barnabas_client_metrics_left_out_total",
        COUNTER,
        "Values of clients that were left out for want of room",
    )
    left_out.add(source.receiver.left_out)
    yield left_out
    families: dict[str, Family] = {}
    for each in source.receiver.series():
        if each is None:
            yield None
            continue
        name, labels, last = each
        found = families.get(name)
        if found is None:
            kind = COUNTER if name.endswith("_total") else GAUGE
            found = families[name] = Family(name, kind, "Pushed by clients")
        found.add(last, labels)
    for name in sorted(families):
        yield families[name]


def security_metrics(
    listeners: Mapping[str, AuthenticationCounts], authorizer: Authorizer | None, acl_count: int
) -> Iterable[Family | None]:
    """Those of authentication, by listener, and of the authorizer, if there is one."""
    for name, kind, count, help_text in _AUTHENTICATIONS:
        family = Family(f"kafka_server_socket_server_metrics_{name}", kind, help_text)
        for listener, counts in listeners.items():
            family.add(getattr(counts, count), {"listener": listener})
        yield family
    if authorizer is not None:
        allowed, denied = authorizer.allowed, authorizer.denied
        for name, value, kind, help_text in (
            ("acls_total_count", acl_count, GAUGE, "ACLs that are defined"),
            ("authorization_request_total", allowed + denied, COUNTER, "Decisions of the authorizer"),
            ("authorization_allowed_total", allowed, COUNTER, "Of those, how many allowed"),
            ("authorization_denied_total", denied, COUNTER, "Of those, how many denied"),
        ):
            family = Family(f"kafka_server_plugins_{name}", kind, help_text)
            family.add(value, {"class": "StandardAuthorizer", "config": "authorizer.class.name"})
            yield family


def _one(name: str, value: float, help_text: str, kind: str = GAUGE) -> Family:
    """A family of one sample."""
    family = Family(name, kind, help_text)
    family.add(value)
    return family


def _partitions(
    manager: PartitionManager, now_ms: int, transaction_timeout_max_ms: int
) -> Iterable[Family | None]:
    ends = Family(
        "kafka_log_log_logendoffset", GAUGE, "The offset behind the last record of each replica here"
    )
    starts = Family(
        "kafka_log_log_logstartoffset", GAUGE, "The offset of the first record of each replica here"
    )
    sizes = Family("kafka_log_log_size_bytes", GAUGE, "What each replica here takes on disk")
    count = leading = under_replicated = under_min_isr = offline = producers = late = 0
    partitions = sorted(manager.all(), key=lambda each: (each.topic, each.partition))
    for number, partition in enumerate(partitions, 1):
        if not number % PARTITIONS_AT_ONCE:
            yield None
        log = partition.log
        labels = written_labels({"topic": partition.topic, "partition": str(partition.partition)})
        ends.add_labelled(log.log_end_offset, labels)
        starts.add_labelled(log.log_start_offset, labels)
        if log.offline:
            offline += 1
        else:
            sizes.add_labelled(log.size, labels)
            producers += len(log.producers.active)
        count += 1
        if partition.is_leader:
            leading += 1
            late += log.producers.has_late_transaction(now_ms, transaction_timeout_max_ms)
            leadership = partition.leadership
            if leadership is not None:
                under_replicated += leadership.is_under_replicated
                under_min_isr += leadership.is_under_min_isr
    for name, value, help_text in (
        ("partitioncount", count, "Replicas on this broker"),
        ("leadercount", leading, "Partitions that this broker leads"),
        ("underreplicatedpartitions", under_replicated, "Of those, how many have replicas out of sync"),
        (
            "underminisrpartitioncount",
            under_min_isr,
            "Of those, how many have fewer in sync than min.insync.replicas",
        ),
        ("offlinereplicacount", offline, "Replicas here whose log can't be used"),
        ("produceridcount", producers, "Producers with an id that the replicas here know"),
        (
            "partitionswithlatetransactionscount",
            late,
            "Partitions that this broker leads in which a transaction is open that should have ended long ago",
        ),
    ):
        yield _one(f"kafka_server_replicamanager_{name}", value, help_text)
    yield from (ends, starts, sizes)


def _load_times(coordinator: str, times: LoadTimes) -> Iterable[Family]:
    for name, value_s, what in (
        ("max", times.longest_s, "The longest"),
        ("avg", times.total_s / times.count if times.count else 0.0, "The mean"),
    ):
        yield _one(
            f"kafka_server_{coordinator}_coordinator_metrics_partition_load_time_{name}",
            value_s * 1000,
            f"{what} time that a partition of the {coordinator} coordinator has taken to load since the start, in ms",
        )


def _marker_queues(transactions: TransactionCoordinator) -> Iterable[Family]:
    for name, value, help_text in (
        (
            "unknowndestinationqueuesize",
            transactions.markers.unknown_destinations,
            "Transactions whose markers wait for a partition to have a leader",
        ),
        (
            "logappendretryqueuesize",
            transactions.completions_to_retry,
            "Ended transactions that could not be written as complete so far",
        ),
    ):
        yield _one(f"kafka_coordinator_transaction_transactionmarkerchannelmanager_{name}", value, help_text)


def _verifications(manager: AddPartitionsToTxnManager) -> Iterable[Family]:
    name = "kafka_server_addpartitionstotxnmanager_verification"
    yield _one(
        f"{name}failurerate_total",
        manager.failures,
        "Partitions whose transactions could not be verified, and requests for that which failed",
        COUNTER,
    )
    times = Family(f"{name}timems", GAUGE, "How long the last verifications took, in ms")
    ascending = sorted(manager.times_s)
    for quantile in QUANTILES if ascending else ():
        at = min(int(len(ascending) * quantile), len(ascending) - 1)
        times.add(ascending[at] * 1000, {"quantile": str(quantile)})
    yield times


def _event_loop(lag: EventLoopLag) -> Iterable[Family]:
    yield _one(
        "barnabas_event_loop_stalls_total",
        lag.stalls,
        "How often the event loop has kept everything waiting for more than 0.1 s, or the process did not run",
        COUNTER,
    )
    yield _one(
        "barnabas_event_loop_longest_stall_seconds",
        lag.longest_s,
        "The longest of those since the start",
    )
    yield _one(
        "barnabas_event_loop_longest_busy_seconds",
        lag.longest_busy_s,
        "The most processor time that the event loop has taken at a stretch since the start",
    )


def _process() -> Iterable[Family]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield _one(
        "process_cpu_seconds_total",
        usage.ru_utime + usage.ru_stime,
        "Processor time of this process, user and system",
        COUNTER,
    )
    memory = Family("process_resident_memory_bytes", GAUGE, "Resident memory of this process")
    descriptors = Family("process_open_fds", GAUGE, "Open file descriptors of this process")
    try:
        memory.add(int(_STATM.read_text().split()[1]) * _PAGE_BYTES)
        descriptors.add(sum(1 for _ in _DESCRIPTORS.iterdir()))
    except OSError:  # not Linux
        pass
    yield from (memory, descriptors)
