"""Views of the cluster and its topics: counts, brokers, partitions with their offsets and sizes, configs with their sources."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from barnabas import __version__
from barnabas.console.cluster import Cluster, Unanswered, error_name, page_of
from barnabas.controller.metadata.image import INTERNAL_TOPICS, NO_LEADER, TOPIC_RESOURCE
from barnabas.runtime.http import HttpError
from barnabas.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from barnabas.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from barnabas.wire.messages.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.uuids import uuid_to_string

if TYPE_CHECKING:
    from barnabas.broker.extension import ExtensionHost
    from barnabas.broker.metrics.process import EventLoopLag
    from barnabas.controller.metadata.image import PartitionState
    from barnabas.runtime.slices import Steps

LIST_OFFSETS, DESCRIBE_CONFIGS, DESCRIBE_LOG_DIRS, DESCRIBE_QUORUM = 2, 32, 35, 55
LATEST: Final = -1
EARLIEST: Final = -2
COUNTS_LAST_S: Final = 1.0  # several pages in browsers cost as much as one
PARTITIONS_AT_ONCE: Final = 100
METADATA_TOPIC: Final = "__cluster_metadata"
# ConfigSource of DescribeConfigs
SOURCES: Final = {
    1: "topic",
    2: "broker (dynamic)",
    3: "cluster (dynamic)",
    4: "broker (static)",
    5: "default",
    6: "broker logger",
    7: "client metrics",
    8: "group",
}
NOTHING_SET: Final = -1


class BrokerRow(msgspec.Struct):
    """A registered broker."""

    id: int
    addresses: list[str]
    rack: str | None
    state: str  # serving, fenced or leaving
    leaders: int = 0
    replicas: int = 0


class Counts(msgspec.Struct):
    """Of the whole cluster; from `messages_in` on, what clients have sent to this broker and got from it, of the topics that are here."""

    topics: int = 0
    internal_topics: int = 0
    partitions: int = 0
    under_replicated: int = 0
    offline: int = 0  # partitions without a leader
    messages_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class Overview(msgspec.Struct):
    cluster_id: str
    node_id: int
    version: str
    controller_id: int  # -1: it is not known
    brokers: list[BrokerRow]
    counts: Counts
    counted_at_ms: int  # on a clock that never jumps
    loop_stalls: int
    loop_longest_ms: float
    loop_idle: float  # the part of the last minute in which the loop had nothing to do
    reports: list[str]  # of extensions
    is_test_broker: bool


class TopicRow(msgspec.Struct):
    name: str
    is_internal: bool
    partitions: int
    replicas: int
    under_replicated: int
    offline: int


class TopicPage(msgspec.Struct):
    topics: list[TopicRow]
    total: int  # that match
    has_more: bool


class PartitionRow(msgspec.Struct):
    """`start` to `size` are None where the leader has not answered."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    start: int | None = None
    end: int | None = None
    size: int | None = None


class ConfigRow(msgspec.Struct):
    name: str
    value: str | None
    source: str
    is_sensitive: bool
    documentation: str | None
    synonyms: list[tuple[str, str | None, str]]  # (property, value, source), the one that counts first


class TopicView(msgspec.Struct):
    name: str
    id: str
    is_internal: bool
    partition_count: int
    partitions: list[PartitionRow]
    problems: list[str]


class ClusterCounts:
    """Counts all partitions, at most once in COUNTS_LAST_S."""

    def __init__(self, cluster: Cluster, lag: EventLoopLag, *, is_test_broker: bool) -> None:
        self._cluster = cluster
        self._lag = lag
        self._is_test_broker = is_test_broker
        self._counted: tuple[float, ExtensionHost, Counts, list[BrokerRow]] | None = None

    async def overview(self) -> Overview:
        cluster = self._cluster
        host = cluster.host
        now = cluster.runtime.monotonic()
        counted = self._counted
        if counted is None or counted[1] is not host or now - counted[0] >= COUNTS_LAST_S:
            counted = (now, host, *await cluster.in_slices(_count(host)))
            self._counted = counted
        return Overview(
            host.cluster_id,
            host.node_id,
            __version__,
            await _controller_id(cluster),
            counted[3],
            counted[2],
            round(counted[0] * 1000),
            self._lag.stalls,
            round(self._lag.longest_s * 1000, 1),
            round(self._lag.idle, 4),
            [report.name for report in host.reports()],
            self._is_test_broker,
        )


