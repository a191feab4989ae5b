"""Adding partitions to topics. The checks, their order and their texts are Kafka's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from barnabas.controller.config.topic_configs import first_leader_epoch, observers_of
from barnabas.controller.metadata.decision import ApiError, Decision
from barnabas.controller.metadata.image import MetadataImage, TopicImage, partition_record
from barnabas.controller.operations.observers import with_observers
from barnabas.controller.operations.placement import NO_LOADS, Draw, check_assignment, new_partition, place
from barnabas.controller.operations.topics import (
    PARTITIONS_PER_REQUEST_MAX,
    TOO_MANY_PARTITIONS,
    Charge,
    free,
)
from barnabas.wire.errors import ErrorCode


class MorePartitions(msgspec.Struct, frozen=True):
    """`count` is the new total. `assignments`: replicas of each added partition, None to have them chosen."""

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


class PartitionsAdded(msgspec.Struct, frozen=True):
    """Result for one topic."""

    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def create_partitions(
    image: MetadataImage,
    topics: Sequence[MorePartitions],
    *,
    validate_only: bool = False,
    draw: Draw | None = None,
    loads: Mapping[int, float] = NO_LOADS,
    charge: Charge = free,
) -> Decision[list[PartitionsAdded]]:
    """Add partitions to each topic that may have them. `draw`: the first broker of the placement; by default the one after the
    existing partitions. `loads`: for the placement.

    More than 10,000 in a request are refused, as when topics are created. (Kafka 4.3.1 answers UNKNOWN_SERVER_ERROR and adds the
    first 10,000.)
    """
    counts = Counter(topic.name for topic in topics)
    results = [
        PartitionsAdded(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        for name, count in counts.items()
        if count > 1
    ]
    records: list[msgspec.Struct] = []
    budget = PARTITIONS_PER_REQUEST_MAX
    for wanted in topics:
        if counts[wanted.name] > 1:
            continue
        try:
            topic = image.topics.get(wanted.name)
            if topic is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
            budget -= max(0, wanted.count - len(topic.partitions))
            if budget < 0:
                raise ApiError(ErrorCode.POLICY_VIOLATION, TOO_MANY_PARTITIONS)
            added = _add(image, topic, wanted, draw, loads)
            charge(len(added))
            records += added
            results.append(PartitionsAdded(wanted.name))
        except ApiError as api_error:
            results.append(PartitionsAdded(wanted.name, api_error.error, api_error.message or None))
    return Decision([] if validate_only else records, results)


def _add(
    image: MetadataImage,
    topic: TopicImage,
    wanted: MorePartitions,
    draw: Draw | None,
    loads: Mapping[int, float],
) -> list[msgspec.Struct]:
    present = len(topic.partitions)
    if wanted.count == present:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if wanted.count < present:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {present} partition(s); {wanted.count} would not be an increase.",
        )
    added = wanted.count - present
    configs = image.topic_configs(topic.name)
    observers = observers_of(configs)
    replication_factor = sum(broker not in observers for broker in topic.partitions[0].replicas)
    if wanted.assignments is None:
        replicas_of: Sequence[Sequence[int]] = place(
            image, added, replication_factor, draw or (lambda count: present % count), observers, loads
        )
    else:
        replicas_of = wanted.assignments
        if len(replicas_of) != added:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {added} additional partition(s), but only {len(replicas_of)} assignment(s) "
                f"were specified.",
            )
        for replicas in replicas_of:
            check_assignment(image, replicas, replication_factor, observers)
    return [
        partition_record(
            topic.topic_id,
            index,
            new_partition(
                image,
                index,
                with_observers(image, replicas, observers),
                observers,
                first_leader_epoch(configs),
            ),
        )
        for index, replicas in enumerate(replicas_of, start=present)
    ]
