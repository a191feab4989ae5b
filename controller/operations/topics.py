"""Creating and deleting topics. The checks, their order and their texts are Kafka's.

Each topic of a request succeeds or fails by itself, as in Kafka.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from barnabas.controller.config.topic_configs import (
    TIERS,
    first_leader_epoch,
    observers_of,
    validate_topic_configs,
)
from barnabas.controller.config.validators import ConfigError
from barnabas.controller.extension import ConfigTables, NodeValues, TopicChecks
from barnabas.controller.metadata.decision import ApiError, Decision
from barnabas.controller.metadata.image import (
    TOPIC_RESOURCE,
    MetadataImage,
    PartitionState,
    TopicImage,
    partition_record,
)
from barnabas.controller.operations.observers import check_registered, with_observers
from barnabas.controller.operations.placement import NO_LOADS, Draw, check_assignment, new_partition, place
from barnabas.controller.operations.topic_names import (
    CLUSTER_METADATA_TOPIC,
    CollidingTopics,
    invalid_topic_name,
)
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.metadata_records import ConfigRecord, RemoveTopicRecord, TopicRecord
from barnabas.wire.primitives import ZERO_UUID

PARTITIONS_PER_REQUEST_MAX: Final = 10_000
TOO_MANY_PARTITIONS: Final = "Excessively large number of partitions per request."


# Charges the sender's quota for partitions; ApiError when it is exceeded (KIP-599).
Charge = Callable[[int], object]


def free(_partitions: int) -> None:
    """Charges no one."""


class TopicSettings(NodeValues, Protocol):
    """The broker's configuration for new topics."""

    @property
    def num_partitions(self) -> int: ...
    @property
    def default_replication_factor(self) -> int: ...
    @property
    def tables(self) -> ConfigTables: ...


class NewTopic(msgspec.Struct, frozen=True):
    """A topic to create. -1: the broker's default, or as `assignments` say.

    `assignments`: (partition index, replicas) in the order given; when empty, the controller chooses. `configs`: (name, value) in
    the order given; the last value of a name counts.
    """

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Sequence[tuple[str, str | None]] = ()


class CreatedTopic(msgspec.Struct, frozen=True):
    """Result of creating one topic. Without an error: the topic that was created, or, when only validating, would be."""

    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    topic_id: bytes = ZERO_UUID
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = {}  # set on the topic