def _count(host: ExtensionHost) -> Steps[tuple[Counts, list[BrokerRow]]]:
    image = host.controller.image
    counts = Counts()
    rows = {
        each.broker_id: BrokerRow(
            each.broker_id,
            [f"{point.name}://{point.host}:{point.port}" for point in each.endpoints],
            each.rack,
            "serving" if each.is_active else "leaving" if each.is_leaving else "fenced",
        )
        for each in sorted(image.brokers.values(), key=lambda each: each.broker_id)
    }
    for name, topic in list(image.topics.items()):
        if name in INTERNAL_TOPICS:
            counts.internal_topics += 1
        else:
            counts.topics += 1
        for number, state in enumerate(list(topic.partitions.values()), 1):
            counts.partitions += 1
            counts.under_replicated += len(state.isr) < len(state.replicas)
            counts.offline += state.leader == NO_LEADER
            if state.leader in rows:
                rows[state.leader].leaders += 1
            for replica in state.replicas:
                if replica in rows:
                    rows[replica].replicas += 1
            if not number % PARTITIONS_AT_ONCE:
                yield None
        yield None
    for number, (_, stats) in enumerate(host.partitions.topic_stats.topics(), 1):
        counts.messages_in += stats.messages_in
        counts.bytes_in += stats.bytes_in
        counts.bytes_out += stats.bytes_out
        if not number % PARTITIONS_AT_ONCE:
            yield None
    return counts, list(rows.values())


async def _controller_id(cluster: Cluster) -> int:
    topic = TopicData(METADATA_TOPIC, [PartitionData(0)])
    try:
        found = await cluster.ask(
            cluster.host.node_id, DESCRIBE_QUORUM, 2, DescribeQuorumRequest(topics=[topic])
        )
    except Unanswered:
        return NO_LEADER
    leaders: list[int] = [each.leader_id for topic in found.topics for each in topic.partitions]
    return leaders[0] if leaders else NO_LEADER


async def topic_page(
    cluster: Cluster, contained: str, after: str, limit: int, *, shows_internal: bool
) -> TopicPage:
    names = list(cluster.image.topics)
    rows = ((name, None) for name in names if shows_internal or name not in INTERNAL_TOPICS)
    page = await cluster.in_slices(page_of(rows, contained, after, limit))
    found = await cluster.in_slices(_topic_rows(cluster, [name for name, _ in page.rows]))
    return TopicPage(found, page.total, page.has_more)


def _topic_rows(cluster: Cluster, names: Iterable[str]) -> Steps[list[TopicRow]]:
    rows = []
    for name in names:
        topic = cluster.image.topics.get(name)
        if topic is None:  # deleted meanwhile
            continue
        row = TopicRow(name, topic.is_internal, len(topic.partitions), 0, 0, 0)
        for number, state in enumerate(list(topic.partitions.values()), 1):
            row.replicas = max(row.replicas, len(state.replicas))
            row.under_replicated += len(state.isr) < len(state.replicas)
            row.offline += state.leader == NO_LEADER
            if not number % PARTITIONS_AT_ONCE:
                yield None
        rows.append(row)
        yield None
    return rows


