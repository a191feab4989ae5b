"""Contents of an in-process broker: topics, records, groups and configs, read without a client or a request.

All functions run on the broker's loop and take its nodes. Records are those of a partition's leader, up to the high watermark or,
of what is committed, to the last stable offset. Values are copies; nothing in them changes afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from barnabas.controller.metadata.image import INTERNAL_TOPICS
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import iterate_whole_headers
from barnabas.wire.records import iterate_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from barnabas.broker.groups.consumer.group import ConsumerGroup
    from barnabas.broker.groups.group_store import Group as StoredGroup
    from barnabas.broker.groups.offsets import CommittedOffset
    from barnabas.broker.groups.share.group import ShareGroup
    from barnabas.broker.groups.streams.group import StreamsGroup
    from barnabas.broker.partitions.partition import Partition
    from barnabas.broker.services import Services
    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.storage.log.log import Log
    from barnabas.storage.log.segments import ReadResult
    from barnabas.testing.broker_node import BrokerNode
    from barnabas.wire.record_batch import BatchHeader

READ_COMMITTED = "read_committed"
_ISOLATION_LEVELS = (READ_COMMITTED, "read_uncommitted")
_READ_BYTES = 4 * 1024 * 1024
_DECOMPRESSED_BYTES_MAX = 1 << 30


class UnknownTopic(LookupError):
    """There is no such topic, or no such partition of it."""


class NoLeader(RuntimeError):
    """No node that runs leads the partition, for now or for good."""


class StoredRecord(msgspec.Struct, frozen=True):
    """One record as it lies in its partition; `timestamp` in ms since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class ClientMetric(msgspec.Struct, frozen=True):
    """The last value of one series that a client has pushed, under its Prometheus name."""

    name: str
    labels: dict[str, str]
    value: float


class GroupMember(msgspec.Struct, frozen=True):
    """One member of a group. `epoch`: its generation in a classic group; `partitions`: what it has, in a group of another type."""

    member_id: str
    client_id: str
    client_host: str
    group_instance_id: str | None
    epoch: int
    partitions: frozenset[tuple[str, int]] = frozenset()


class InFlight(msgspec.Struct, frozen=True):
    """Records `first` to `last` of a share partition. `state`: available, acquired (by `member_id`), acknowledged or archived."""

    first: int
    last: int
    state: str
    delivery_count: int
    member_id: str = ""


class SharePartition(msgspec.Struct, frozen=True):
    """A partition as a share group reads it: by its leader, or as it is stored where no member has fetched from it lately. All records
    before `start_offset` are finished; `in_flight` are those from it on that were delivered. -1: its leader has not chosen it yet."""

    start_offset: int
    in_flight: tuple[InFlight, ...] = ()


class Group(msgspec.Struct, frozen=True):
    """A group as its coordinator has it. `group_type`: classic, consumer, share or streams; `state` is Kafka's name for it, such as
    Stable or Empty; `generation_id` of the others is their epoch; `offsets` has the committed offset of each (topic, partition),
    `share_partitions` what a share group has instead."""

    name: str
    state: str
    generation_id: int
    members: tuple[GroupMember, ...]
    offsets: dict[tuple[str, int], int]
    group_type: str
    share_partitions: dict[tuple[str, int], SharePartition] = {}


def services_of(nodes: Sequence[BrokerNode]) -> list[Services]:
    """Of the nodes that serve, the active controller's first: it knows the metadata first. One that stands still comes last,
    as it may not know that it is the active controller no more; nor does one at once that stood still."""

    def rank(node: BrokerNode) -> tuple[bool, bool, int]:
        controller = node.node.services.controller
        return node.runtime.is_paused, not controller.is_active, -controller.image.offset

    found = sorted((node for node in nodes if node.is_running and node.is_ready), key=rank)
    return [node.node.services for node in found]


def awake_services_of(nodes: Sequence[BrokerNode]) -> list[Services]:
    """Likewise, without those that stand still: of the nodes that learn of a change."""
    return services_of([node for node in nodes if node.is_running and not node.runtime.is_paused])


def image_of(nodes: Sequence[BrokerNode]) -> MetadataImage:
    """The newest metadata. RuntimeError where no node serves."""
    found = services_of(nodes)
    if not found:
        raise RuntimeError("no node of this broker runs")
    return found[0].controller.image


def topics(nodes: Sequence[BrokerNode]) -> dict[str, int]:
    """Topics by name, with the number of their partitions; Kafka's own ones left out."""
    image = image_of(nodes)
    return {
        name: len(topic.partitions)
        for name, topic in sorted(image.topics.items())
        if name not in INTERNAL_TOPICS
    }


def partition_indexes(nodes: Sequence[BrokerNode], topic: str) -> list[int]:
    """UnknownTopic."""
    known = image_of(nodes).topics.get(topic)
    if known is None:
        raise UnknownTopic(f"there is no topic {topic!r}; there are {sorted(topics(nodes)) or 'none'}")
    return sorted(known.partitions)