class DeletedTopic(msgspec.Struct, frozen=True):
    """Result of deleting one topic. The name is None when only an unknown id was given."""

    name: str | None
    topic_id: bytes = ZERO_UUID
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def create_topics(
    image: MetadataImage,
    topics: Sequence[NewTopic],
    settings: TopicSettings,
    new_topic_id: Callable[[str], bytes],
    *,
    validate_only: bool = False,
    draw: Draw = lambda _count: 0,
    loads: Mapping[int, float] = NO_LOADS,
    charge: Charge = free,
) -> Decision[list[CreatedTopic]]:
    """Create each topic that may be created. `new_topic_id(name)`: 16 bytes that no other topic has, and the same when the
    request is repeated: an existing topic with this id was created by the same request. `draw`, `loads`: for the placement."""
    counts = Counter(topic.name for topic in topics)
    unique = [topic for topic in topics if counts[topic.name] == 1 and topic.name != CLUSTER_METADATA_TOPIC]
    results: list[CreatedTopic] = []
    records: list[msgspec.Struct] = []
    checks = settings.tables.topic_checks(image, settings)
    collisions = CollidingTopics(image.topics)
    too_many = sum(_partition_count(topic, settings) for topic in unique) > PARTITIONS_PER_REQUEST_MAX
    for topic in unique:
        try:
            if too_many:
                raise ApiError(ErrorCode.POLICY_VIOLATION, TOO_MANY_PARTITIONS)
            topic_id = new_topic_id(topic.name)
            own = image.topics.get(topic.name)
            if own is not None and own.topic_id == topic_id:
                results.append(_created_before(image, own))
                continue
            created, its_records = _create(image, topic, settings, topic_id, draw, loads, checks, collisions)
            charge(created.num_partitions)
        except ApiError as api_error:
            created, its_records = CreatedTopic(topic.name, api_error.error, api_error.message), []
        else:
            checks.accept(topic.name, {}, created.configs)
        results.append(created)
        records += its_records
    for name, count in counts.items():
        if count > 1:
            results.append(CreatedTopic(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
        elif name == CLUSTER_METADATA_TOPIC:
            message = f"Creation of internal topic {CLUSTER_METADATA_TOPIC} is prohibited."
            results.append(CreatedTopic(name, ErrorCode.INVALID_REQUEST, message))
    return Decision([] if validate_only else records, results)


def _created_before(image: MetadataImage, topic: TopicImage) -> CreatedTopic:
    return CreatedTopic(
        topic.name,
        topic_id=topic.topic_id,
        num_partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replicas),
        configs=dict(image.topic_configs(topic.name)),
    )


def _partition_count(topic: NewTopic, settings: TopicSettings) -> int:
    if topic.assignments:
        return len(topic.assignments)
    if topic.num_partitions == -1:
        return settings.num_partitions
    return max(topic.num_partitions, 0)  # a negative number is an error of its topic alone


def _create(
    image: MetadataImage,
    topic: NewTopic,
    settings: TopicSettings,
    topic_id: bytes,
    draw: Draw,
    loads: Mapping[int, float],
    checks: TopicChecks,
    collisions: CollidingTopics,
) -> tuple[CreatedTopic, list[msgspec.Struct]]:
    _check_name(image, topic.name, collisions)
    configs = _check_configs(image, topic, settings, checks)
    observers, leader_epoch = observers_of(configs), first_leader_epoch(configs)
    partitions = (
        _assigned_partitions(image, topic, observers, leader_epoch)
        if topic.assignments
        else _placed_partitions(image, topic, settings, draw, loads, observers, leader_epoch)
    )
    records: list[msgspec.Struct] = [TopicRecord(name=topic.name, topic_id=topic_id)]
    records += [
        ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=topic.name, name=name, value=value)
        for name, value in configs.items()
    ]
    records += [partition_record(topic_id, index, state) for index, state in enumerate(partitions)]
    created = CreatedTopic(
        topic.name,
        topic_id=topic_id,
        num_partitions=len(partitions),
        replication_factor=len(partitions[0].replicas),
        configs=configs,
    )
    return created, records


def _check_name(image: MetadataImage, name: str, collisions: CollidingTopics) -> None:
    if name in image.topics:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    invalid = invalid_topic_name(name)
    if invalid is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, invalid)
    other = collisions.of(name)
    if other is not None:
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}"
        )


def _check_configs(
    image: MetadataImage, topic: NewTopic, settings: TopicSettings, checks: TopicChecks
) -> dict[str, str]:
    if not topic.configs:
        return {}
    last = dict(topic.configs)
    nulls = [name for name, value in last.items() if value is None]
    if nulls:
        raise ApiError(
            ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(sorted(nulls))}"
        )
    values = {name: value for name, value in last.items() if value is not None}
    try:
        validate_topic_configs(
            values, settings.topic_defaults(), settings.tables.topic, tiers=settings.value(TIERS) == "true"
        )
        check_registered(image, observers_of(values))
        checks.check(topic.name, {}, values)
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error
    return values


def _placed_partitions(
    image: MetadataImage,
    topic: NewTopic,
    settings: TopicSettings,
    draw: Draw,
    loads: Mapping[int, float],
    observers: frozenset[int],
    leader_epoch: int,
) -> list[PartitionState]:
    factor, count = topic.replication_factor, topic.num_partitions
    if factor < -1 or factor == 0:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if count < -1 or count == 0:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
        )
    factor = settings.default_replication_factor if factor == -1 else factor
    count = settings.num_partitions if count == -1 else count
    placed = place(image, count, factor, draw, observers, loads)
    return [
        new_partition(image, index, with_observers(image, replicas, observers), observers, leader_epoch)
        for index, replicas in enumerate(placed)
    ]