async def topic_view(cluster: Cluster, name: str, first: int, limit: int) -> TopicView:
    """With `limit` partitions from the `first` on."""
    topic = cluster.topic(name)
    indexes = range(first, min(first + limit, len(topic.partitions)))
    states = {index: topic.partitions[index] for index in indexes if index in topic.partitions}
    rows = {
        index: PartitionRow(index, state.leader, state.leader_epoch, state.replicas, state.isr)
        for index, state in states.items()
    }
    starts, ends = (
        await offsets(cluster, {name: states}, EARLIEST),
        await offsets(cluster, {name: states}, LATEST),
    )
    sizes, problems = await _sizes(cluster, name, states)
    for index, row in rows.items():
        row.start, row.end = starts.found.get((name, index)), ends.found.get((name, index))
        row.size = sizes.get(index)
    return TopicView(
        name,
        uuid_to_string(topic.topic_id),
        topic.is_internal,
        len(topic.partitions),
        list(rows.values()),
        sorted({*starts.problems, *ends.problems, *problems}),
    )


class Offsets(msgspec.Struct):
    found: dict[tuple[str, int], int]  # by topic and partition
    problems: list[str]


async def offsets(
    cluster: Cluster, topics: Mapping[str, Mapping[int, PartitionState]], timestamp: int
) -> Offsets:
    """The offset of each partition at a time in ms, or LATEST or EARLIEST, from its leader; -1: there is none."""
    by_leader: dict[int, list[ListOffsetsTopic]] = defaultdict(list)
    for name, states in topics.items():
        mine: dict[int, ListOffsetsTopic] = {}
        for index, state in states.items():
            if state.leader == NO_LEADER:
                continue
            if state.leader not in mine:
                mine[state.leader] = ListOffsetsTopic(name, [])
                by_leader[state.leader].append(mine[state.leader])
            mine[state.leader].partitions.append(ListOffsetsPartition(index, -1, timestamp))
    calls = [
        cluster.ask(leader, LIST_OFFSETS, 7, ListOffsetsRequest(replica_id=-1, topics=wanted))
        for leader, wanted in by_leader.items()
    ]
    result = Offsets({}, [])
    for response in await cluster.all(calls):
        if isinstance(response, Unanswered):
            result.problems.append(str(response))
            continue
        for topic in response.topics:
            for each in topic.partitions:
                if each.error_code:
                    result.problems.append(
                        f"{topic.name}-{each.partition_index}: {error_name(each.error_code)}"
                    )
                else:
                    result.found[topic.name, each.partition_index] = each.offset
    return result


async def _sizes(
    cluster: Cluster, name: str, states: Mapping[int, PartitionState]
) -> tuple[dict[int, int], list[str]]:
    """The bytes of each partition on its leader."""
    by_leader: dict[int, list[int]] = defaultdict(list)
    for index, state in states.items():
        if state.leader != NO_LEADER:
            by_leader[state.leader].append(index)
    calls = [
        cluster.ask(
            leader,
            DESCRIBE_LOG_DIRS,
            4,
            DescribeLogDirsRequest(topics=[DescribableLogDirTopic(name, indexes)]),
        )
        for leader, indexes in by_leader.items()
    ]
    sizes: dict[int, int] = {}
    problems: list[str] = []
    for response in await cluster.all(calls):
        if isinstance(response, Unanswered):
            problems.append(str(response))
            continue
        for directory in response.results:
            for topic in directory.topics:
                for each in topic.partitions:
                    if not each.is_future_key:
                        sizes[each.partition_index] = each.partition_size
    return sizes, problems


async def topic_configs(cluster: Cluster, name: str) -> list[ConfigRow]:
    cluster.topic(name)
    resource = DescribeConfigsResource(TOPIC_RESOURCE, name, None)
    request = DescribeConfigsRequest([resource], include_synonyms=True, include_documentation=True)
    response: Any = await cluster.ask(cluster.host.node_id, DESCRIBE_CONFIGS, 4, request)
    (result,) = response.results
    if result.error_code:
        raise HttpError(502, f"{error_name(result.error_code)}: {result.error_message}")
    return [
        ConfigRow(
            each.name,
            each.value,
            _source(each.config_source),
            each.is_sensitive,
            each.documentation,
            [(other.name, other.value, _source(other.source)) for other in each.synonyms],
        )
        for each in sorted(result.configs, key=lambda each: each.name)
    ]


def _source(number: int) -> str:
    return SOURCES.get(number, "unknown")
