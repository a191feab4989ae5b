"""The metrics of topics, partitions and logs, as JMX exporters write Kafka's, and those of kafka_exporter.

What belongs to a partition as a whole is shown by its leader, so that each is there once in a cluster. A node with many
partitions or topics shows those of the first `partitions_max`; the totals are of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.broker.metrics.families import COUNTER, GAUGE, Family, one, written_labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from barnabas.broker.partitions.partition import Partition
    from barnabas.broker.partitions.partition_manager import PartitionManager
    from barnabas.broker.partitions.topic_stats import BrokerTopicStats
    from barnabas.storage.compaction.cleaner import LogCleaner
    from barnabas.storage.manager.manager import LogManager

PARTITIONS_AT_ONCE: Final = 100

# Metric, attribute of TopicStats, text. Without a topic: of all topics of the broker
_TOPIC_COUNTERS: Final = (
    ("messagesin", "messages_in", "Records that producers have written"),
    ("bytesin", "bytes_in", "Bytes of their batches"),
    ("bytesout", "bytes_out", "Bytes that consumers have read"),
    ("bytesrejected", "bytes_rejected", "Bytes of batches that were too large"),
    ("totalproducerequests", "produce_requests", "Produce requests, for each partition"),
    ("totalfetchrequests", "fetch_requests", "Reads of partitions by consumers and followers"),
    ("failedproducerequests", "failed_produce_requests", "Produce requests that failed, for each partition"),
    ("failedfetchrequests", "failed_fetch_requests", "Reads of partitions that failed"),
)
# Of the broker alone
_REPLICATION_COUNTERS: Final = (
    ("replicationbytesin", "replication_bytes_in", "Bytes that followers here have read from other brokers"),
    ("replicationbytesout", "replication_bytes_out", "Bytes that followers on other brokers have read"),
)
_NEVER_CONVERTED: Final = (
    ("producemessageconversions", "Always 0: producers since Kafka 0.11 write the format of the log"),
    ("fetchmessageconversions", "Always 0: consumers since Kafka 0.11 read the format of the log"),
)


def topic_metrics(topic_stats: BrokerTopicStats, topics_max: int) -> Iterable[Family | None]:
    """BrokerTopicMetrics: once for all topics, and for each of the first `topics_max`."""
    topics, total, topic_count = [], topic_stats.of_gone(), 0
    for topic_count, (name, stats) in enumerate(topic_stats.topics(), 1):
        if topic_count <= topics_max:
            topics.append((written_labels({"topic": name}), stats))
        total.add(stats)
        if not topic_count % PARTITIONS_AT_ONCE:
            yield None
    for name, attribute, help_text in _TOPIC_COUNTERS:
        family = Family(f"kafka_server_brokertopicmetrics_{name}_total", COUNTER, help_text)
        family.add(getattr(total, attribute))
        for number, (labels, stats) in enumerate(topics, 1):
            family.add_labelled(getattr(stats, attribute), labels)
            if not number % PARTITIONS_AT_ONCE:
                yield None
        yield family
    for name, attribute, help_text in _REPLICATION_COUNTERS:
        yield one(
            f"kafka_server_brokertopicmetrics_{name}_total", getattr(total, attribute), help_text, COUNTER
        )
    for name, help_text in _NEVER_CONVERTED:
        yield one(f"kafka_server_brokertopicmetrics_{name}_total", 0, help_text, COUNTER)
    yield one(
        "barnabas_metrics_topics_left_out",
        max(topic_count - topics_max, 0),
        "Topics without metrics of their own, as there are more than barnabas.metrics.partitions.max",
    )


def _gauge(name: str, help_text: str) -> Family:
    return Family(name, GAUGE, help_text)


def _min_isr(partition: Partition) -> int:
    """Of a partition that is led here: how many replicas have to be in sync."""
    return 1 if partition.leadership is None else partition.leadership.min_isr


class _PartitionFamilies:
    """The families with one sample for each partition."""

    def __init__(self) -> None:
        self.ends = _gauge("kafka_log_log_logendoffset", "Offset behind the last record of each replica here")
        self.starts = _gauge(
            "kafka_log_log_logstartoffset", "Offset of the first record of each replica here"
        )
        self.sizes = _gauge("kafka_log_log_size", "Bytes of each replica here")
        self.segments = _gauge("kafka_log_log_numlogsegments", "Segments of each replica here")
        prefix = "kafka_cluster_partition"
        self.under_replicated = _gauge(f"{prefix}_underreplicated", "1: a replica is out of sync")
        self.under_min_isr = _gauge(f"{prefix}_underminisr", "1: fewer in sync than min.insync.replicas")
        self.at_min_isr = _gauge(f"{prefix}_atminisr", "1: just min.insync.replicas are in sync")
        self.replicas = _gauge(f"{prefix}_replicascount", "Replicas")
        self.in_sync = _gauge(f"{prefix}_insyncreplicascount", "Replicas in sync")
        prefix = "kafka_topic_partition"
        self.newest = _gauge(f"{prefix}_current_offset", "Offset behind the last committed record")
        self.oldest = _gauge(f"{prefix}_oldest_offset", "Offset of the first record")
        self.leaders = _gauge(f"{prefix}_leader", "Broker id of the leader")
        self.exported_replicas = _gauge(f"{prefix}_replicas", "Replicas")
        self.exported_in_sync = _gauge(f"{prefix}_in_sync_replica", "Replicas in sync")
        self.exported_under = _gauge(f"{prefix}_under_replicated_partition", "1: a replica is out of sync")
        self.preferred = _gauge(f"{prefix}_leader_is_preferred", "1: the leader is the first replica")

    def all(self) -> Iterator[Family]:
        return iter(vars(self).values())

    def add(self, partition: Partition) -> None:
        log = partition.log
        labels = written_labels({"topic": partition.topic, "partition": str(partition.partition)})
        self.ends.add_labelled(log.log_end_offset, labels)
        self.starts.add_labelled(log.log_start_offset, labels)
        if not log.offline:
            self.sizes.add_labelled(log.size, labels)
            self.segments.add_labelled(len(log.segments), labels)
        if not partition.is_leader:
            return
        leadership, state = partition.leadership, partition.state
        replicas, in_sync = len(state.replicas), len(partition.isr)
        is_under_replicated = leadership is not None and leadership.is_under_replicated
        min_isr = _min_isr(partition)
        self.under_replicated.add_labelled(is_under_replicated, labels)
        self.under_min_isr.add_labelled(in_sync < min_isr, labels)
        self.at_min_isr.add_labelled(in_sync == min_isr, labels)
        self.replicas.add_labelled(replicas, labels)
        self.in_sync.add_labelled(in_sync, labels)
        self.newest.add_labelled(partition.high_watermark, labels)
        self.oldest.add_labelled(log.log_start_offset, labels)
        self.leaders.add_labelled(partition.leader_id, labels)
        self.exported_replicas.add_labelled(replicas, labels)
        self.exported_in_sync.add_labelled(in_sync, labels)
        self.exported_under.add_labelled(is_under_replicated, labels)
        self.preferred.add_labelled(state.replicas[:1] == [partition.leader_id], labels)


class _Totals:
    """What is counted over all partitions."""

    def __init__(self) -> None:
        self.partitions = self.leading = self.under_replicated = self.under_min_isr = self.at_min_isr = 0
        self.offline = self.producers = self.late = self.reassigning = 0

    def add(self, partition: Partition, now_ms: int, transaction_timeout_max_ms: int) -> None:
        log = partition.log
        self.partitions += 1
        if log.offline:
            self.offline += 1
        else:
            self.producers += len(log.producers.active)
        if not partition.is_leader:
            return
        self.leading += 1
        self.late += log.producers.has_late_transaction(now_ms, transaction_timeout_max_ms)
        state, leadership = partition.state, partition.leadership
        self.reassigning += bool(state.adding_replicas or state.removing_replicas)
        self.at_min_isr += len(partition.isr) == _min_isr(partition)
        if leadership is not None:
            self.under_replicated += leadership.is_under_replicated
            self.under_min_isr += leadership.is_under_min_isr


def partition_metrics(
    manager: PartitionManager, now_ms: int, transaction_timeout_max_ms: int, partitions_max: int
) -> Iterable[Family | None]:
    families, totals, left_out = _PartitionFamilies(), _Totals(), 0
    partitions = sorted(manager.all(), key=lambda each: (each.topic, each.partition))
    for number, partition in enumerate(partitions, 1):
        if not number % PARTITIONS_AT_ONCE:
            yield None
        totals.add(partition, now_ms, transaction_timeout_max_ms)
        if number <= partitions_max:
            families.add(partition)
        else:
            left_out += 1
    for name, value, help_text in (
        ("partitioncount", totals.partitions, "Replicas on this broker"),
        ("leadercount", totals.leading, "Partitions that this broker leads"),
        (
            "underreplicatedpartitions",
            totals.under_replicated,
            "Of those, how many have replicas out of sync",
        ),
        (
            "underminisrpartitioncount",
            totals.under_min_isr,
            "Of those, how many have fewer in sync than min.insync.replicas",
        ),
        ("atminisrpartitioncount", totals.at_min_isr, "Of those, how many have just so many in sync"),
        ("reassigningpartitions", totals.reassigning, "Of those, how many are being reassigned"),
        ("offlinereplicacount", totals.offline, "Replicas here whose log can't be used"),
        ("produceridcount", totals.producers, "Producers with an id that the replicas here know"),
        (
            "partitionswithlatetransactionscount",
            totals.late,
            "Partitions that this broker leads in which a transaction is open that should have ended long ago",
        ),
    ):
        yield one(f"kafka_server_replicamanager_{name}", value, help_text)
    for name, value, help_text in (
        ("isrshrinks", manager.rules.isr_shrinks, "ISRs of partitions led here that have become smaller"),
        ("isrexpands", manager.rules.isr_expands, "ISRs of partitions led here that have grown"),
    ):
        yield one(f"kafka_server_replicamanager_{name}_total", value, help_text, COUNTER)
    hedges = Family(
        "barnabas_isr_hedges_total",
        COUNTER,
        "Times a replica has left the ISR as it held up acknowledgements",
    )
    for broker_id, count in sorted(manager.rules.hedge.hedges.items()):
        hedges.add(count, {"replica": str(broker_id)})
    yield hedges
    yield one(
        "barnabas_metrics_partitions_left_out",
        left_out,
        "Partitions without metrics of their own, as there are more than barnabas.metrics.partitions.max",
    )
    yield from families.all()


def follower_metrics(max_lag: int) -> Iterable[Family]:
    family = Family(
        "kafka_server_replicafetchermanager_maxlag",
        GAUGE,
        "Committed records that a replica here lacks, of the one that lacks most, as of its leader's last answer",
    )
    family.add(max_lag, {"clientid": "Replica"})
    yield family


def log_metrics(manager: LogManager, cleaner: LogCleaner) -> Iterable[Family | None]:
    yield one(
        "kafka_log_logmanager_offlinelogdirectorycount",
        len(manager.directories.offline),
        "Log directories that have failed",
    )
    yield one(
        "kafka_log_logcleanermanager_max_dirty_percent",
        round(cleaner.max_dirty_ratio * 100),
        "Of the log that has most to be compacted: its dirty part, in percent, when it was looked at last",
    )
    yield one(
        "kafka_log_logcleanermanager_uncleanable_partitions_count",
        cleaner.uncleanable_count,
        "Logs that can't be compacted until a restart",
    )