def _assigned_partitions(
    image: MetadataImage, topic: NewTopic, observers: frozenset[int], leader_epoch: int
) -> list[PartitionState]:
    prefix = "A manual partition assignment was specified, but"
    if topic.replication_factor != -1:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{prefix} replication factor was not set to -1.")
    if topic.num_partitions != -1:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{prefix} numPartitions was not set to -1.")
    partitions: dict[int, PartitionState] = {}
    factor: int | None = None
    for index, replicas in topic.assignments:
        if index in partitions:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {index}",
            )
        check_assignment(image, replicas, factor, observers)
        factor = sum(broker not in observers for broker in replicas)
        all_replicas = with_observers(image, replicas, observers)
        partitions[index] = new_partition(image, index, all_replicas, observers, leader_epoch)
    if set(partitions) != set(range(len(partitions))):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        )
    return [partitions[index] for index in range(len(partitions))]


def delete_topics(
    image: MetadataImage, wanted: Sequence[tuple[str | None, bytes]], charge: Charge = free
) -> Decision[list[DeletedTopic]]:
    """Delete topics, each given by name or by id (ZERO_UUID: none)."""
    results: list[DeletedTopic] = []
    records: list[msgspec.Struct] = []
    names = Counter(name for name, topic_id in wanted if name is not None and topic_id == ZERO_UUID)
    ids = Counter(topic_id for name, topic_id in wanted if name is None and topic_id != ZERO_UUID)
    for name, topic_id in wanted:
        if (name is None) == (topic_id == ZERO_UUID):
            message = (
                "Neither topic name nor id were specified."
                if name is None
                else "You may not specify both topic name and topic id."
            )
            results.append(DeletedTopic(name, topic_id, ErrorCode.INVALID_REQUEST, message))
    claimed: set[bytes] = set()  # ids that are given by name as well
    for name, count in names.items():
        topic = image.topics.get(name)
        if count > 1:
            results.append(
                DeletedTopic(name, error=ErrorCode.INVALID_REQUEST, message="Duplicate topic name.")
            )
        elif topic is None:
            results.append(_unknown(DeletedTopic(name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        elif topic.topic_id in ids:
            message = "The provided topic name maps to an ID that was already supplied."
            results.append(DeletedTopic(name, topic.topic_id, ErrorCode.INVALID_REQUEST, message))
            claimed.add(topic.topic_id)
        else:
            _delete(topic, results, records, charge)
    for topic_id, count in ids.items():
        if topic_id in claimed:
            continue
        topic = image.topic_by_id(topic_id)
        if count > 1:
            results.append(DeletedTopic(None, topic_id, ErrorCode.INVALID_REQUEST, "Duplicate topic id."))
        elif topic is None:
            results.append(_unknown(DeletedTopic(None, topic_id), ErrorCode.UNKNOWN_TOPIC_ID))
        else:
            _delete(topic, results, records, charge)
    return Decision(records, results)


def _unknown(topic: DeletedTopic, error: ErrorCode) -> DeletedTopic:
    return msgspec.structs.replace(topic, error=error, message=error.message)


def _delete(
    topic: TopicImage, results: list[DeletedTopic], records: list[msgspec.Struct], charge: Charge
) -> None:
    try:
        charge(len(topic.partitions))
    except ApiError as api_error:
        results.append(DeletedTopic(topic.name, topic.topic_id, api_error.error, api_error.message))
        return
    results.append(DeletedTopic(topic.name, topic.topic_id))
    records.append(RemoveTopicRecord(topic_id=topic.topic_id))