def leader_of(nodes: Sequence[BrokerNode], topic: str, index: int) -> Partition:
    """The partition at the node that leads it. UnknownTopic, NoLeader."""
    known = image_of(nodes).topics.get(topic)
    if known is None or index not in known.partitions:
        raise UnknownTopic(f"there is no partition {index} of {topic!r}")
    leader = known.partitions[index].leader
    for services in services_of(nodes):
        if services.node_id == leader:
            partition = services.partitions.get(topic, index)
            if partition is not None and partition.is_leader:  # else it does not know of it yet
                return partition
    raise NoLeader(f"{topic}-{index} has no leader that runs")


def is_committed(isolation_level: str) -> bool:
    """ValueError unless it is read_committed or read_uncommitted."""
    if isolation_level not in _ISOLATION_LEVELS:
        raise ValueError(
            f"an isolation_level is {' or '.join(_ISOLATION_LEVELS)}, and not {isolation_level!r}"
        )
    return isolation_level == READ_COMMITTED


def records(
    nodes: Sequence[BrokerNode], topic: str, index: int | None = None, *, committed: bool = True
) -> list[StoredRecord]:
    """All records that consumers may read, of one partition or of all, partition by partition. `committed`: without those of
    aborted transactions, and up to the first one that is open."""
    indexes = partition_indexes(nodes, topic) if index is None else [index]
    return [
        record
        for each in indexes
        for record in _of_partition(leader_of(nodes, topic, each), committed=committed)
    ]


def record_at(partition: Partition, offset: int) -> StoredRecord:
    """One record that consumers may read."""
    found = _of_partition(partition, offset, committed=False)
    return next(each for each in found if each.offset == offset)


def _of_partition(partition: Partition, begin: int = 0, *, committed: bool) -> Iterator[StoredRecord]:
    log = partition.log
    offset = max(begin, log.log_start_offset)
    end = partition.last_stable_offset if committed else partition.high_watermark
    while offset < end:
        read = log.read(offset, _READ_BYTES, end_offset=end)
        data = b"".join(region.read() for region in read.regions)
        begun = offset
        is_aborted = _aborted(log, offset, read) if committed else _never
        for position, header in iterate_whole_headers(data):
            batch = memoryview(data)[position : position + header.size]
            if not is_aborted(header) and not header.is_control:
                for record in iterate_records(batch, _DECOMPRESSED_BYTES_MAX):
                    if log.log_start_offset <= record.offset < end:
                        yield StoredRecord(
                            partition.topic,
                            partition.partition,
                            record.offset,
                            record.timestamp,
                            record.key,
                            record.value,
                            tuple(record.headers),
                        )
            offset = header.next_offset
        if offset == begun:  # compaction has taken the rest
            return


def _aborted(log: Log, offset: int, read: ReadResult) -> Callable[[BatchHeader], bool]:
    """Asked of each batch in order, as consumers do it: an aborted transaction ends with its producer's marker."""
    begins = sorted(log.aborted_within(offset, read), key=lambda each: each[1], reverse=True)
    producers: set[int] = set()

    def is_aborted(header: BatchHeader) -> bool:
        while begins and begins[-1][1] <= header.last_offset:
            producers.add(begins.pop()[0])
        if header.is_control:
            producers.discard(header.producer_id)
        return header.is_transactional and header.producer_id in producers

    return is_aborted


def _never(_header: BatchHeader) -> bool:
    return False


def group(nodes: Sequence[BrokerNode], name: str) -> Group | None:
    """The group, or None where its coordinator knows none of that name."""
    for services in services_of(nodes):
        shard = services.groups.shards.of(name)
        if isinstance(shard, ErrorCode):
            continue
        found = shard.groups.get(name)
        if found is not None:
            view = _view(found, shard.offsets.committed_topics(name), services.controller.image)
            return msgspec.structs.replace(view, share_partitions=_share_partitions(nodes, found))
    return None


def _view(found: StoredGroup, offsets: dict[str, dict[int, CommittedOffset]], image: MetadataImage) -> Group:
    # Late: a start without groups does not load them.
    from barnabas.broker.groups.consumer.group import ConsumerGroup
    from barnabas.broker.groups.group import ClassicGroup
    from barnabas.broker.groups.share.group import ShareGroup
    from barnabas.broker.groups.streams.group import StreamsGroup

    if isinstance(found, ClassicGroup):
        epoch = found.generation_id
        members = tuple(
            GroupMember(
                member.member_id, member.client_id, member.client_host, member.group_instance_id, epoch
            )
            for member in found.members.values()
        )
    elif isinstance(found, StreamsGroup):
        epoch = found.epoch
        members = tuple(_streams_member(found, member_id, image) for member_id in found.members)
    elif isinstance(found, ShareGroup):
        epoch = found.epoch
        members = tuple(_share_member(found, member_id, image) for member_id in found.members)
    else:
        assert isinstance(found, ConsumerGroup)
        epoch = found.epoch
        members = tuple(_consumer_member(found, member_id, image) for member_id in found.members)
    committed = {
        (topic, index): position.offset
        for topic, positions in sorted(offsets.items())
        for index, position in sorted(positions.items())
    }
    return Group(found.group_id, found.state_name, epoch, members, committed, found.group_type)


def _consumer_member(group: ConsumerGroup, member_id: str, image: MetadataImage) -> GroupMember:
    member, current = group.members[member_id], group.current(member_id)
    partitions = frozenset(
        (topic.name, index)
        for topic_id, index in current.held()
        if (topic := image.topic_by_id(topic_id)) is not None
    )
    return GroupMember(
        member_id, member.client_id, member.client_host, member.instance_id, current.epoch, partitions
    )


def _streams_member(group: StreamsGroup, member_id: str, image: MetadataImage) -> GroupMember:
    """With the partitions of its active tasks."""
    member, current = group.members[member_id], group.current(member_id)
    partitions = frozenset(
        (topic, index)
        for topic, subtopology_id in group.sources.items()
        if topic in image.topics
        for held in (current.assigned, current.revoking)
        for index in held.active.get(subtopology_id, ())
        if index in image.topics[topic].partitions
    )
    return GroupMember(
        member_id, member.client_id, member.client_host, member.instance_id, current.epoch, partitions
    )


def _share_member(group: ShareGroup, member_id: str, image: MetadataImage) -> GroupMember:
    member, current = group.members[member_id], group.current(member_id)
    partitions = frozenset(
        (topic.name, index)
        for topic_id, indexes in current.assigned.items()
        if (topic := image.topic_by_id(topic_id)) is not None
        for index in indexes
    )
    return GroupMember(member_id, member.client_id, member.client_host, None, current.epoch, partitions)


def _share_partitions(
    nodes: Sequence[BrokerNode], group: StoredGroup
) -> dict[tuple[str, int], SharePartition]:
    """Those of a share group that have a delivery state."""
    from barnabas.broker.groups.share.group import ShareGroup  # late: as above

    if not isinstance(group, ShareGroup):
        return {}
    found = {}
    for topic_id, each in sorted(group.state_topics.initialized.items(), key=lambda topic: topic[1].name):
        for index in sorted(each.partitions):
            found[each.name, index] = _share_partition(nodes, group.group_id, topic_id, index)
    return found


def _share_partition(
    nodes: Sequence[BrokerNode], group_id: str, topic_id: bytes, index: int
) -> SharePartition:
    from barnabas.broker.share_coordinator.state import SharePartitionKey, ShareState  # late: as above
    from barnabas.broker.share_coordinator.state_batches import ACKNOWLEDGED, ACQUIRED, ARCHIVED, AVAILABLE

    names = {
        AVAILABLE: "available", ACQUIRED: "acquired", ACKNOWLEDGED: "acknowledged", ARCHIVED: "archived",
    }  # fmt: skip
    key = SharePartitionKey(group_id, topic_id, index)
    for services in services_of(nodes):
        for led in services.share_partitions.of_group(group_id):
            if led.key == key and led.state is not None:
                runs = tuple(
                    InFlight(run.first, run.last, names[run.state], run.delivery_count, run.member_id)
                    for run in led.state.runs()
                )
                return SharePartition(led.state.start_offset, runs)
    states: list[object] = []
    for services in services_of(nodes):
        services.share_coordinator.summary_of(key, states.append)
    for state in states:
        if isinstance(state, ShareState):
            stored = tuple(
                InFlight(
                    batch.first_offset, batch.last_offset, names[batch.delivery_state], batch.delivery_count
                )
                for batch in state.batches
            )
            return SharePartition(state.start_offset, stored)
    return SharePartition(-1)


def groups(nodes: Sequence[BrokerNode]) -> list[str]:
    """Names of all groups, sorted."""
    return sorted(
        name
        for services in services_of(nodes)
        for shard in services.groups.shards.loaded()
        for name in shard.groups
    )


def effective_config(nodes: Sequence[BrokerNode], topic: str) -> dict[str, str]:
    """Every config of the topic with the value that counts: its own, or the broker's. UnknownTopic."""
    partition_indexes(nodes, topic)
    services = services_of(nodes)[0]
    return services.config.topic_properties(services.controller.image.topic_configs(topic))


def client_metrics(nodes: Sequence[BrokerNode]) -> list[ClientMetric]:
    """What clients have pushed to the nodes that run, by name."""
    found: list[ClientMetric] = []
    for services in services_of(nodes):
        receiver = services.client_metrics.receiver
        if receiver is not None:
            for each in receiver.series():
                if each is not None:
                    name, labels, value = each
                    found.append(ClientMetric(name, dict(labels), value))
    return sorted(found, key=lambda metric: (metric.name, sorted(metric.labels.items())))
